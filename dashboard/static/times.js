// Times in the browser's zone. A block names zone and offset once ([data-zone]). A time whose
// offset differs from today's, because clocks changed in between, names its own.
import { span } from "./formats.js";

const DAY_MS = 86_400_000;
/** @param {number} number */
const pad = (number) => String(number).padStart(2, "0");

/**
 * @param {Date} date
 * @returns {string}
 */
export function offset(date) {
  const minutes = -date.getTimezoneOffset();
  const sign = minutes < 0 ? "\u2212" : "+";
  return `${sign}${pad(Math.floor(Math.abs(minutes) / 60))}:${pad(Math.abs(minutes) % 60)}`;
}

// Each of these knows the short names of other zones: EST, CET, AEDT, IST.
const LOCALES = ["en-US", "en-GB", "en-AU", "en-IN"];

export function zone(date = new Date()) {
  for (const locale of LOCALES) {
    const parts = new Intl.DateTimeFormat(locale, { timeZoneName: "short" }).formatToParts(date);
    const { value: name } = parts.find((part) => part.type === "timeZoneName");
    if (!/^(GMT|UTC)[+\u2212-]/.test(name)) return `${name} (UTC${offset(date)})`;
  }
  return `UTC${offset(date)}`;
}

/**
 * @param {Date} date
 * @param {{ seconds?: boolean }} [shape]
 */
export function clock(date, { seconds = false } = {}) {
  const minutes = `${pad(date.getHours())}:${pad(date.getMinutes())}`;
  return seconds ? `${minutes}:${pad(date.getSeconds())}` : minutes;
}

/**
 * @param {Date} date
 * @param {{ year?: boolean }} [shape]
 */
export function day(date, { year = false } = {}) {
  /** @type {Intl.DateTimeFormatOptions} */
  const options = {
    weekday: "short",
    day: "numeric",
    month: "short",
    ...(year ? { year: "numeric" } : {}),
  };
  return new Intl.DateTimeFormat("en-GB", options).format(date).replace(",", "");
}

/**
 * `15:55`, or with its day where that is not today.
 * @param {Date} date
 * @param {{ seconds?: boolean, now?: Date }} [shape]
 */
export function near(date, { seconds = false, now = new Date() } = {}) {
  const at = clock(date, { seconds });
  if (date.toDateString() === now.toDateString()) return at;
  const isClose = Math.abs(date.getTime() - now.getTime()) < 6 * DAY_MS;
  const weekday = new Intl.DateTimeFormat("en-GB", { weekday: "short" }).format(date);
  return isClose
    ? `${weekday} ${at}`
    : `${day(date, { year: date.getFullYear() !== now.getFullYear() })}, ${at}`;
}

/**
 * @param {Date} date
 * @param {Date} [now]
 */
export function distance(date, now = new Date()) {
  const seconds = (date.getTime() - now.getTime()) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `in ${span(seconds)}` : `${span(-seconds)} ago`;
}

/**
 * @param {Date} date
 * @param {string} shape
 * @param {string} since
 */
function words(date, shape, since) {
  const own =
    date.getTimezoneOffset() === new Date().getTimezoneOffset() ? "" : ` (${offset(date)})`;
  if (shape === "full")
    return `${day(date, { year: true })}, ${clock(date, { seconds: true })} ${zone(date)}`;
  if (shape === "day") return day(date, { year: true });
  if (shape === "near") return `${near(date)}${own}, ${distance(date)}`;
  // The end of a block that began on the same day names no day.
  if (since && date.toDateString() === new Date(since).toDateString()) return clock(date) + own;
  return near(date, { seconds: shape === "second" }) + own;
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
// Moments in sentences of the server: `15:00 UTC`, `Sat 22 Nov 15:00 UTC`, `Sat 2026-11-22 15:00
// +01:00`.
const SPELLED = /(?:[A-Z][a-z]{2} (\d\d) ([A-Z][a-z]{2}) )?\b(\d\d):(\d\d) UTC\b/g;
const WITH_OFFSET =
  /(?:[A-Z][a-z]{2} )?\b(\d{4}-\d\d-\d\d) (\d\d:\d\d) ([+-]\d\d:\d\d|UTC)(?![\w:])/g;

/**
 * A sentence of the server with its moments in the viewer's zone, each with its offset.
 * @param {string} sentence
 * @param {Date} [now]
 */
export function inZone(sentence, now = new Date()) {
  /** @param {Date} date */
  const named = (date) => `${near(date, { now })} (${offset(date)})`;
  let before = now; // a time without a day is of the day that was named before it
  return sentence
    .replace(WITH_OFFSET, (_, day, time, by) =>
      named(new Date(`${day}T${time}${by === "UTC" ? "Z" : by}`)),
    )
    .replace(SPELLED, (_, day, month, hours, minutes) => {
      const date = new Date(before);
      date.setUTCHours(Number(hours), Number(minutes), 0, 0);
      if (!day) return `${clock(date)} (${offset(date)})`;
      date.setUTCMonth(MONTHS.indexOf(month), Number(day));
      // The year that is not written is the nearest.
      const half = 183 * DAY_MS;
      if (date.getTime() - now.getTime() > half) date.setUTCFullYear(date.getUTCFullYear() - 1);
      if (now.getTime() - date.getTime() > half) date.setUTCFullYear(date.getUTCFullYear() + 1);
      before = date;
      return named(date);
    });
}

/** @param {ParentNode} [root] */
export function writeTimes(root = document) {
  for (const element of root.querySelectorAll("[data-said]:not([data-in-zone])")) {
    element.textContent = inZone(element.textContent);
    element.dataset.inZone = "";
  }
  for (const element of root.querySelectorAll("time[data-time]")) {
    const date = new Date(element.dateTime);
    element.textContent = words(date, element.dataset.time, element.dataset.since);
    element.title = `${day(date, { year: true })}, ${clock(date, { seconds: true })} ${zone(date)}`;
  }
  for (const element of root.querySelectorAll("[data-zone]")) element.textContent = zone();
  for (const element of root.querySelectorAll("[data-zone-day]")) {
    element.textContent = `${day(new Date(), { year: true })}, ${zone()}`;
  }
}
