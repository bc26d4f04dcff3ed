// One job, alive: tiles, track, charts and logs from the API's stream; head, events and history are
// asked for again when something happened.
import { askIfThere } from "../api.js";
import { Chart, MOMENTS } from "../charts/charts.js";
import { resampled, Series } from "../charts/series.js";
import { dropSubmitted } from "../draft.js";
import { count, decimal, difference, gib, span, UNKNOWN } from "../formats.js";
import { Live } from "../live.js";
import { reads, redraw, ring, SPREAD_MS } from "../looks.js";
import { announce } from "../page.js";
import { near } from "../times.js";
import { Logs } from "./logs.js";
import { Ranks } from "./ranks.js";
import { drawTrack } from "./track.js";

const RESOLUTION = 1500;
const MOST_POINTS = 4 * RESOLUTION; // then the curves are read again, down-sampled
const DRAW_EVERY_MS = 200;
const FINAL = new Set(["succeeded", "failed", "cancelled"]);
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const put = (name, text) =>
  document.querySelectorAll(`[data-tile="${name}"]`).forEach((one) => {
    one.textContent = text;
  });

dropSubmitted();
let job = read("job-document");
const saves = read("checkpoint-times").map((one) => Date.parse(one.created_at));
const series = new Series();
const address = `/v1/jobs/${encodeURIComponent(job.id)}`;
const isLive = () => !FINAL.has(job.state);
const wasOver = !isLive(); // then what the server has drawn is the last of it

// ---- charts -----------------------------------------------------------------------------------
// A recipe says beforehand how far it goes, how fast counts and what it may hold; a program, or a job
// that this version can't read, does not.
const recipe =
  job.spec.training && job.plan.needed_gib !== undefined
    ? { ...job.plan, maxGradNorm: job.spec.training.max_grad_norm }
    : null;
const unit = recipe?.unit ?? "tokens";
const limits = recipe
  ? {
      grad: [{ at: recipe.maxGradNorm, name: `max_grad_norm ${recipe.maxGradNorm}` }],
      memory: [
        { at: recipe.capacity_gib, name: `limit ${gib(recipe.capacity_gib)}` },
        { at: recipe.needed_gib, name: `plan ${gib(recipe.needed_gib)}`, isPlan: true },
      ],
    }
  : {};
const charts = [...document.querySelectorAll("[data-chart]")].map(
  (figure) =>
    new Chart(figure, series, {
      steps: isLive() ? job.steps : null,
      counted: unit,
      limits: limits[figure.dataset.chart],
    }),
);
const PHASES = ["weights", "gradients", "optimizer", "rest"];
const phases = new Series(); // what memory held at the moments of the last step that was looked into

function readPhases() {
  for (const kind of PHASES) {
    MOMENTS.forEach((moment, index) => {
      const value = series.last(`${moment}_${kind}_gib`);
      if (value !== null) phases.put(kind, index + 1, value);
    });
  }
}

for (const chart of charts) if (chart.figure.dataset.chart === "phases") chart.source = phases;
const lossChart = charts.find((chart) => chart.figure.dataset.chart === "loss");

document.querySelector("[data-smoothing]").addEventListener("input", (event) => {
  lossChart.weight = Number(event.target.value) / 100;
  lossChart.draw();
});
for (const button of document.querySelectorAll("[data-y-scale]")) {
  button.addEventListener("click", () => {
    lossChart.isLog = button.dataset.yScale === "log";
    for (const one of document.querySelectorAll("[data-y-scale]"))
      one.setAttribute("aria-pressed", String(one === button));
    lossChart.redraw();
  });
}
// ---- x axis and zoom ---------------------------------------------------------------------------
const MILLION = 1e6;
const short = (value) => (value === 0 ? "0" : decimal(value, value >= 10 ? 2 : 3));
const AXES = {
  step: null,
  tokens: {
    x: `million ${unit}`,
    xShort: `M ${unit}`,
    xLabel: short,
    end: recipe && (job.steps * recipe.tokens_per_step) / MILLION,
    places: (steps) => {
      const seen = series.get("tokens_seen");
      return resampled(seen.steps, seen.values, steps).map((value) =>
        value === null ? null : value / MILLION,
      );
    },
  },
  time: {
    x: "minutes since the first step",
    xShort: "minutes",
    xLabel: short,
    places: (steps) => {
      const time = series.get("time");
      return resampled(time.steps, time.values, steps).map((value) =>
        value === null ? null : (value - time.values[0]) / 60,
      );
    },
  },
};
const axisButtons = document.querySelectorAll("[data-x]");
for (const button of axisButtons) {
  button.addEventListener("click", () => {
    for (const one of axisButtons) one.setAttribute("aria-pressed", String(one === button));
    zoom(null);
    for (const chart of charts) chart.setAxis(AXES[button.dataset.x]);
  });
}

