// Several jobs in the same charts: loss by step and by cost, distance from the first job, and any
// other number that they log.
import { askIfThere } from "../api.js";
import { Chart } from "../charts/chart.js";
import { resampled, Series } from "../charts/series.js";
import { find, make } from "../elements.js";
import { decimal } from "../formats.js";
import { follow } from "../lists.js";
import { ring } from "../looks.js";
import { column, counted, figure, jobs, NAMES, read } from "./compared.js";
import { target, tell } from "./table.js";

/** @import { Compared } from "./compared.js" */

const RESOLUTION = 1200;
const GRID = 600; // common places of the x axis
/** @param {Compared[]} of */
const lines = (of) =>
  of.map((job) => {
    const index = jobs.indexOf(job);
    return {
      key: job.id,
      name: job.label,
      colour: `--c-${index + 1}`,
      width: 1.75,
      dash: index % 4,
    };
  });
const others = jobs.slice(1).filter((job) => job.comparable);
const tolerance = Math.min(...others.map((job) => job.tolerance ?? Infinity));

const steps = new Series();
const spent = new Series();
const apart = new Series();
const unit = "loss, nats per token";
let axis = "minutes";
/** @param {number} value */
const roughly = (value) => (value === 0 ? "0" : decimal(value, value >= 10 ? 2 : 3));

const byStep = new Chart(figure("steps"), steps, {
  counted,
  kind: { unit, format: decimal, series: lines(jobs) },
});
const bySpent = new Chart(figure("spent"), spent, {
  counted,
  kind: {
    unit,
    format: decimal,
    x: NAMES.minutes,
    xLabel: roughly,
    isReal: true,
    series: lines(jobs),
  },
});
const byDistance = new Chart(figure("apart"), apart, {
  counted,
  limits: Number.isFinite(tolerance)
    ? [{ at: tolerance, name: `band ${decimal(tolerance, 3)}` }]
    : [],
  kind: {
    unit: "|loss \u2212 reference| / reference",
    format: (value) => decimal(value, 3),
    series: lines(others),
    withLimits: true,
  },
});
byDistance.isLog = true;
const chosen = new Series();
const metric = find("metric");
/** @type {Set<string>} */
const logged = new Set(); // keys that any of the jobs has logged
const byMetric = new Chart(figure("metric"), chosen, {
  counted,
  kind: { unit: metric.value, format: decimal, series: lines(jobs) },
});

/**
 * @param {number} from
 * @param {number} to
 */
function grid(from, to) {
  return Array.from({ length: GRID + 1 }, (_, index) => from + ((to - from) * index) / GRID);
}

/**
 * Positions on the x axis of the steps of a job's loss.
 * @param {Compared} job
 */
function places(job) {
  const { steps: at } = column(job, "loss");
  if (axis === "tokens") {
    const seen = column(job, "tokens_seen");
    return resampled(seen.steps, seen.values, at).map((value) =>
      value === null ? null : value / 1e6,
    );
  }
  const time = column(job, "time");
  const start = time.values[0];
  const scale = axis === "hours" ? job.ranks / 3600 : 1 / 60;
  return resampled(time.steps, time.values, at).map((value) =>
    value === null ? null : (value - start) * scale,
  );
}

/**
 * @param {Series} series
 * @param {string} key
 * @param {number[]} xs
 * @param {(number | null)[]} values
 */
function put(series, key, xs, values) {
  series.replace({ series: [{ key, rank: 0, steps: xs, values, min: [], max: [] }] });
}

function drawSteps() {
  const last = Math.max(...jobs.map((job) => column(job, "loss").steps.at(-1) ?? 0));
  if (!last) return;
  const common = [...new Set(grid(1, last).map(Math.round))];
  for (const job of jobs) {
    const { steps: at, values } = column(job, "loss");
    put(steps, job.id, common, resampled(at, values, common));
  }
  const reference = steps.get(jobs[0].id);
  for (const job of others) {
    const { values } = steps.get(job.id);
    put(
      apart,
      job.id,
      common,
      values.map((value, index) => {
        const against = reference.values[index];
        return value === null || against === null
          ? null
          : Math.max(Math.abs(value - against) / Math.abs(against), 1e-12);
      }),
    );
  }
  byStep.draw();
  if (others.length) byDistance.draw();
}

function drawMetric() {
  for (const job of jobs) {
    const { steps: at, values } = column(job, metric.value);
    put(chosen, job.id, at, values);
  }
  byMetric.kind.unit = metric.value;
  byMetric.plot.setAttribute("aria-label", `${metric.value} by step of every job`);
  byMetric.redraw();
  byMetric.draw();
}

