// Ranges and labels of the y axis.
import { scaled } from "./drawing.js";

/** @import { Kind } from "./kinds.js" */
/** @import { Limit } from "./chart.js" */

/**
 * From decade to decade, so that it moves seldom.
 * @param {number} min
 * @param {number} max
 * @param {Limit[]} limits
 * @param {Kind} kind
 * @returns {[number, number]}
 */
export function decades(min, max, limits, kind) {
  const shown = kind.withLimits ? limits.map((limit) => limit.at) : [];
  const low = Math.min(...[min, ...shown].filter((value) => value > 0));
  const high = Math.max(...[max, ...shown].filter((value) => value > 0));
  if (!(low > 0) || !Number.isFinite(low)) return [0.1, 1];
  const from = 10 ** Math.floor(Math.log10(low));
  const to = 10 ** Math.ceil(Math.log10(high));
  return to / from > 10 || kind.withLimits
    ? [from, Math.max(to, from * 10)]
    : [low * 0.97, high * 1.03];
}

/**
 * Powers of ten on a log axis; where there are too few, also their doubles and fives.
 * @param {number} min
 * @param {number} max
 */
export function powers(min, max) {
  const decades = Math.log10(max / min);
  const every = Math.max(1, Math.round(decades / 5));
  const factors = decades < 2.5 ? [1, 2, 5] : [1];
  const found = [];
  for (
    let power = Math.floor(Math.log10(min));
    power <= Math.ceil(Math.log10(max));
    power += every
  ) {
    for (const factor of factors) found.push(factor * 10 ** power);
  }
  return found.filter((value) => value >= min * 0.999 && value <= max * 1.001);
}

/**
 * Width of the longest label; uPlot's own 50 px cut "52,000" to "2,000".
 * @param {uPlot} u
 * @param {string[]} values
 * @param {string} font
 */
export function labelWidth(u, values, font) {
  if (!values?.length) return 30;
  u.ctx.save();
  const scale = devicePixelRatio || 1;
  u.ctx.font = scaled(font);
  const widest = Math.max(...values.map((value) => u.ctx.measureText(value ?? "").width));
  u.ctx.restore();
  return Math.ceil(widest / scale) + 12;
}
