// Table cells that follow from the curves, and the sentences above the table.
import { resampled, smoothed } from "../charts/series.js";
import { count, decimal, gib, span, UNKNOWN } from "../formats.js";
import { column, counted, jobs, NAMES } from "./compared.js";

/** @import { Compared } from "./compared.js" */

/** @param {(number | null)[]} values */
const mean = (values) => {
  const finite = values.filter(Number.isFinite);
  return finite.length ? finite.reduce((sum, value) => sum + value, 0) / finite.length : null;
};

/**
 * @param {string} row
 * @param {(number | null)[]} values
 * @param {(value: number) => string} write
 */
function fill(row, values, write) {
  const cells = document.querySelectorAll(`[data-row="${row}"] [data-cell]`);
  values.forEach((value, index) => {
    cells[index].textContent = value === null ? UNKNOWN : write(value);
    if (value === null) delete cells[index].dataset.v;
    else cells[index].dataset.v = String(value);
  });
  document.querySelector(`[data-row="${row}"]`).hidden =
    row === "mfu" && values.every((value) => value === null);
}

/**
 * Minutes until the smoothed loss is first at or below the target; null if it never was.
 * @param {Compared} job
 * @param {number} target
 */
function reach(job, target) {
  const { steps: at, values } = column(job, "loss");
  const index = smoothed(values, 0.8).findIndex((value) => value !== null && value <= target);
  if (index < 0) return null;
  const time = column(job, "time");
  const [moment] = resampled(time.steps, time.values, [at[index]]);
  return moment === null ? null : (moment - time.values[0]) / 60;
}

// The lowest loss that all of them have reached, a little above it, on a round number.
function commonTarget() {
  const lowest = jobs.map((job) =>
    Math.min(...smoothed(column(job, "loss").values, 0.8).filter((value) => value !== null)),
  );
  const highest = Math.max(...lowest.filter(Number.isFinite));
  return Number.isFinite(highest) ? (Math.ceil(highest * 1.02 * 100) / 100).toFixed(2) : "";
}

export const target = document.querySelector("[data-target]");

export function tell() {
  if (!target.dataset.own) target.value = commonTarget();
  const wanted = Number(target.value);
  document.querySelector("[data-target-words]").textContent = target.value || UNKNOWN;
  const minutes = jobs.map((job) => (target.value ? reach(job, wanted) : null));
  const peaks = jobs.map((job) => {
    const found = column(job, "max_active_gib").values.filter(Number.isFinite);
    return found.length ? Math.max(...found) : null;
  });
  fill("reach", minutes, (value) => span(value * 60));
  fill(
    "speed",
    jobs.map((job) => mean(column(job, "tokens_per_s").values)),
    (value) => `${count(value)} ${counted}/s`,
  );
  fill(
    "mfu",
    jobs.map((job) => mean(column(job, "mfu").values)),
    (value) => `${decimal(value, 3)} %`,
  );
  fill("memory", peaks, gib);
  for (const row of document.querySelectorAll("[data-best]")) {
    const cells = [...row.querySelectorAll("td")];
    const values = cells.map((cell) => Number(cell.dataset.v ?? NaN));
    const known = values.filter(Number.isFinite);
    const best = row.dataset.best === "low" ? Math.min(...known) : Math.max(...known);
    // Values with the same words are equally good.
    const words = cells[values.indexOf(best)]?.textContent;
    const isTie = cells.every((cell) => cell.textContent === words);
    for (const cell of cells) cell.classList.toggle("best", !isTie && cell.textContent === words);
  }
  /**
   * @param {(number | null)[]} values
   * @param {(value: number) => string} write
   */
  const winner = (values, write) => {
    const known = values.filter((value) => value !== null);
    if (!known.length) return UNKNOWN;
    const best = Math.min(...known);
    return `${jobs[values.indexOf(best)].label}, ${write(best)}`;
  };
  /**
   * @param {string} name
   * @param {string} text
   */
  const say = (name, text) => {
    document.querySelector(`[data-read="${name}"]`).textContent = text;
  };
  say(
    "fastest",
    winner(minutes, (value) => span(value * 60)),
  );
  say("smallest", winner(peaks, gib));
  say(
    "cheapest",
    winner(
      minutes.map((value, index) => (value === null ? null : (value / 60) * jobs[index].ranks)),
      (value) => `${decimal(value, 3)} ${NAMES.hours}`,
    ),
  );
}
