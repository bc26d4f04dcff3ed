// The numbers of a job's page: tiles, progress and predicted finish, measurements beside the
// plan, and the track.
import { count, decimal, difference, gib, span, UNKNOWN } from "../formats.js";
import { near } from "../times.js";
import { isLive, known, lastStep, recipe, series } from "./known.js";
import { drawTrack } from "./track.js";

/**
 * @param {string} name
 * @param {string} text
 */
function put(name, text) {
  for (const one of document.querySelectorAll(`[data-tile="${name}"]`)) {
    one.textContent = text;
    // A tile whose number is not known takes no room; those beside a number stay.
    const tile = one.closest(".tile");
    if (tile && !one.closest(".d")) tile.hidden = text === UNKNOWN;
  }
}

const attemptStart = () => known.runningSince ?? Date.parse(known.job.started_at);

function usedSeconds() {
  const { job } = known;
  if (!job.started_at) return 0;
  if (job.finished_at)
    return job.used_s || (Date.parse(job.finished_at) - Date.parse(job.started_at)) / 1000;
  return job.used_s + (job.state === "running" ? (Date.now() - attemptStart()) / 1000 : 0);
}

// Over the last steps: one slow step does not move the finish.
function speed() {
  const { job } = known;
  const recent = series.get("tokens_per_s").values.slice(-20).filter(Number.isFinite);
  return recent.length
    ? recent.reduce((sum, value) => sum + value, 0) / recent.length
    : job.tokens_per_s;
}

function finishAt() {
  const { job } = known;
  if (!recipe || job.state !== "running" || !job.step || !speed()) return null;
  return Date.now() + (((job.steps - job.step) * recipe.tokens_per_step) / speed()) * 1000;
}

function outlook() {
  const { job } = known;
  if (!job.steps) return "";
  const done = `${Math.floor((100 * job.step) / job.steps)} %`;
  const finish = finishAt();
  if (!finish) return job.step ? done : "";
  const left = `${done}, ${span(Math.max(1, (finish - Date.now()) / 1000))} to go`;
  if (!job.stops_at) return left;
  const past = (finish - Date.parse(job.stops_at)) / 1000;
  if (past <= 0) return left;
  const stop = near(new Date(job.stops_at));
  const early = `${span(past)} before it would finish`;
  return `${left}; it is stopped at ${stop}, ${early}, and the work is saved`;
}

export function tell() {
  const { job } = known;
  const step = lastStep();
  document.querySelector(".tiles").hidden = !job.started_at;
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
    `waiting for data: ${dataTime === null || dataTime < 1 ? span(dataTime) : `${decimal(dataTime, 2)} s`}`,
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
  const reserved = series.last("max_reserved_gib");
  if (reserved !== null) put("reserved", `, ${gib(reserved)} reserved`);
  const retries = series.last("num_alloc_retries");
  if (retries !== null) put("full", `, full: ${count(retries)} retries, see the log`);
  if (recipe) tellPlan(memory, step);
  const percent = job.steps ? (100 * step) / job.steps : 0;
  const bar = document.querySelector("[data-progress]");
  bar.setAttribute("aria-valuenow", String(Math.floor(percent)));
  bar.querySelector("i").style.setProperty("--v", String(percent));
  document.querySelector("[data-outlook]").textContent = outlook();
  track();
}

/**
 * @param {number | null} memory
 * @param {number} step
 */
function tellPlan(memory, step) {
  const { job } = known;
  /**
   * @param {string} name
   * @param {string} text
   */
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
  document.querySelector("[data-memory-measured]").style.setProperty("--g", String(memory));
}

export function track() {
  const { job } = known;
  const box = document.querySelector("[data-track]");
  const hasTrack = Boolean(job.started_at);
  box.hidden = !hasTrack;
  // The track says it better.
  document.querySelector("[data-progress]").hidden = hasTrack || !job.steps;
  document.querySelector("[data-track-legend]").hidden = !hasTrack || !isLive();
  if (!hasTrack) return;
  drawTrack(box, {
    start: isLive() ? attemptStart() : Date.parse(job.started_at),
    now: Date.now(),
    finish: finishAt(),
    stop: job.stops_at ? Date.parse(job.stops_at) : null,
    end: job.finished_at ? Date.parse(job.finished_at) : null,
    saves: known.saves,
    isLive: isLive(),
  });
}
