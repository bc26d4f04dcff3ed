// A report that was handed in goes to the API as the text that it is: not one digit is rewritten.
import { clock, day, zone } from "../times.js";

const form = document.querySelector("[data-check]");
const answer = form.querySelector("[data-check-answer]");

function say(state, headline, detail) {
  const verdict = document.createElement("div");
  verdict.className = "verdict";
  verdict.dataset.state = state;
  const inner = document.createElement("div");
  for (const [tag, text] of [
    ["strong", headline],
    ["p", detail],
  ]) {
    const made = document.createElement(tag);
    made.textContent = text;
    inner.append(made);
  }
  verdict.append(inner);
  answer.replaceChildren(verdict);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.setAttribute("aria-busy", "true");
  try {
    const text = await form.querySelector("input").files[0].text();
    const response = await fetch("/v1/reports/check", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: text,
    });
    const found = await response.json();
    if (!response.ok) {
      say("bad", "This is no report", found.detail ?? `The API answered ${response.status}.`);
    } else if (found.intact && found.known) {
      const at = new Date(found.made_at);
      say(
        "good",
        "Genuine",
        `${found.message} On ${day(at, { year: true })}, ${clock(at)} ${zone(at)}.`,
      );
    } else {
      say("bad", found.intact ? "Not ours" : "Changed", found.message);
    }
  } catch {
    say("bad", "Not checked", "The server can't be reached, or the file can't be read. Try again.");
  } finally {
    button.removeAttribute("aria-busy");
  }
});
