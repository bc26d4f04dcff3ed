// A submitted report goes to the API as unchanged text: not one digit is rewritten.
import { ask } from "../api.js";
import { say } from "../elements.js";
import { clock, day, zone } from "../times.js";

const form = document.querySelector("[data-check]");
const answer = form.querySelector("[data-check-answer]");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.setAttribute("aria-busy", "true");
  try {
    const body = await form.querySelector("input").files[0].text();
    const found = await ask("/v1/reports/check", { method: "POST", body });
    if (found.intact && found.known) {
      const at = new Date(found.made_at);
      const when = `${day(at, { year: true })}, ${clock(at)} ${zone(at)}`;
      say(answer, "good", "Genuine", [`${found.message} On ${when}.`]);
    } else {
      say(answer, "bad", found.intact ? "Not ours" : "Changed", [found.message]);
    }
  } catch (refused) {
    if (refused.isForNow === false) {
      say(answer, "bad", "This is not a report", [refused.message]);
    } else {
      const why = "The server can't be reached, or the file can't be read. Try again.";
      say(answer, "bad", "Not checked", [why]);
    }
  } finally {
    button.removeAttribute("aria-busy");
  }
});
