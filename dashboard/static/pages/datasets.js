// Upload of a dataset straight to the API, which streams it to disk and names the faulty line.
import { upload } from "../api.js";
import { say } from "../elements.js";

/** @type {Record<string, string>} */
const TYPES = {
  text: "text/plain; charset=utf-8",
  jsonl: "application/x-ndjson",
  npz: "application/octet-stream",
  parquet: "application/octet-stream",
  arrow: "application/octet-stream",
};
const form = document.querySelector("[data-upload]");
/** @param {string} name */
const field = (name) => form.querySelector(`[name="${name}"]`);
const answer = form.querySelector("[data-upload-answer]");
const bar = form.querySelector("[data-upload-bar]");

field("file").addEventListener("change", () => {
  const [file] = field("file").files;
  if (!file) return;
  const [, ending] = /\.(\w+)$/.exec(file.name.toLowerCase()) ?? [];
  /** @type {Record<string, string>} */
  const formats = {
    jsonl: "jsonl",
    ndjson: "jsonl",
    npz: "npz",
    parquet: "parquet",
    arrow: "arrow",
  };
  field("format").value = formats[ending] ?? "text";
  field("name").value ||= file.name
    .replace(/\.[^.]*$/, "")
    .replace(/[^A-Za-z0-9._ -]+/g, "-")
    .replace(/^[^A-Za-z0-9]+/, "")
    .slice(0, 63);
});

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const [file] = field("file").files;
  const button = form.querySelector("button[type=submit]");
  const format = field("format").value;
  answer.replaceChildren();
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  bar.hidden = false;
  try {
    const query = new URLSearchParams({ name: field("name").value, format });
    await upload(`/v1/datasets?${query}`, file, TYPES[format], tellSent);
    location.reload();
  } catch (refused) {
    const why = refused.status
      ? refused.message
      : `${refused.message} Nothing was stored. Try again.`;
    say(answer, "bad", refused.title || "Not uploaded", [why]);
  } finally {
    button.disabled = false;
    button.removeAttribute("aria-busy");
    bar.hidden = true;
  }
});

/** @param {number} share */
function tellSent(share) {
  const percent = 100 * share;
  bar.setAttribute("aria-valuenow", String(Math.floor(percent)));
  bar.querySelector("i").style.setProperty("--v", String(percent));
}
