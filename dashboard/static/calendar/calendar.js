// The calendar: a week at a glance, one day by the hour, and booking by click, drag or keys. A
// stream reports the holds, and the page redraws the changed lanes. The viewer's own leases and
// the limits of the rules are read again when the stream announces a change.
import { ask } from "../api.js";
import { find } from "../elements.js";
import { Live } from "../live.js";
import { asked, reads, ring, SPREAD_MS } from "../looks.js";
import { drawAny } from "./any_start.js";
import { choose, judgeAgain } from "./booking.js";
import { drawDay } from "./day.js";
import { drawLanes } from "./lanes.js";
import { drawSizes } from "./sizes.js";
import { drawWeek } from "./week.js";
import "./feed.js";
import "./lease_actions.js";
import { readDay } from "./hatching.js";
import { HOUR_MS, midnight } from "./hours.js";
import { drawOwn, takeLeases, takeWaits } from "./own.js";
import { drawFree } from "./picking.js";
import { readBands, readForecast, readWindows } from "./rules.js";
import { board, DAYS, firstDay, nodes, shown, viewer } from "./shown.js";
import { drawUpkeep, takeUpkeep } from "./upkeep.js";

/** @import { HoldsTold } from "./board.js" */

const BESIDE_MS = 2000; // others' bookings change little of what one may do, and come by the dozen
const BESIDE_SPREAD_MS = 8000;
const BACK_MS = 1000; // within which a new line tells what was missed
// After a server was away, all pages come back, and show the board as it is.
const BACK_SPREAD_MS = 8000;
const DAY_MS = 24 * HOUR_MS;
const MINUTE_MS = 60_000;

/** @type {Set<string>} */
const beside = new Set(); // nodes on which others' hours changed, in or beside the shown day
/** @type {string} */
let version = null; // of what the stream told last
let cameBackAt = -Infinity;

// ---- drawing ------------------------------------------------------------------------------------
function drawGrids() {
  drawWeek();
  drawDay();
  drawAny();
}

/** @param {() => void} [part] */
function draw(part = drawGrids) {
  if (board.isKnown) drawFree(part, drawGrids);
}

// ---- reading ------------------------------------------------------------------------------------
reads("own", async (way) => {
  const [leases, jobs, waits, upkeep] = await Promise.all([
    ask("/v1/leases?state=booked&state=active&state=ending&limit=200", way),
    ask("/v1/jobs?state=queued&state=starting&state=running&state=paused&limit=100", way),
    ask("/v1/waitlist?limit=50", way),
    viewer.is_staff ? ask("/v1/maintenance?limit=50", way) : { data: [] },
  ]);
  takeLeases(leases.data);
  takeWaits(waits.data);
  takeUpkeep(upkeep.data);
  shown.jobs = jobs.data;
  drawFree(drawOwn);
  drawFree(drawUpkeep);
  draw();
});

reads("day", async (way) => {
  beside.clear();
  await readDay(way);
  draw(shown.sizes.size ? drawGrids : drawDay);
});

reads("beside", async (way) => {
  const names = nodes()
    .map((node) => node.name)
    .filter((name) => beside.has(name) && board.isBookable(name));
  beside.clear();
  if (!names.length) return;
  try {
    await readDay(way, names);
  } catch (error) {
    for (const name of names) beside.add(name);
    throw error;
  }
  draw(drawDay);
});

reads("rules", async (way) => {
  await Promise.all([readBands(way), readWindows(way), readForecast(way), judgeAgain(way)]);
  draw();
});

