// The kinds of chart on a job's page.
import { count, decimal, gib } from "../formats.js";

/**
 * A line of a chart.
 * @typedef {object} Line
 * @property {string} key
 * @property {string} name
 * @property {string} colour its place among the tokens
 * @property {number} [width]
 * @property {number} [share] of its colour, where it is faint
 * @property {number} [dash] index of a pattern
 * @property {boolean} [isSmoothed]
 * @property {boolean} [isPoints] points without a line
 * @property {boolean} [hasPoints] points on the line
 */
/**
 * An x axis: its name, and how its values are written.
 * @typedef {object} XAxis
 * @property {string} [x]
 * @property {string} [xShort]
 * @property {(place: number) => string} [xLabel]
 * @property {(place: number) => string} [xTick]
 * @property {boolean} [isReal] not only whole numbers
 * @property {number | null} [end]
 */
/**
 * A kind of chart: the unit above its y axis, its lines and how their values are written.
 * @typedef {object} OwnKind
 * @property {string} unit
 * @property {(value: number | null) => string} format
 * @property {Line[]} series
 * @property {number} [xStart]
 * @property {number} [xEnd]
 * @property {string} [band] key whose least and greatest values are shaded
 * @property {boolean} [hasFuture] shows how far there is to go
 * @property {boolean} [fromZero]
 * @property {boolean} [isStacked]
 * @property {boolean} [isOwnX] its x is never another one
 * @property {boolean} [withLimits] its log axis always shows its limits
 */
/** @typedef {OwnKind & XAxis} Kind */

export const MOMENTS = ["before_forward", "after_forward", "after_backward", "after_optimizer"];

/**
 * By the name of the chart in its page; where x is no step, with its name, its labels and its end.
 * @type {Record<string, Kind>}
 */
export const KINDS = {
  loss: {
    unit: "loss, nats per token",
    format: decimal,
    series: [
      { key: "loss", name: "train, raw", colour: "--c-1", share: 0.38, width: 1 },
      { key: "loss", name: "train, smoothed", colour: "--c-1", width: 2, isSmoothed: true },
      { key: "eval_loss", name: "held out", colour: "--c-2", isPoints: true },
    ],
    band: "loss",
    hasFuture: true,
  },
  speed: {
    unit: "tokens/s, all ranks",
    format: count,
    fromZero: true,
    band: "tokens_per_s",
    series: [{ key: "tokens_per_s", name: "measured", colour: "--c-1", width: 1.5 }],
  },
  grad: {
    unit: "norm before clipping",
    format: decimal,
    fromZero: true,
    band: "grad_norm",
    series: [{ key: "grad_norm", name: "gradient norm", colour: "--c-1", width: 1.5 }],
  },
  lr: {
    unit: "learning rate",
    format: (value) => decimal(value, 3),
    fromZero: true,
    hasFuture: true,
    series: [{ key: "lr", name: "learning rate", colour: "--c-1", width: 1.5 }],
  },
  parts: {
    unit: "s per step, profiled at step 20 and every 500th",
    format: (value) => decimal(value, 3),
    fromZero: true,
    isStacked: true,
    series: [
      // from the top of the stack
      { key: "exposed_comm_time_s", name: "waiting for others", colour: "--m-4", width: 1 },
      { key: "optimizer_time_s", name: "optimizer", colour: "--m-3", width: 1 },
      { key: "backward_time_s", name: "backward", colour: "--m-1", width: 1 },
      { key: "forward_time_s", name: "forward", colour: "--m-2", width: 1 },
    ],
  },
  phases: {
    unit: "GiB, rank 0, in the last profiled step",
    x: "moment",
    xLabel: (place) => MOMENTS[place - 1]?.replaceAll("_", " ") ?? "",
    // Four beside each other on a phone.
    xTick: (place) => MOMENTS[place - 1]?.replace("_", "\n") ?? "",
    xEnd: 4.55,
    xStart: 0.45,
    format: (value) => (Number.isFinite(value) ? gib(value) : decimal(value)),
    fromZero: true,
    isStacked: true,
    isOwnX: true,
    series: [
      { key: "rest", name: "activations and rest", colour: "--m-4", width: 1 },
      { key: "optimizer", name: "optimizer", colour: "--m-3", width: 1 },
      { key: "gradients", name: "gradients", colour: "--m-2", width: 1 },
      { key: "weights", name: "weights", colour: "--m-1", width: 1 },
    ],
  },
  gpu: {
    unit: "% of the time, rank 0",
    format: count,
    fromZero: true,
    series: [{ key: "gpu_pct", name: "GPU is busy", colour: "--c-1", width: 1.5 }],
  },
  cpu: {
    unit: "% of its threads\u2019 time, rank 0",
    format: count,
    fromZero: true,
    series: [{ key: "cpu_pct", name: "CPU is busy", colour: "--c-1", width: 1.5 }],
  },
  memory: {
    unit: "GiB, rank 0, peak so far",
    format: (value) => (Number.isFinite(value) ? gib(value) : decimal(value)),
    fromZero: true,
    series: [
      { key: "max_active_gib", name: "peak", colour: "--c-1", width: 1.5 },
      { key: "max_reserved_gib", name: "reserved", colour: "--c-2", width: 1 },
    ],
  },
  time: {
    unit: "seconds",
    format: (value) => decimal(value, 3),
    fromZero: true,
    series: [
      { key: "step_time_s", name: "step", colour: "--c-1", width: 1.5 },
      { key: "data_time_s", name: "waiting for data", colour: "--c-2", width: 1.5, dash: 1 },
    ],
  },
};