// Offer the keys that the jobs have logged; the chosen one stays.
function offerKeys() {
  const keys = [...logged].sort();
  if (keys.length === metric.children.length) return;
  const before = metric.value;
  metric.replaceChildren(...keys.map((key) => make("option", { text: key, value: key })));
  metric.value = keys.includes(before) ? before : keys[0];
}

function drawSpent() {
  const found = jobs.map((job) => ({ job, xs: places(job) }));
  const last = Math.max(...found.map(({ xs }) => xs.findLast((value) => value !== null) ?? 0));
  if (!last) return;
  const common = grid(0, last);
  for (const { job, xs } of found)
    put(spent, job.id, common, resampled(xs, column(job, "loss").values, common));
  bySpent.kind.x = NAMES[axis];
  bySpent.kind.xShort = { minutes: "minutes", tokens: "M tokens", hours: NAMES.hours }[axis];
  bySpent.draw();
}

// ---- reading ----------------------------------------------------------------------------------
const KEYS = "loss,time,tokens_seen,tokens_per_s,mfu,max_active_gib";
/** @type {Map<string, string>} */
const states = new Map();
/** @type {Set<string>} */
const over = new Set(); // whose last point was read

/**
 * @param {Compared} job
 * @param {Way} way
 */
async function readOne(job, way) {
  const address = /** @type {const} */ (`/v1/jobs/${encodeURIComponent(job.id)}`);
  const shown = await askIfThere(address, way);
  if (!shown) return false;
  const { step, state, is_final: isFinal } = shown;
  const key = metric.value; // another one may be chosen meanwhile
  const stamp = `${step} ${state} ${key}`;
  if (states.get(job.id) === stamp) return false;
  const keys = encodeURIComponent(`${KEYS},${key}`);
  const found = await askIfThere(
    `${address}/metrics?keys=${keys}&rank=0&resolution=${RESOLUTION}`,
    way,
  );
  const all = await askIfThere(`${address}/metrics?rank=0&resolution=2`, way);
  if (!found || !all) return false;
  for (const one of all.series) logged.add(one.key);
  read.set(job.id, new Map(found.series.map((one) => [one.key, one])));
  states.set(job.id, stamp);
  if (isFinal && key === metric.value) over.add(job.id);
  return true;
}

/** @param {Way} way */
async function look(way) {
  if (over.size === jobs.length) return;
  const changed = await Promise.all(jobs.map((job) => readOne(job, way)));
  if (changed.some(Boolean)) {
    drawSteps();
    drawSpent();
    offerKeys();
    drawMetric();
    tell();
  }
}

// ---- controls ---------------------------------------------------------------------------------
/**
 * @param {Iterable<Element>} buttons
 * @param {Element} chosen
 */
function press(buttons, chosen) {
  for (const one of buttons) one.setAttribute("aria-pressed", String(one === chosen));
}

const scales = document.querySelectorAll("[data-y-scale]");
for (const button of scales) {
  button.addEventListener("click", () => {
    press(scales, button);
    byStep.isLog = button.dataset.yScale === "log";
    byStep.redraw();
  });
}
const axes = document.querySelectorAll("[data-x]");
for (const button of axes) {
  button.addEventListener("click", () => {
    press(axes, button);
    axis = button.dataset.x;
    spent.keys.clear();
    drawSpent();
    bySpent.redraw();
  });
}
const rows = document.querySelectorAll("[data-fields]");
/** @param {boolean} all */
function showFields(all) {
  document.querySelectorAll("[data-specs] [data-same]").forEach((row) => {
    row.hidden = !all;
  });
}
for (const button of rows) {
  button.addEventListener("click", () => {
    press(rows, button);
    showFields(button.dataset.fields === "all");
  });
}
showFields(false);
metric.addEventListener("change", () => {
  over.clear(); // all are read again, with this key
  ring(["list"], { isAsked: true });
});
target.addEventListener("input", () => {
  target.dataset.own = "yes";
  tell();
});
document.addEventListener("keydown", (event) => {
  const index = Number(event.key) - 1;
  if (
    !(index >= 0 && index < jobs.length) ||
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    event.target.closest("input, select, textarea")
  )
    return;
  for (const chart of [byStep, bySpent, byMetric]) chart.lift(jobs[index].id);
});
addEventListener("themechange", () => {
  for (const chart of [byStep, bySpent, byDistance, byMetric]) chart.redraw();
});
follow(["jobs"], look);
ring(["list"], { isAsked: true });
