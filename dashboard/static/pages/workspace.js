// Files put into the folder of the workspace that is shown.
import { sendBytes } from "../api.js";
import { whenSent } from "../upload_form.js";

const form = document.querySelector("[data-upload]");
if (form) {
  whenSent(form, async (files, tell) => {
    const below = decodeURIComponent(form.querySelector("[name=below]").value);
    let before = 0;
    for (const file of files) {
      const done = before;
      const query = new URLSearchParams({ path: below ? `${below}/${file.name}` : file.name });
      const headers = { "Content-Type": "application/octet-stream" };
      await sendBytes(`/v1/workspace/files?${query}`, file, { headers }, (bytes) =>
        tell({ sent: done + bytes, waiting: null }),
      );
      before += file.size;
    }
  });
}