// All charts of one x are zoomed together.
const zoomOut = document.querySelector("[data-zoom-out]");
function zoom(range) {
  zoomOut.hidden = !range;
  for (const chart of charts) if (!chart.kind.isOwnX) chart.zoomTo(range);
}
for (const chart of charts) {
  chart.onZoom = zoom;
  chart.plot.addEventListener("dblclick", () => zoom(null));
}
zoomOut.addEventListener("click", () => {
  zoom(null);
  lossChart.plot.focus();
});

addEventListener("themechange", () => {
  for (const chart of charts) chart.redraw();
});

let drawing = 0;
function draw() {
  clearTimeout(drawing);
  drawing = 0;
  readPhases();
  for (const chart of charts) chart.draw();
  tell();
}

function drawSoon() {
  drawing ||= setTimeout(() => {
    draw();
    if (series.get("loss").steps.length > MOST_POINTS) ring(["metrics"]);
  }, DRAW_EVERY_MS);
}

// ---- tiles, outlook, track --------------------------------------------------------------------
// When the present attempt began to run, from the newest event that says so.
let runningSince = null;
const attemptStart = () => runningSince ?? Date.parse(job.started_at);

function usedSeconds() {
  if (!job.started_at) return 0;
  if (job.finished_at)
    return job.used_s || (Date.parse(job.finished_at) - Date.parse(job.started_at)) / 1000;
  return job.used_s + (job.state === "running" ? (Date.now() - attemptStart()) / 1000 : 0);
}

// Over the last steps: one slow step does not move the finish.
function speed() {
  const recent = series.get("tokens_per_s").values.slice(-20).filter(Number.isFinite);
  return recent.length
    ? recent.reduce((sum, value) => sum + value, 0) / recent.length
    : job.tokens_per_s;
}

function finishAt() {
  if (!recipe || job.state !== "running" || !job.step || !speed()) return null;
  return Date.now() + (((job.steps - job.step) * recipe.tokens_per_step) / speed()) * 1000;
}

function outlook() {
  if (!job.steps) return "";
  const done = `${Math.floor((100 * job.step) / job.steps)} %`;
  const finish = finishAt();
  if (!finish) return job.step ? done : "";
  const left = `${done}, ${span(Math.max(1, (finish - Date.now()) / 1000))} to go`;
  if (!job.stops_at) return left;
  const past = (finish - Date.parse(job.stops_at)) / 1000;
  if (past <= 0) return left;
  return `${left}; it is stopped at ${near(new Date(job.stops_at))}, ${span(past)} before it would finish, and the work is saved`;
}

function tell() {
  const step = Math.max(job.step, series.get("loss").steps.at(-1) ?? 0);
  put("step", count(step));
  put("loss", decimal(series.last("loss") ?? job.loss));
  put("speed", count(series.last("tokens_per_s") ?? job.tokens_per_s));
  put("grad", decimal(series.last("grad_norm")));
  put("lr", decimal(series.last("lr"), 3));
  const mfu = series.last("mfu");
  if (mfu !== null) put("mfu", `MFU ${decimal(mfu, 3)} %`);
  put("used", span(Math.round(usedSeconds())));
  const stepTime = series.last("step_time_s");
  put("step-time", stepTime === null ? UNKNOWN : `${decimal(stepTime, 3)} s`);
  const dataTime = series.last("data_time_s");
  put(
    "data-time",
    `waiting for data: ${dataTime === null ? UNKNOWN : `${decimal(dataTime, 2)} s`}`,
  );
  const held = series.get("eval_loss");
  const right = series.last("eval_accuracy");
  const accuracy = right === null ? "" : `, ${decimal(100 * right, 3)} % right`;
  if (held.steps.length)
    put(
      "eval",
      `held out ${decimal(held.values.at(-1))}${accuracy} at ${count(held.steps.at(-1))}`,
    );
  const memory = series.last("max_active_gib");
  put("memory", memory === null ? UNKNOWN : gib(memory));
  if (recipe) tellPlan(memory, step);
  const percent = job.steps ? (100 * step) / job.steps : 0;
  const bar = document.querySelector("[data-progress]");
  bar.setAttribute("aria-valuenow", Math.floor(percent));
  bar.firstElementChild.style.setProperty("--v", percent);
  document.querySelector("[data-outlook]").textContent = outlook();
  track();
}

