// A page that asks for its document again while it is not over, draws its report anew when something
// has changed, and says so when the line is lost.
import { announce } from "./page.js";
import { clock } from "./times.js";

/* global htmx */
const EVERY_MS = 2000;
const LOST_AFTER_MS = 3000;

let lastHeard = new Date();

function tellLine(line) {
  const badge = document.getElementById("line");
  badge.dataset.line = line;
  badge.textContent = { live: "live", lost: "line lost", over: "ended" }[line];
  const banner = document.getElementById("line-lost");
  if (line === "lost" && banner.hidden) {
    banner.querySelector("[data-lost-at]").textContent = clock(lastHeard, { seconds: true });
    announce("Connection lost. The page shows what it knew.");
  }
  if (line !== "lost" && !banner.hidden) announce("Connected again.");
  banner.hidden = line !== "lost";
}

// `heard(now, before)` is told of every answer; `page` is where to come back to after signing in.
export async function watch(address, page, known, heard) {
  let now = known;
  try {
    const answer = await fetch(address);
    if (answer.status === 401) {
      location.href = `/login?next=${page}`;
      return;
    }
    if (!answer.ok) throw new Error(`answer ${answer.status}`);
    const text = await answer.text();
    lastHeard = new Date();
    now = JSON.parse(text);
    if (JSON.stringify(known) !== JSON.stringify(now)) htmx.trigger(document.getElementById("report"), "refresh");
    const drawn = heard(now, known);
    tellLine(now.is_final ? "over" : "live");
    await drawn;
  } catch {
    if (new Date() - lastHeard > LOST_AFTER_MS) tellLine("lost");
  }
  if (!now.is_final) setTimeout(() => watch(address, page, now, heard), EVERY_MS);
}
