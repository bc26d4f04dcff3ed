// The form for a new job: fields and YAML are two views of one spec. The YAML is sent: the
// server writes changed fields into it, and reads the fields out of it before they are shown.
// Ctrl Enter submits, and the button waits for the plan of the newest text. The text is kept as
// a draft until it is submitted.
import { reach } from "../api.js";
import { dropDraft, keepDraft, readDraft } from "../draft.js";
import { announce } from "../page.js";
import { askAgain } from "../replan.js";
import { near } from "../times.js";

/** @import { Draft } from "../draft.js" */

/** @type {HTMLTextAreaElement} */
const text = document.querySelector("[data-spec]");
const line = document.getElementById("spec-line");
const plan = document.getElementById("plan");
const form = /** @type {HTMLFormElement} */ (document.getElementById("spec-form"));
const fields = document.getElementById("spec-fields");
const yaml = document.querySelector("[data-yaml]");
const source = document.querySelector("[data-source]");
const change = document.querySelector("[data-apply-change]");
const views = document.querySelectorAll("[data-view]");
const AGAIN_MS = 3000;

function tellLine() {
  const before = text.value.slice(0, text.selectionStart).split("\n");
  const all = text.value.split("\n").length;
  const where = `Line ${before.length} of ${all}`;
  line.textContent = `${where}. Sent unchanged, comments included. YAML aliases and tags are refused.`;
}

// The old answer stays, dimmed, and can't be submitted until the new one is there.
function growOld() {
  document.querySelectorAll("[data-submit], [data-submit-bar]").forEach((button) => {
    button.disabled = true;
  });
  plan.classList.add("old");
}

function replan() {
  growOld();
  text.dispatchEvent(new Event("replan"));
}

const tellLost = askAgain(text, replan);

// ---- the draft ----------------------------------------------------------------------------------
const begun = form.hasAttribute("data-answered") ? null : text.value; // what nobody has changed yet
/** @type {Record<string, string>} */
let typed = {}; // fields that were changed and are not yet in the text
let edits = 0; // of fields
let isReshaped = false; // a field was changed by which others are used or not
const SHAPING = ["model.name", "parallelism.strategy", "data.tokenizer"];
let asked = 0; // the last of them that the server was asked to write into the text
let isGivenUp = false; // while a draft or another example takes its place

const isEdited = () => text.value !== begun || Object.keys(typed).length > 0;

function keep() {
  if (isGivenUp) return;
  if (isEdited()) keepDraft({ text: text.value, fields: typed, start: location.search });
  else if (readDraft()?.start === location.search) dropDraft();
}

/** @param {Draft} draft */
async function writeDraft(draft) {
  isGivenUp = true;
  text.value = draft.text;
  source.value = "yaml";
  typed = { ...draft.fields };
  if (!(await readFields())) {
    setTimeout(writeDraft, AGAIN_MS, draft);
    return;
  }
  isGivenUp = false;
  replan();
}

const draftLine = document.querySelector("[data-draft]");
const restore = draftLine.querySelector("[data-draft-restore]");

/**
 * @param {Draft} draft
 * @param {string} words
 * @param {boolean} isRestored
 */
function tellDraft(draft, words, isRestored) {
  draftLine.hidden = false;
  restore.hidden = isRestored;
  draftLine.querySelector("[data-draft-words]").textContent =
    `Draft of ${near(new Date(draft.at))} ${words}`;
  announce(draftLine.querySelector("[data-draft-words]").textContent);
}

/** @param {Draft} draft */
async function bringBack(draft) {
  await writeDraft(draft);
  keep();
  tellDraft(draft, "restored", true);
}

restore.addEventListener("click", () => bringBack(readDraft()));
draftLine.querySelector("[data-draft-discard]").addEventListener("click", async () => {
  dropDraft();
  draftLine.hidden = true;
  if (restore.hidden) await writeDraft({ text: begun, fields: {} });
});

// A draft that was begun with another example or clone is offered: this page was asked for by name.
function findDraft() {
  const draft = readDraft();
  if (form.hasAttribute("data-answered")) keep();
  else if (!draft) return;
  else if (!location.search || draft.start === location.search) bringBack(draft);
  else tellDraft(draft, "is kept until you edit this page", false);
}

form.addEventListener("submit", () => {
  const draft = readDraft();
  if (draft) keepDraft({ ...draft, isSent: true });
});

/** @type {HTMLFormElement} */
const start = document.querySelector("[data-start]");
start.addEventListener("submit", (event) => {
  const select = /** @type {HTMLSelectElement} */ (start.elements.namedItem("example"));
  if (!isEdited() || confirm(`Replace your text with the example ${select.value}?`)) {
    isGivenUp = true;
    dropDraft();
    return;
  }
  event.preventDefault();
  start.reset();
});