function tellPlan(memory, step) {
  const to = (name, text) => {
    document.querySelector(`[${name}]`).textContent = text;
  };
  to('data-difference="steps"', isLive() ? UNKNOWN : difference(step, job.steps));
  to(
    'data-difference="time"',
    job.finished_at ? difference(usedSeconds(), job.wall_time_s) : UNKNOWN,
  );
  if (memory === null) return;
  to('data-measured="memory"', gib(memory));
  to('data-difference="memory"', difference(memory, recipe.needed_gib));
  to("data-memory-sum", `${gib(memory)}`);
  document.querySelector("[data-memory-measured]").style.setProperty("--g", memory);
}

function track() {
  const box = document.querySelector("[data-track]");
  const hasTrack = Boolean(job.started_at);
  box.hidden = !hasTrack;
  document.querySelector("[data-progress]").hidden = hasTrack || !job.steps; // the track says it better
  document.querySelector("[data-track-legend]").hidden = !hasTrack || !isLive();
  if (!hasTrack) return;
  drawTrack(box, {
    start: isLive() ? attemptStart() : Date.parse(job.started_at),
    now: Date.now(),
    finish: finishAt(),
    stop: job.stops_at ? Date.parse(job.stops_at) : null,
    end: job.finished_at ? Date.parse(job.finished_at) : null,
    saves,
    isLive: isLive(),
  });
}

// ---- what happened ----------------------------------------------------------------------------
const BURST_MS = 150; // what belongs together is told within it
const REST_MS = 1000; // few look at one job
for (const id of ["head", "events-box", "history"])
  reads(id, (way) => redraw(id, way), { rest: REST_MS });
const refresh = (...ids) => ring(ids, { after: BURST_MS });

function takeJob(document_) {
  const before = job;
  job = document_;
  if (!isLive())
    charts.forEach((chart) => {
      chart.steps = null;
    });
  if (before.state !== job.state) announce(`${job.name}: ${job.state}. ${job.reason}`);
  const isSame = ["state", "reason", "desired", "epoch", "node", "predicted_start"].every(
    (key) => before[key] === job[key],
  );
  if (!isSame) refresh("head", "history", "events-box");
  drawSoon();
}

// The page was drawn with all events up to this one; the stream begins with all of them again.
let lastEvent = Number(document.getElementById("event-list").dataset.last);

function takeEvent(event) {
  if (event.to_state === "running") runningSince = Date.parse(event.at);
  if (event.id <= lastEvent) return;
  lastEvent = event.id;
  if (event.kind.includes("checkpoint")) saves.push(Date.parse(event.at));
  refresh("events-box", "history");
  if (event.kind === "certified") refresh("head");
}

reads("metrics", async (way) => {
  const found = await askIfThere(`${address}/metrics?resolution=${RESOLUTION}&rank=0`, way);
  if (!found) return;
  series.replace(found);
  draw();
  ring(["ranks"]);
});

// ---- ranks --------------------------------------------------------------------------------------
const RANKS_EVERY_MS = 5000;
const rankCard = document.querySelector("[data-ranks]");
const ranks = rankCard && new Ranks(rankCard, address);
reads(
  "ranks",
  async (way) => {
    await ranks?.read(
      way,
      Math.max(job.step, series.get("loss").steps.at(-1) ?? 0),
      series.last("step_time_s"),
    );
    const preflight = series.last("preflight_ms");
    if (rankCard && preflight !== null)
      rankCard.querySelector("[data-preflight]").textContent =
        `Collectives checked before step 1, in ${span(preflight / 1000)}.`;
  },
  { rest: RANKS_EVERY_MS },
);
addEventListener("rankchosen", (event) => {
  logs.choose(event.detail);
  document.getElementById("logs").scrollIntoView();
});

const logs = new Logs(document.querySelector(".logs"), `${address}/logs`);
reads("logs", (way) => logs.read(way), { rest: REST_MS });

tell();
// What the server has drawn is painted first; then points, logs and the stream are asked for.
const start = () => {
  ring(["metrics"], { isAsked: true });
  logs.read();
  new Live(`${address}/stream`, {
    on: {
      job: takeJob,
      event: takeEvent,
      metrics: ({ lines }) => {
        for (const line of lines) series.add(line);
        drawSoon();
        ring(["ranks"]);
      },
      log: ({ lines }) => logs.add(lines),
      end: (document_) => {
        takeJob(document_);
        if (!wasOver) refresh("head", "history", "events-box");
      },
    },
    onBack: (isResumed) => {
      const missed = isResumed ? [] : ["metrics", "logs"];
      ring(["head", "history", "events-box", ...missed], { spread: SPREAD_MS });
    },
  });
};
if (document.hidden)
  start(); // nothing is painted there
else requestAnimationFrame(() => setTimeout(start));
setInterval(() => {
  if (isLive()) tell();
}, 1000);
new ResizeObserver(track).observe(document.querySelector("[data-track]").parentElement);
