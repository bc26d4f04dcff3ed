// The page of one job, live: tiles, track, charts and logs from the API's stream. Head, events
// and history are requested again after each change.
import { askIfThere } from "../api.js";
import { dropSubmitted } from "../draft.js";
import { span } from "../formats.js";
import { Live } from "../live.js";
import { reads, redraw, ring, SPREAD_MS } from "../looks.js";
import { announce } from "../page.js";
import { drawCharts, endCharts } from "./job_charts.js";
import { address, isLive, known, lastStep, series } from "./known.js";
import { drawLogged } from "./logged.js";
import { Logs } from "./logs.js";
import { Ranks } from "./ranks.js";
import { showInTab, tellEnd } from "./tab.js";
import { openTabOf } from "./tabs.js";
import { tell, track } from "./tiles.js";

/** @import { EventView, JobView, LogLine } from "trainyard-api" */

const RESOLUTION = 1500;
const MOST_POINTS = 4 * RESOLUTION; // then the curves are read again, down-sampled
const DRAW_EVERY_MS = 200;

dropSubmitted();
const wasOver = !isLive(); // then what the server has drawn is the last of it

let drawing = 0;
function draw() {
  clearTimeout(drawing);
  drawing = 0;
  drawLogged();
  drawCharts();
  tell();
  showInTab();
}

function drawSoon() {
  drawing ||= setTimeout(() => {
    draw();
    if (series.get("loss").steps.length > MOST_POINTS) ring(["metrics"]);
  }, DRAW_EVERY_MS);
}

// ---- what happened ----------------------------------------------------------------------------
const BURST_MS = 150; // what belongs together is told within it
const REST_MS = 1000; // few look at one job
for (const id of ["head", "lead", "events-box", "history"])
  reads(id, (way) => redraw(id, way), { rest: REST_MS });
/** @type {(keyof JobView)[]} */
const HEAD = [
  "state",
  "reason",
  "desired",
  "epoch",
  "node",
  "predicted_start",
  "report_when_ended",
  "report",
];
/** @param {string[]} ids */
const refresh = (...ids) => ring(ids, { after: BURST_MS });
// Only a job that has ended opens with its failure or its result.
const past = () => [...(isLive() ? [] : ["lead"]), "history", "events-box"];

/** @param {JobView} job */
function takeJob(job) {
  const before = known.job;
  known.job = job;
  if (!isLive()) endCharts();
  if (before.state !== job.state) announce(`${job.name}: ${job.state}. ${job.reason}`);
  const isSame = HEAD.every((key) => before[key] === job[key]);
  if (!isSame) refresh("head", ...past());
  drawSoon();
}

// The page was drawn with all events up to this one; the stream begins with all of them again.
let lastEvent = Number(document.getElementById("event-list").dataset.last);

/** @param {EventView} event */
function takeEvent(event) {
  if (event.to_state === "running") known.runningSince = Date.parse(event.at);
  if (event.id <= lastEvent) return;
  lastEvent = event.id;
  if (event.kind.includes("checkpoint")) known.saves.push(Date.parse(event.at));
  refresh(...past());
  if (event.kind === "certified") refresh("head");
}

reads("metrics", async (way) => {
  const found = await askIfThere(`${address}/metrics?resolution=${RESOLUTION}&rank=0`, way);
  if (!found) return;
  known.isRead = true;
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
    await ranks?.read(way, lastStep(), series.last("step_time_s"));
    const preflight = series.last("preflight_ms");
    if (rankCard && preflight !== null)
      rankCard.querySelector("[data-preflight]").textContent =
        `Collectives checked before step 1, in ${span(preflight / 1000)}.`;
  },
  { rest: RANKS_EVERY_MS },
);
addEventListener("rankchosen", (event) => {
  logs.choose(/** @type {CustomEvent<string>} */ (event).detail);
  openTabOf(document.querySelector("[data-log]"));
});

const logs = new Logs(document.querySelector(".logs"), /** @type {const} */ (`${address}/logs`));
reads("logs", (way) => logs.read(way), { rest: REST_MS });

tell();
showInTab();
// The server's own drawing is painted first; then points, logs and the stream are requested.
const start = () => {
  ring(["metrics"], { isAsked: true });
  logs.start();
  new Live(`${address}/stream`, {
    on: {
      job: takeJob,
      event: takeEvent,
      metrics: (/** @type {{ lines: { step?: number }[] }} */ { lines }) => {
        for (const line of lines) series.add(line);
        drawSoon();
        ring(["ranks"]);
      },
      log: (/** @type {{ lines: LogLine[] }} */ { lines }) => logs.add(lines),
      end: (/** @type {JobView} */ job) => {
        takeJob(job);
        if (!wasOver) tellEnd();
        if (!wasOver) refresh("head", ...past());
      },
    },
    onBack: (isResumed) => {
      const missed = isResumed ? [] : ["metrics", "logs"];
      ring(["head", ...past(), ...missed], { spread: SPREAD_MS });
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
