// Upload of a model's folder straight to the API, file by file, in parts: a broken upload goes on.
import { ask, Refused } from "../api.js";
import { sendFile } from "../resumable.js";
import { whenSent } from "../upload_form.js";

// As the API takes them: docs/data.md.
const WEIGHTS = /^model(-\d{5}-of-\d{5})?\.safetensors$/;
const OTHERS = [
  "config.json",
  "model.safetensors.index.json",
  "generation_config.json",
  "tokenizer.json",
  "tokenizer_config.json",
  "special_tokens_map.json",
  "added_tokens.json",
  "chat_template.jinja",
];
const form = document.querySelector("[data-upload]");
/** @param {string} name */
const field = (name) => form.querySelector(`[name="${name}"]`);

whenSent(form, async (files, tell) => {
  const sent = files.filter((file) => OTHERS.includes(file.name) || WEIGHTS.test(file.name));
  const has = (/** @type {RegExp} */ name) => sent.some((file) => name.test(file.name));
  if (!has(/^config\.json$/) || !has(WEIGHTS)) {
    const message = "Choose all files of the folder: config.json and model.safetensors are needed.";
    throw new Refused(message, { status: 400 });
  }
  const uploads = [];
  let before = 0;
  for (const file of sent) {
    const done = before;
    uploads.push(
      await sendFile(file, "file", ({ sent: bytes, waiting }) =>
        tell({ sent: done + bytes, waiting }),
      ),
    );
    before += file.size;
  }
  const name = field("name").value;
  const headers = { "Idempotency-Key": `${uploads[0]}-${name}` };
  await ask("/v1/models/uploaded", { method: "POST", body: { name, uploads }, headers });
});
