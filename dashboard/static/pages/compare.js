// Several jobs over one another: loss by step and by what it cost, distance from the first one, and
// the cells of the table that only the curves know.
import { askIfThere } from "../api.js";
import { Chart } from "../charts/charts.js";
import { resampled, Series, smoothed } from "../charts/series.js";
import { count, decimal, gib, span, UNKNOWN } from "../formats.js";
import { follow } from "../lists.js";
import { ring } from "../looks.js";

const RESOLUTION = 1200;
const GRID = 600; // common places of the x axis
const jobs = JSON.parse(document.getElementById("compared").textContent);
const figure = (name) => document.querySelector(`[data-chart="${name}"]`);
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

// What was read of each job: columns by key.
const read = new Map(jobs.map((job) => [job.id, new Map()]));
const steps = new Series();
const spent = new Series();
const apart = new Series();
const unit = "loss, nats per token";
const counted = jobs[0].unit;
let axis = "minutes";
const NAMES = {
  minutes: "minutes since the first step",
  tokens: "million tokens seen",
  hours: figure("spent").querySelector("[data-x=hours]").textContent,
};
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

const column = (job, key) => read.get(job.id).get(key) ?? { steps: [], values: [] };

function grid(from, to) {
  return Array.from({ length: GRID + 1 }, (_, index) => from + ((to - from) * index) / GRID);
}

// Where on the x axis a job was at each step of its loss.
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

// ---- the table --------------------------------------------------------------------------------
const mean = (values) => {
  const finite = values.filter(Number.isFinite);
  return finite.length ? finite.reduce((sum, value) => sum + value, 0) / finite.length : null;
};

function fill(row, values, write) {
  const cells = document.querySelectorAll(`[data-row="${row}"] [data-cell]`);
  values.forEach((value, index) => {
    cells[index].textContent = value === null ? UNKNOWN : write(value);
    if (value === null) delete cells[index].dataset.v;
    else cells[index].dataset.v = value;
  });
  document.querySelector(`[data-row="${row}"]`).hidden =
    row === "mfu" && values.every((value) => value === null);
}

// Minutes until the smoothed loss is first at or below the target; null if it never was.
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

const target = document.querySelector("[data-target]");

function tell() {
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
    // What reads the same is equally good.
    const words = cells[values.indexOf(best)]?.textContent;
    const isTie = cells.every((cell) => cell.textContent === words);
    for (const cell of cells) cell.classList.toggle("best", !isTie && cell.textContent === words);
  }
  const winner = (values, write) => {
    const known = values.filter((value) => value !== null);
    if (!known.length) return UNKNOWN;
    const best = Math.min(...known);
    return `${jobs[values.indexOf(best)].label}, ${write(best)}`;
  };
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

// ---- reading ----------------------------------------------------------------------------------
const KEYS = "loss,time,tokens_seen,tokens_per_s,mfu,max_active_gib";
const states = new Map();

async function readOne(job, way) {
  const address = `/v1/jobs/${encodeURIComponent(job.id)}`;
  const shown = await askIfThere(address, way);
  if (!shown) return false;
  const { step, state } = shown;
  if (states.get(job.id) === `${step} ${state}`) return false;
  const found = await askIfThere(
    `${address}/metrics?keys=${KEYS}&rank=0&resolution=${RESOLUTION}`,
    way,
  );
  if (!found) return false;
  read.set(job.id, new Map(found.series.map((one) => [one.key, one])));
  states.set(job.id, `${step} ${state}`);
  return true;
}

const isOver = () =>
  jobs.every((job) => /(succeeded|failed|cancelled)$/.test(states.get(job.id) ?? ""));

async function look(way) {
  if (isOver()) return;
  const changed = await Promise.all(jobs.map((job) => readOne(job, way)));
  if (changed.some(Boolean)) {
    drawSteps();
    drawSpent();
    tell();
  }
}

// ---- controls ---------------------------------------------------------------------------------
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
  for (const chart of [byStep, bySpent]) chart.lift(jobs[index].id);
});
addEventListener("themechange", () => {
  for (const chart of [byStep, bySpent, byDistance]) chart.redraw();
});
follow(["jobs"], look);
ring(["list"], { isAsked: true });
