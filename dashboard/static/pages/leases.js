// The booking form of the list: hours of the grid in the browser's zone, sent with their offset.
import { clock, near, offset, zone } from "../times.js";

const HOUR_MS = 3_600_000;
/** @param {number} number */
const pad = (number) => String(number).padStart(2, "0");
const form = document.querySelector("[data-booking]");
/** @param {string} name */
const field = (name) => form.querySelector(`[name="${name}"]`);

/** @param {Date} date */
const asLocal = (date) =>
  `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}T${clock(date)}`;

function tell() {
  const [local, start, hours] = ["start_local", "start", "hours"].map(field);
  const hint = form.querySelector("[data-start-hint]");
  const date = local.value ? new Date(local.value) : null;
  start.value = date ? `${local.value}:00${offset(date).replace("\u2212", "-")}` : "";
  if (!date) {
    hint.textContent = `a full hour, in ${zone()}`;
    return;
  }
  const end = new Date(date.getTime() + Number(hours.value || 1) * HOUR_MS);
  hint.textContent = `${near(date)} to ${near(end)}, ${zone(date)}`;
}

if (form) {
  // The grid is UTC's full hours.
  const next = new Date(Math.ceil((Date.now() + 1) / HOUR_MS) * HOUR_MS);
  const local = field("start_local");
  local.setAttribute("min", asLocal(next));
  local.value ||= asLocal(next);
  form.addEventListener("input", tell);
  tell();
}
