// The booking form: hours of the grid in the browser's zone, sent with their offset.
import { near, offset, zone } from "../times.js";

const HOUR_MS = 3_600_000;
const pad = (number) => String(number).padStart(2, "0");
const form = document.querySelector("[data-booking]");

const asLocal = (date) =>
  `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}T${pad(date.getHours())}:${pad(date.getMinutes())}`;

function tell() {
  const { start_local: local, start, hours } = form.elements;
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
  const next = new Date(Math.ceil((Date.now() + 1) / HOUR_MS) * HOUR_MS); // the grid is UTC's full hours
  form.elements.start_local.min = asLocal(next);
  form.elements.start_local.value ||= asLocal(next);
  form.addEventListener("input", tell);
  tell();
}
