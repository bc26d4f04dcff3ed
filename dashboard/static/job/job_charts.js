// The charts of a job's page, their x axis and their zoom.
import { Chart } from "../charts/chart.js";
import { MOMENTS } from "../charts/kinds.js";
import { resampled, Series } from "../charts/series.js";
import { decimal, gib } from "../formats.js";
import { isLive, known, recipe, series } from "./known.js";

/** @import { Axis, Limit, Range } from "../charts/chart.js" */

const unit = recipe?.unit ?? "tokens";
/** @type {Record<string, Limit[]>} */
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
      steps: isLive() ? known.job.steps : null,
      counted: unit,
      limits: limits[figure.dataset.chart],
    }),
);
const PHASES = ["weights", "gradients", "optimizer", "rest"];
// Contents of memory at the moments of the last profiled step.
const phases = new Series();

function readPhases() {
  for (const kind of PHASES) {
    MOMENTS.forEach((moment, index) => {
      const value = series.last(`${moment}_${kind}_gib`);
      if (value !== null) phases.put(kind, index + 1, value);
    });
  }
}

for (const chart of charts) if (chart.figure.dataset.chart === "phases") chart.source = phases;
const noPoints = document.querySelector("[data-no-points]");
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
/** @param {number} value */
const short = (value) => (value === 0 ? "0" : decimal(value, value >= 10 ? 2 : 3));
/** @type {Record<string, Axis>} */
const AXES = {
  step: null,
  tokens: {
    x: `million ${unit}`,
    xShort: `M ${unit}`,
    xLabel: short,
    end: recipe && (known.job.steps * recipe.tokens_per_step) / MILLION,
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
/** @type {Axis} */
let axis = AXES.step;
const axisButtons = document.querySelectorAll("[data-x]");
for (const button of axisButtons) {
  button.addEventListener("click", () => {
    for (const one of axisButtons) one.setAttribute("aria-pressed", String(one === button));
    zoom(null);
    axis = AXES[button.dataset.x];
    for (const chart of charts) chart.setAxis(axis);
  });
}

// All charts of one x are zoomed together.
const zoomOut = document.querySelector("[data-zoom-out]");
/** @type {Range | null} */
let zoomed = null;
/** @param {Range | null} range */
function zoom(range) {
  zoomed = range;
  zoomOut.hidden = !range;
  for (const chart of charts) if (!chart.kind.isOwnX) chart.zoomTo(range);
}
/** @param {Chart} chart */
function shareZoom(chart) {
  chart.onZoom = zoom;
  chart.plot.addEventListener("dblclick", () => zoom(null));
}
charts.forEach(shareZoom);
zoomOut.addEventListener("click", () => {
  zoom(null);
  lossChart.plot.focus();
});

addEventListener("themechange", () => {
  for (const chart of charts) chart.redraw();
});

/**
 * Draw a chart from now on, with the axis and the zoom of the others.
 * @param {Chart} chart
 */
export function join(chart) {
  if (charts.includes(chart)) return;
  if (!chart.u) shareZoom(chart);
  charts.push(chart);
  chart.setAxis(axis);
  chart.draw();
  chart.zoomTo(zoomed);
}

/**
 * Draw a chart no more.
 * @param {Chart} chart
 */
export function part(chart) {
  const at = charts.indexOf(chart);
  if (at >= 0) charts.splice(at, 1);
}

export function drawCharts() {
  readPhases();
  for (const chart of charts) {
    // What has no data takes no room, once that is known: until then nothing jumps.
    if (chart.figure.dataset.chart && (chart.hasData || known.isRead))
      chart.figure.hidden = !chart.hasData;
    chart.draw();
  }
  noPoints.hidden = !known.isRead || charts.some((chart) => chart.hasData);
}

// There are no more steps to come.
export function endCharts() {
  for (const chart of charts) chart.steps = null;
}
