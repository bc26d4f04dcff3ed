// Upload of a dataset straight to the API, in parts: a broken upload goes on.
import { ask, Refused } from "../api.js";
import { whenChosen } from "../chosen.js";
import { sendFile } from "../resumable.js";
import { whenSent } from "../upload_form.js";

/** @typedef {"text" | "jsonl" | "npz" | "parquet" | "arrow"} Format */

/** @type {Record<string, Format>} */
const FORMATS = {
  jsonl: "jsonl",
  ndjson: "jsonl",
  npz: "npz",
  parquet: "parquet",
  arrow: "arrow",
};
const form = document.querySelector("[data-upload]");
/** @param {string} name */
const field = (name) => form.querySelector(`[name="${name}"]`);
/** @type {HTMLInputElement} */
const chooser = form.querySelector("[type=file]");

whenChosen(chooser, ([file]) => {
  const [, ending] = /\.(\w+)(?:\.(?:gz|zst))?$/.exec(file.name.toLowerCase()) ?? [];
  field("format").value = FORMATS[ending] ?? "text";
  field("name").value ||= file.name
    .replace(/\.(gz|zst)$/, "")
    .replace(/\.[^.]*$/, "")
    .replace(/[^A-Za-z0-9._-]+/g, "-")
    .replace(/^[^A-Za-z0-9]+/, "")
    .slice(0, 63);
});

whenSent(form, async (files, tell) => {
  const uploads = [];
  let before = 0;
  for (const file of files) {
    const done = before;
    const format = /** @type {Format} */ (field("format").value);
    uploads.push(
      await sendFile(file, format, ({ sent, waiting }) => tell({ sent: done + sent, waiting })),
    );
    before += file.size;
  }
  await make(field("name").value, uploads);
});

/**
 * Make the dataset, once: the same request again has the same answer.
 * @param {string} name
 * @param {string[]} uploads
 */
async function make(name, uploads) {
  const headers = { "Idempotency-Key": `${uploads[0]}-${name}` };
  for (let left = 5; ; left--) {
    try {
      await ask("/v1/datasets/uploaded", { method: "POST", body: { name, uploads }, headers });
      return;
    } catch (error) {
      if (!(error instanceof Refused && error.isForNow) || left === 0) throw error;
      await new Promise((resolve) => setTimeout(resolve, error.waitMs ?? 2000));
    }
  }
}
