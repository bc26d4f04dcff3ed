// Days of the viewer's zone as full hours of the grid: 24 of them, or 23 or 25 where clocks change.
import { clock, day, offset } from "../times.js";

export const HOUR_MS = 3_600_000;

/**
 * @param {Date} date
 * @param {number} [days]
 */
export const midnight = (date, days = 0) =>
  new Date(date.getFullYear(), date.getMonth(), date.getDate() + days);
/** @param {Date} date */
const ceil = (date) => Math.ceil(date.getTime() / HOUR_MS) * HOUR_MS;

/**
 * The hours that begin in the day of `date`, in milliseconds.
 * @param {Date} date
 */
export function hoursOf(date) {
  const end = midnight(date, 1).getTime();
  const found = [];
  for (let at = ceil(midnight(date)); at < end; at += HOUR_MS) found.push(at);
  return found;
}

/**
 * `24 h` is not worth a word.
 * @param {Date} date
 * @param {Date} [now]
 */
export function dayNote(date, now = new Date()) {
  const hours = hoursOf(date);
  const from = offset(midnight(date));
  const to = offset(new Date(midnight(date, 1).getTime() - 1));
  const differs = from === offset(now) ? "" : from; // the page's head names that of now
  const note = from === to ? differs : `${hours.length} h, to ${to}`;
  const words = date.toDateString() === now.toDateString() ? ["today", note] : [note];
  return words.filter(Boolean).join(", ");
}

/**
 * The hour's label; with its offset where the same clock time comes twice that day.
 * @param {number} at
 * @param {number[]} hours
 */
export function hourLabel(at, hours) {
  const date = new Date(at);
  const label = date.getMinutes() ? clock(date) : clock(date).slice(0, 2);
  const isTwice = hours.some((other) => other !== at && clock(new Date(other)) === clock(date));
  return isTwice ? `${label} ${offset(date)}` : label;
}

/**
 * `Fri 6 Mar, 14:00 to 16:55`: a block by what can be used of it.
 * @param {number} start
 * @param {number} end
 */
export function blockWords(start, end) {
  const [from, to] = [new Date(start), new Date(end)];
  const last = to.toDateString() === from.toDateString() ? clock(to) : `${day(to)}, ${clock(to)}`;
  return `${day(from)}, ${clock(from)} to ${last}`;
}

/**
 * Neighbouring entries with one key as one run: [{from, to, key}], `to` is beyond the last.
 * @template {string} Key
 * @param {(Key | null)[]} keys
 */
export function runs(keys) {
  /** @type {{ from: number, to: number, key: Key }[]} */
  const found = [];
  keys.forEach((key, index) => {
    const last = found.at(-1);
    if (last && last.key === key && last.to === index) last.to = index + 1;
    else if (key !== null) found.push({ from: index, to: index + 1, key });
  });
  return found;
}
