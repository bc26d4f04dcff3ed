// Numbers in the same form as in dashboard/formats.py. An unknown number is an en dash, never 0.
export const UNKNOWN = "\u2013";

/**
 * @param {number} number
 * @returns {string}
 */
export function count(number) {
  return Number.isFinite(number) ? Math.round(number).toLocaleString("en-US") : UNKNOWN;
}

/**
 * @param {number} number
 * @param {number} [digits]
 * @returns {string}
 */
export function decimal(number, digits = 4) {
  if (number === null || number === undefined) return UNKNOWN;
  if (Number.isNaN(number)) return "nan";
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size < 1e-2 || size >= 1e6)
    return number.toExponential(Math.max(1, digits - 3)).replace("e+", "e");
  const places = Math.max(0, digits - 1 - Math.max(0, Math.floor(Math.log10(size))));
  return number.toLocaleString("en-US", {
    minimumFractionDigits: places,
    maximumFractionDigits: places,
  });
}

/**
 * Labels of an axis: as many places as its steps need.
 * @param {number[]} values
 * @param {number} step
 * @returns {string[]}
 */
export function ticks(values, step) {
  const largest = Math.max(...values.map((value) => Math.abs(value ?? 0)));
  if (largest > 0 && largest < 1e-2)
    return values.map((value) =>
      value === null ? "" : value === 0 ? "0" : value.toExponential(1),
    );
  const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const options = { minimumFractionDigits: places, maximumFractionDigits: places };
  return values.map((value) => (value === null ? "" : value.toLocaleString("en-US", options)));
}

/**
 * @param {number} number
 * @returns {string}
 */
export function gib(number) {
  if (!Number.isFinite(number)) return UNKNOWN;
  if (Math.abs(number) >= 0.1) return `${number.toFixed(number >= 10 ? 1 : 2)} GiB`;
  return `${(number * 1024).toFixed(1)} MiB`;
}

/**
 * @param {number} seconds
 * @returns {string}
 */
export function span(seconds) {
  if (!Number.isFinite(seconds)) return UNKNOWN;
  if (seconds < 0) return "0 s";
  if (seconds > 0 && seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  const whole = Math.round(seconds);
  /** @type {[number, string][]} */
  const parts = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([number]) => number > 0);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .filter(([number]) => number)
    .map(([number, unit]) => `${number} ${unit}`)
    .join(" ");
}

/**
 * @param {number} measured
 * @param {number} planned
 * @returns {string}
 */
export function difference(measured, planned) {
  if (!Number.isFinite(measured) || !Number.isFinite(planned) || planned === 0) return UNKNOWN;
  const percent = (measured / planned - 1) * 100;
  const sign = percent > 0 ? "+" : percent < 0 ? "\u2212" : "";
  return `${sign}${Math.abs(percent).toFixed(1)} %`;
}