// ---- two views ----------------------------------------------------------------------------------
/** @param {string} view */
function show(view) {
  const isForm = view === "form";
  fields.hidden = !isForm;
  yaml.hidden = isForm;
  for (const one of views) {
    one.setAttribute("aria-pressed", String(one.dataset.view === view));
  }
}

// Return true if the server could read the fields out of the text. What was typed into them
// meanwhile stays.
async function readFields() {
  let read = "";
  let drawn = "";
  do {
    let answer;
    read = text.value;
    try {
      answer = await reach("/jobs/new/fields", {
        method: "POST",
        headers: { "Content-Type": "application/x-www-form-urlencoded", "HX-Request": "true" },
        body: new URLSearchParams({ spec: read }),
      });
    } catch {
      tellLost();
      return false;
    }
    if (answer.headers.has("HX-Redirect")) location.href = answer.headers.get("HX-Redirect");
    if (answer.status !== 200) return false;
    drawn = await answer.text();
  } while (text.value !== read);
  fields.innerHTML = drawn; // our own server's, escaped there like every page
  for (const [name, value] of Object.entries(typed)) {
    source.value = "form";
    const control = /** @type {HTMLInputElement | null} */ (form.elements.namedItem(name));
    if (control) control.value = value;
  }
  tellErrors();
  return true;
}

let wantedView = "";
for (const button of views) {
  button.addEventListener("click", async () => {
    wantedView = button.dataset.view;
    // What is being typed is not replaced.
    if (button.getAttribute("aria-pressed") === "true") return;
    if (button.dataset.view === "form" && !(await readFields())) return;
    if (wantedView !== button.dataset.view) return; // the other one was asked for meanwhile
    show(button.dataset.view);
    localStorage.setItem("spec-view", button.dataset.view);
  });
}

// An error beside its field: without the field's name and line, which are seen. A long one, such
// as a sum of memory, belongs to the plan.
const LONGEST_ERROR = 110;
/**
 * @param {string} path
 * @param {string} sentence
 */
function beside(path, sentence) {
  const short = sentence
    .replace(path, "")
    .replace(/^ \(line \d+\)/, "")
    .replace(/^:? /, "");
  return short.length > LONGEST_ERROR ? "Does not work: see the plan." : short;
}

// Errors of the plan, beside their fields.
function tellErrors() {
  for (const error of fields.querySelectorAll("[data-error]")) {
    const path = error.dataset.error;
    const found = [...plan.querySelectorAll("[data-param]")].find(
      (one) => one.dataset.param === path,
    );
    error.hidden = !found;
    error.textContent = found ? beside(path, found.querySelector("bdi").textContent) : "";
    const control = fields.querySelector(`[data-field="${path}"]`);
    if (found) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  }
}

fields.addEventListener("input", (event) => {
  source.value = "form";
  typed[event.target.name] = event.target.value;
  if (SHAPING.includes(event.target.dataset.field)) isReshaped = true;
  edits += 1;
  keep();
  replan();
});

text.addEventListener("keyup", tellLine);
text.addEventListener("click", tellLine);
text.addEventListener("input", () => {
  source.value = "yaml";
  typed = {};
  keep();
  growOld();
  tellLine();
});

// ---- the plan -----------------------------------------------------------------------------------
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-apply]");
  if (!button) return;
  change.value = button.dataset.apply;
  source.value = fields.hidden ? "yaml" : "form";
  button.setAttribute("aria-busy", "true");
  replan();
});

text.addEventListener("htmx:before:request", () => {
  asked = edits;
});

document.addEventListener("htmx:after:swap", async () => {
  plan.classList.remove("old");
  const isApplied = change.value !== "";
  change.value = "";
  const rewritten = plan.querySelector("[data-rewritten]");
  if (rewritten && !isGivenUp) {
    text.value = rewritten.value;
    rewritten.remove();
    tellLine();
    if (asked === edits) typed = {}; // all of them are in the text now
    keep();
    if ((isApplied || isReshaped) && asked === edits && !fields.hidden) {
      const focused = document.activeElement?.id;
      const before = edits;
      isReshaped = false;
      await readFields();
      if (focused) document.getElementById(focused)?.focus();
      if (edits !== before) replan(); // with the fields as they are drawn now
    }
  }
  tellErrors();
});

/** @param {KeyboardEvent} event */
function submit(event) {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  const button = document.querySelector("[data-submit]");
  if (button && !button.disabled) form.requestSubmit(button);
}
form.addEventListener("keydown", submit);
// Enter in a field submits nothing: the plan comes first.
fields.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.ctrlKey && !event.metaKey && event.target.matches("input"))
    event.preventDefault();
});

document.querySelector("[data-views]").hidden = false;
show(localStorage.getItem("spec-view") === "yaml" ? "yaml" : "form");
// The key `n` leads to a field; in the other view to the text.
if (location.hash) document.querySelector(fields.hidden ? "#spec" : location.hash)?.focus();
findDraft();
