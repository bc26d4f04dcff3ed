// A form that sends files: its bar, its button and its answers.
import { say } from "./elements.js";

/** @import { Stand } from "./resumable.js" */

/**
 * Call `work` when the form is sent; show how far it is, and load the page anew when it is done.
 * @param {PageElement} form
 * @param {(files: File[], tell: (stand: Stand) => void) => Promise<void>} work
 */
export function whenSent(form, work) {
  const answer = form.querySelector("[data-upload-answer]");
  const bar = form.querySelector("[data-upload-bar]");
  const button = form.querySelector("button[type=submit]");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const files = [...form.querySelector("[type=file]").files];
    const total = files.reduce((sum, file) => sum + file.size, 0);
    answer.replaceChildren();
    button.disabled = true;
    button.setAttribute("aria-busy", "true");
    bar.hidden = false;
    try {
      await work(files, ({ sent, waiting }) => {
        const percent = total ? (100 * sent) / total : 100;
        bar.setAttribute("aria-valuenow", String(Math.floor(percent)));
        bar.querySelector("i").style.setProperty("--v", String(percent));
        if (waiting) {
          const there = `${Math.floor(percent)} % have arrived.`;
          say(answer, "warn", "Waiting to go on", [waiting.message, there]);
        } else answer.replaceChildren();
      });
      location.reload();
    } catch (refused) {
      say(answer, "bad", refused.title || "Not uploaded", [refused.message]);
    } finally {
      button.disabled = false;
      button.removeAttribute("aria-busy");
      bar.hidden = true;
    }
  });
}