// ---- what the stream tells ----------------------------------------------------------------------
/** @param {{ whole: boolean, version: string, nodes: HoldsTold[] }} told */
function takeHolds(told) {
  const isFirst = !board.isKnown;
  const hasMissed = told.whole && version !== null && version !== told.version;
  version = told.version;
  const found = board.take(told);
  draw(isFirst ? drawGrids : () => drawLanes(new Set(found.keys())));
  // Own leases tell a node's state.
  if (shown.leases.some((lease) => found.has(lease.node))) drawFree(drawOwn);
  if (hasMissed) ring(["own", "day", "rules"], { spread: BACK_SPREAD_MS });
  if (isFirst || hasMissed) return;
  // Gaps to what is beside count.
  const [first, last] = [shown.day.getTime() - DAY_MS, midnight(shown.day, 2).getTime()];
  for (const [name, { differs }] of found) if (differs(first, last)) beside.add(name);
  if (beside.size) ring(["beside"], { after: BESIDE_MS, spread: BESIDE_SPREAD_MS });
}

/** @param {number} usual */
const spreadOf = (usual) => (performance.now() < cameBackAt + BACK_MS ? BACK_SPREAD_MS : usual);

new Live("/v1/leases/stream", {
  on: {
    holds: takeHolds,
    own: ({ version: told }) => {
      version = told;
      ring(["own", "day"], { spread: spreadOf(0) });
    },
    rules: ({ version: told }) => {
      version = told;
      ring(["rules", "day"], { spread: spreadOf(SPREAD_MS) });
    },
  },
  onBack: () => {
    cameBackAt = performance.now();
  },
});

ring(["own", "day", "rules"], { isAsked: true });

// The time goes on by itself; at a new hour all pages would ask at once.
let hour = Math.floor(Date.now() / HOUR_MS);
setInterval(() => {
  if (document.hidden) return;
  draw();
  const now = Math.floor(Date.now() / HOUR_MS);
  if (now !== hour) ring(["day"], { spread: MINUTE_MS });
  hour = now;
}, MINUTE_MS);

// ---- which days ---------------------------------------------------------------------------------
/**
 * Draw the shown day, and ask what the viewer may do in it.
 * @param {boolean} isOtherWeek
 */
async function turn(isOtherWeek) {
  shown.refused = new Map();
  draw();
  document.querySelector("[data-week='-1']").disabled = shown.week === 0;
  try {
    await asked(() => Promise.all([readDay(), isOtherWeek && readBands()]));
    draw();
  } catch (error) {
    if (error.name === "AbortError") return; // another day was chosen
    const wait = error.waitMs ?? 0;
    ring(isOtherWeek ? ["day", "rules"] : ["day"], { after: wait, spread: wait, isAsked: true });
  }
}

/** @param {number | null} gpus */
async function chooseSize(gpus) {
  const { pick } = shown;
  shown.gpus = gpus;
  drawSizes();
  await turn(false);
  if (pick && shown.pick === pick) choose(pick.node, pick.start, pick.hours);
}

/** @param {Date} date */
function showDay(date) {
  shown.day = midnight(date);
  const apart = Math.max(
    0,
    Math.floor((shown.day.getTime() - midnight(new Date()).getTime()) / (DAYS * DAY_MS) + 1e-6),
  );
  const isOtherWeek = apart !== shown.week;
  shown.week = apart;
  return turn(isOtherWeek);
}

for (const button of document.querySelectorAll("[data-week]")) {
  button.addEventListener("click", () => {
    const by = Number(button.dataset.week);
    shown.week = by === 0 ? 0 : Math.max(0, shown.week + by);
    shown.day = firstDay();
    turn(true);
  });
}
document.querySelector("[data-week='-1']").disabled = true;
find("class")?.addEventListener("change", () => draw());

document.addEventListener("click", (event) => {
  /** @param {string} name */
  const at = (name) => event.target.closest(`[data-${name}]`);
  if (at("pick-next")) {
    const start = Number(at("pick-next").dataset.pickNext);
    showDay(new Date(start));
    choose(shown.pick.node, start, shown.pick.hours);
  }
  if (at("day")) showDay(new Date(Number(at("day").dataset.day)));
  if (at("size")) chooseSize(Number(at("size").dataset.size) || null);
  if (at("open")) {
    const { open } = at("open").dataset;
    if (!shown.opened.delete(open)) shown.opened.add(open);
    draw(drawDay);
  }
});
