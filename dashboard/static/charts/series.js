// The curves of a job: for each key, values by step. A step that ran twice has its last value.

/** @import { Series as Answered } from "trainyard-api" */

/** @typedef {(number | null)[]} Values */
/** @typedef {{ steps: number[], values: Values }} Column */
/** @typedef {Column & { min: Values, max: Values }} Points */
/** @typedef {[number[], ...Values[]]} Table */
export class Series {
  constructor() {
    /** @type {Map<string, Points>} */
    this.keys = new Map(); // by key; sorted by step
  }

  /**
   * @param {string} key
   * @returns {Points}
   */
  get(key) {
    return this.keys.get(key) ?? { steps: [], values: [], min: [], max: [] };
  }

  /**
   * @param {string} key
   * @returns {number | null}
   */
  last(key) {
    return this.get(key).values.at(-1) ?? null;
  }

  /**
   * Take the answer of GET .../metrics. Newer points that came live meanwhile are kept.
   * @param {{ series: Omit<Answered, "points">[] }} answer
   */
  replace(answer) {
    for (const one of answer.series) {
      if (one.rank !== 0) continue;
      const newest = one.steps.at(-1) ?? -1;
      const later = this.get(one.key);
      const from = later.steps.findIndex((step) => step > newest);
      const empty = new Array(one.steps.length).fill(null);
      /** @type {Points} */
      const kept = {
        steps: [...one.steps],
        values: [...one.values],
        min: one.min.length ? [...one.min] : [...empty],
        max: one.max.length ? [...one.max] : [...empty],
      };
      if (from >= 0)
        for (const part of /** @type {(keyof Points)[]} */ (Object.keys(kept)))
          kept[part].push(...later[part].slice(from));
      this.keys.set(one.key, kept);
    }
  }

  /**
   * One line of metrics.jsonl: {step, loss, lr, ...}.
   * @param {{ step?: number, [key: string]: unknown }} line
   */
  add(line) {
    if (!Number.isInteger(line.step)) return;
    for (const [key, value] of Object.entries(line)) {
      if (key === "step" || (typeof value !== "number" && value !== null)) continue;
      this.put(key, line.step, /** @type {number | null} */ (value));
    }
  }

  /**
   * @param {string} key
   * @param {number} step
   * @param {number | null} value
   */
  put(key, step, value) {
    let series = this.keys.get(key);
    if (!series) {
      series = { steps: [], values: [], min: [], max: [] };
      this.keys.set(key, series);
    }
    let at = series.steps.length;
    while (at > 0 && series.steps[at - 1] >= step) at -= 1;
    const isThere = series.steps[at] === step ? 1 : 0;
    series.steps.splice(at, isThere, step);
    series.values.splice(at, isThere, value);
    series.min.splice(at, isThere, null);
    series.max.splice(at, isThere, null);
  }
}

/**
 * Values of several keys on one common x axis, as uPlot wants them; missing ones are null.
 * @param {Column[]} columns
 * @returns {Table}
 */
export function aligned(columns) {
  const steps = [...new Set(columns.flatMap((column) => column.steps))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, index) => [step, index]));
  const rows = columns.map((column) => {
    const row = new Array(steps.length).fill(null);
    column.steps.forEach((step, index) => {
      row[place.get(step)] = column.values[index];
    });
    return row;
  });
  return [steps, ...rows];
}

/**
 * Exponential moving average without the bias of its start; gaps stay gaps.
 * @param {number[]} values
 * @param {number} weight
 * @returns {(number | null)[]}
 */
export function smoothed(values, weight) {
  let sum = 0;
  let norm = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return null;
    sum = sum * weight + value * (1 - weight);
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
}

/**
 * The values at other places, between the two beside each; null outside and beside a gap. Places
 * that are null, or not above the one before, are left out.
 * @param {number[]} xs
 * @param {number[]} values
 * @param {number[]} at
 * @returns {(number | null)[]}
 */
export function resampled(xs, values, at) {
  const found = [];
  let next = 0;
  let before = -1; // index of the last place that counts
  const skip = () => {
    while (next < xs.length && (xs[next] === null || (before >= 0 && xs[next] <= xs[before])))
      next += 1;
  };
  skip();
  for (const x of at) {
    while (next < xs.length && xs[next] <= x) {
      before = next;
      next += 1;
      skip();
    }
    if (before >= 0 && xs[before] === x) found.push(values[before]);
    else if (before < 0 || next >= xs.length || values[before] === null || values[next] === null)
      found.push(null);
    else
      found.push(
        values[before] +
          ((values[next] - values[before]) * (x - xs[before])) / (xs[next] - xs[before]),
      );
  }
  return found;
}
