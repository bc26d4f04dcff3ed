// Draft of a new job, kept in this browser until it is submitted: the text, and the fields that
// changed since it was written. Each signed-in person has their own; signing out deletes it.

/**
 * @typedef {object} Draft
 * @property {string} text
 * @property {Record<string, string>} fields changed since the text was written
 * @property {string} [start] the page's query: the example or the clone it began with
 * @property {number} [at]
 * @property {boolean} [isSent]
 */
const KEPT_MS = 7 * 24 * 3600_000;
const PREFIX = "draft:";
const name = () => PREFIX + document.body.dataset.user;

/** @returns {Draft | null} */
export function readDraft() {
  const kept = localStorage.getItem(name());
  const draft = kept ? JSON.parse(kept) : null;
  if (draft && Date.now() - draft.at < KEPT_MS) return draft;
  dropDraft();
  return null;
}

/** @param {Draft} draft */
export function keepDraft(draft) {
  localStorage.setItem(name(), JSON.stringify({ ...draft, at: Date.now() }));
}

export function dropDraft() {
  localStorage.removeItem(name());
}

export function dropAllDrafts() {
  for (const key of Object.keys(localStorage))
    if (key.startsWith(PREFIX)) localStorage.removeItem(key);
}

// Called on the page of the job that the form has just submitted.
export function dropSubmitted() {
  const from = document.referrer && new URL(document.referrer).pathname;
  if (from === "/jobs/new" && readDraft()?.isSent) dropDraft();
}
