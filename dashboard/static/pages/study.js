// The page of one study, live: speed-ups and loss curves of its jobs. The table is requested
// again after each change.
import { askIfThere } from "../api.js";
import { Chart } from "../charts/chart.js";
import { Series } from "../charts/series.js";
import { count, decimal } from "../formats.js";
import { reads, ring } from "../looks.js";
import { announce } from "../page.js";
import { watch } from "../watch.js";

/** @import { StudyReport } from "trainyard-api" */

const RESOLUTION = 1000;
const COLOURS = 6;

/** @type {StudyReport} */
let study = JSON.parse(document.getElementById("study-document").textContent);
const hasSchedules = study.kind === "schedules";
/** @param {string} name */
const figure = (name) => document.querySelector(`[data-chart="${name}"]`);
/** @param {number} index */
const colour = (index) => `--c-${(index % COLOURS) + 1}`;

// ---- speed-up -----------------------------------------------------------------------------------
const places = study.points.map((point, index) => (hasSchedules ? index + 1 : point.ranks));
const speedUps = new Series();
const speedUpChart = new Chart(figure("speed-up"), speedUps, {
  kind: {
    unit: "times as fast",
    x: hasSchedules ? "schedule" : "ranks",
    xLabel: hasSchedules ? (place) => study.points[place - 1]?.label ?? "" : count,
    xEnd: Math.max(...places) + 0.5,
    format: (value) => decimal(value, 3),
    fromZero: true,
    series: [
      { key: "measured", name: "measured", colour: "--c-1", width: 2, hasPoints: true },
      {
        key: "expected",
        name: hasSchedules ? "predicted by the bubbles" : "ideal",
        colour: "--text-3",
        width: 1.5,
        dash: 2,
        hasPoints: hasSchedules,
      },
    ],
  },
});

function drawSpeedUps() {
  study.points.forEach((point, index) => {
    speedUps.put("measured", places[index], point.speed_up);
    speedUps.put("expected", places[index], point.expected_speed_up);
  });
  if (study.points.some((point) => point.speed_up !== null)) speedUpChart.draw();
}

// ---- loss curves --------------------------------------------------------------------------------
const curves = new Series();
const curveChart = new Chart(figure("curves"), curves, {
  steps: study.jobs[0].steps,
  kind: {
    unit: "loss, nats per token",
    format: decimal,
    hasFuture: false,
    // Equal curves lie on one another: the first is drawn wide, so that it shows below the others.
    series: study.jobs.map((job, index) => ({
      key: job.job,
      name: job.label,
      colour: colour(index),
      width: index ? 1.5 : 4,
      share: index ? undefined : 0.38,
      dash: index % 3,
    })),
  },
});
/** @type {Map<string, string>} */
const drawn = new Map(); // job -> the step up to which its curve was read

reads("curves", async (way) => {
  const due = study.jobs.filter(
    (job) => job.step > 0 && drawn.get(job.job) !== `${job.step} ${job.state}`,
  );
  await Promise.all(
    due.map(async (job) => {
      const found = await askIfThere(
        `/v1/jobs/${encodeURIComponent(job.job)}/metrics?keys=loss&rank=0&resolution=${RESOLUTION}`,
        way,
      );
      if (!found) return;
      curves.replace({ series: found.series.map((one) => ({ ...one, key: job.job })) });
      drawn.set(job.job, `${job.step} ${job.state}`);
    }),
  );
  if (due.length) curveChart.draw();
});

// ---- live ---------------------------------------------------------------------------------------
/**
 * @param {StudyReport} now
 * @param {StudyReport} before
 */
function heard(now, before) {
  study = now;
  study.jobs.forEach((job, index) => {
    if (job.state !== before.jobs[index].state)
      announce(`${job.label}: ${job.state}. ${job.reason}`);
  });
  drawSpeedUps();
  ring(["curves"]);
}

addEventListener("themechange", () => {
  for (const chart of [speedUpChart, curveChart]) chart.redraw();
});
drawSpeedUps();
watch(`/v1/studies/${encodeURIComponent(study.id)}`, "study", study, heard);
