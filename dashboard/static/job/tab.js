// What a browser shows of a job outside of its page: the tab's title and icon, and a notification
// of its end, if the viewer asked for one here.
import { known, lastStep } from "./known.js";

/** @type {Record<string, string>} */
const SHAPES = {
  queued: "○",
  starting: "◔",
  running: "▶",
  paused: "‖",
  stopping: "◧",
  succeeded: "✓",
  failed: "✗",
  cancelled: "⊘",
};
/** @type {Record<string, string>} */
const COLOURS = {
  starting: "#00809f",
  running: "#00809f",
  paused: "#6b4fbb",
  stopping: "#9a6700",
  succeeded: "#1a7f37",
  failed: "#c62828",
};
const OTHER = "#6e7781";
const icon = /** @type {HTMLLinkElement} */ (document.querySelector("link[rel=icon]"));
const button = document.querySelector("[data-tell-end]");

/** @param {string} colour */
function iconOf(colour) {
  const circle = `<circle cx="12" cy="12" r="9" fill="${colour}"/>`;
  const drawn = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24">${circle}</svg>`;
  return `data:image/svg+xml,${encodeURIComponent(drawn)}`;
}

export function showInTab() {
  const { name, state, steps } = known.job;
  const isUnderWay = state === "running" && steps > 0;
  const share = isUnderWay ? ` ${Math.floor((100 * lastStep()) / steps)} %` : "";
  document.title = `${SHAPES[state] ?? "·"}${share} ${name} · Trainyard`;
  const wanted = iconOf(COLOURS[state] ?? OTHER);
  if (icon.href !== wanted) {
    icon.type = "image/svg+xml";
    icon.href = wanted;
  }
}

/** Tell of the job's end, once. */
export function tellEnd() {
  if (button?.getAttribute("aria-pressed") !== "true") return;
  button.setAttribute("aria-pressed", "false");
  const { name, state, reason } = known.job;
  new Notification(`${name}: ${state}`, { body: reason, tag: known.job.id });
}

if (button && "Notification" in window && Notification.permission !== "denied") {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const isAsked = button.getAttribute("aria-pressed") !== "true";
    const isAllowed = isAsked && (await Notification.requestPermission()) === "granted";
    button.setAttribute("aria-pressed", String(isAllowed));
  });
}
