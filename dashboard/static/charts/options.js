// Options of uPlot for a chart: lines, axes, scales and hooks.
import { decimal, ticks } from "../formats.js";
import { annotate, css, faint, shadeFuture } from "./drawing.js";
import { decades, labelWidth, powers } from "./scales.js";

/** @import { Chart } from "./chart.js" */
/** @import { Line } from "./kinds.js" */

const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];

/**
 * @param {Chart} chart
 * @param {Line} one
 * @returns {uPlot.Series}
 */
function lineOptions(chart, one) {
  const isBehind = chart.lifted && chart.lifted !== one.key;
  const colour =
    one.share || isBehind ? faint(css(one.colour), isBehind ? 0.25 : one.share) : css(one.colour);
  const shared = {
    stroke: colour,
    spanGaps: false,
    points: { show: false },
    ...(chart.kind.isStacked ? { fill: colour } : {}),
  };
  if (one.isPoints)
    return {
      ...shared,
      width: 0,
      paths: () => null,
      points: { show: true, size: 7, width: 2, stroke: colour, fill: css("--surface") },
    };
  const points = {
    show: true,
    filter: one.hasPoints ? undefined : alone,
    size: 7,
    width: 2,
    stroke: colour,
    fill: css("--surface"),
  };
  return {
    ...shared,
    points,
    width: one.width * (chart.lifted === one.key ? 1.6 : 1),
    dash: DASHES[one.dash ?? 0],
  };
}

/**
 * Places of the values without a neighbour: alone they make no line.
 * @param {uPlot} u
 * @param {number} series
 */
export function alone(u, series) {
  const values = u.data[series];
  const places = [];
  for (let at = 0; at < values.length; at++)
    if (values[at] != null && values[at - 1] == null && values[at + 1] == null) places.push(at);
  return places;
}

/**
 * @param {Chart} chart
 * @returns {uPlot.Options}
 */
export function plotOptions(chart) {
  const bands = chart.kind.band
    ? [
        {
          series: /** @type {[number, number]} */ ([
            chart.kind.series.length + 1,
            chart.kind.series.length + 2,
          ]),
          fill: css("--band"),
        },
      ]
    : [];
  const edges = chart.kind.band
    ? [{}, {}].map(() => ({ width: 0, stroke: "transparent", points: { show: false } }))
    : [];
  const font = `${parseFloat(css("--text-xs")) * 16}px ${css("--font")}`;
  const lines = chart.kind.series.map((one) => lineOptions(chart, one));
  return {
    width: chart.plot.clientWidth,
    height: chart.plot.clientHeight,
    padding: [24, 20, 0, 0], // half of the last label stands out on the right
    legend: { show: false },
    cursor: {
      sync: { key: chart.x.x, setSeries: false, scales: ["x", null] },
      drag: { setScale: false, x: !chart.kind.isOwnX, y: false },
      points: { size: 7 },
      y: false,
    },
    scales: {
      x: { time: false, range: (_, min, max) => chart.reach(min, max) },
      y: {
        distr: chart.isLog ? 3 : 1,
        range: (_, min, max) =>
          chart.isLog ? decades(min, max, chart.limits, chart.kind) : chart.span(min, max),
      },
    },
    axes: [
      {
        stroke: css("--axis"),
        font,
        grid: { show: false },
        ticks: { stroke: css("--line-2"), size: 4, width: 1 },
        gap: 4,
        size: chart.kind.xTick ? 42 : 34,
        space: 60,
        values: (_, splits) =>
          splits.map((value) =>
            chart.x.isReal || Number.isInteger(value)
              ? (chart.x.xTick ?? chart.x.xLabel)(value)
              : "",
          ),
      },
      {
        stroke: css("--axis"),
        font,
        grid: { stroke: css("--grid"), width: 1 },
        ticks: { show: false },
        gap: 6,
        space: 34,
        splits: chart.isLog ? (_u, _axis, min, max) => powers(min, max) : undefined,
        values: (_u, splits, _axis, _space, step) =>
          chart.isLog
            ? splits.map((value) =>
                value === null
                  ? ""
                  : value >= 1
                    ? value.toLocaleString("en-US")
                    : decimal(value, 3),
              )
            : ticks(splits, step),
        size: (u, values) => labelWidth(u, values, font),
      },
    ],
    series: [{}, ...lines, ...edges],
    bands,
    hooks: {
      drawClear: [(u) => shadeFuture(chart, u)],
      draw: [(u) => annotate(chart, u, font)],
      setCursor: [(u) => chart.tell(u.cursor.idx)],
      setSelect: [(u) => chart.selected(u)],
    },
  };
}
