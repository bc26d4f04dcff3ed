// Background reads of a page, those without a click. One read runs at a time, followed by a
// pause. After a change that is announced to all pages, each page reads at a random moment. A
// busy server is left alone for as long as it asks, a hidden tab reads nothing, and a click goes
// first.
import { Refused, reach } from "./api.js";
import { announce } from "./page.js";
import { clock } from "./times.js";

/**
 * A part of the page that is read again and again; times as performance.now().
 * @typedef {object} Part
 * @property {string} name
 * @property {(way: Way) => Promise<void>} read
 * @property {number} rest
 * @property {number} due
 * @property {number} rested
 * @property {boolean} isAsked
 */

const REST_MS = 4000;
export const SPREAD_MS = 1500; // over which all pages answer a bell that rings for all
const FIRST_WAIT_MS = 2000; // after a refusal that names no wait; doubled by each one more
const LONGEST_WAIT_MS = 60_000;
const LONGEST_LOOK_MS = 60_000;
const STALE_AFTER_MS = 30_000;
const JUST_SHOWN_MS = 2000; // then somebody looks at this page, and no bell has rung for all
export const CAN_WAIT = { Priority: "u=6" }; // RFC 9218: background

/** @type {Map<string, Part>} */
const parts = new Map(); // by name
/** @type {AbortController} */
let looking = null; // aborts the look under way
/** @type {number} */
let timer = 0;
let persons = 0; // what was clicked for and is not answered yet
let notBefore = 0;
let refusals = 0; // one after another
/** @type {number} */
let staleTimer = null;
let shownAt = 0;

/**
 * Name a part of the page, and how it is read: `read(way)` passes `way` on to `ask` or `redraw`.
 * @param {string} name
 * @param {(way: Way) => Promise<void>} read
 * @param {{ rest?: number }} [habit]
 */
export function reads(name, read, { rest = REST_MS } = {}) {
  parts.set(name, { name, read, rest, due: Infinity, rested: 0, isAsked: false });
}

/**
 * These parts are to be read: in `after` ms, at a random moment of the `spread` ms that follow.
 * Somebody waits for them if they are `isAsked`.
 * @param {string[]} names
 * @param {{ after?: number, spread?: number, isAsked?: boolean }} [when]
 */
export function ring(names, { after = 0, spread = 0, isAsked = false } = {}) {
  const now = performance.now();
  const due = now + after + (now < shownAt + JUST_SHOWN_MS ? 0 : Math.random() * spread);
  for (const part of names.map((name) => parts.get(name))) {
    part.due = Math.min(part.due, due);
    part.isAsked ||= isAsked;
  }
  plan();
}

/**
 * Do the work of a click: the read under way is aborted, and made again afterwards.
 * @template Result
 * @param {() => Promise<Result>} work
 * @returns {Promise<Result>}
 */
export async function asked(work) {
  persons += 1;
  looking?.abort();
  clearTimeout(timer);
  try {
    return await work();
  } catch (error) {
    if (error.status === 401)
      location.href = `/login?next=${encodeURIComponent(location.pathname)}`;
    throw error;
  } finally {
    persons -= 1;
    plan();
  }
}

/**
 * Draw an element anew that the server draws (hx-get).
 * @param {string} id
 * @param {Way} way
 */
export async function redraw(id, { headers, signal }) {
  const element = document.getElementById(id);
  let refused = null;
  /**
   * @param {string} path
   * @param {RequestInit} request
   */
  const fetch = async (path, request) => {
    try {
      const answer = await reach(path, {
        ...request,
        headers: { ...request.headers, ...headers },
        signal: AbortSignal.any([request.signal, signal]),
      });
      // Nobody clicked: the line says who is signed out, and what was typed stays.
      if (answer.headers.has("HX-Redirect") && document.getElementById("signed-out"))
        throw new Refused("The session has ended.", { status: 401 });
      return answer;
    } catch (error) {
      refused = error;
      return new Response(null, { status: 204 }); // nothing is drawn
    }
  };
  await htmx.ajax("GET", element.getAttribute("hx-get"), { source: element, fetch });
  if (refused) throw refused;
}

/** @param {Part} part */
const readyAt = (part) => Math.max(part.due, part.rested);

function plan() {
  clearTimeout(timer);
  if (looking || persons || document.hidden) return;
  const next = Math.min(...[...parts.values()].map(readyAt));
  if (next < Infinity) timer = setTimeout(look, Math.max(next, notBefore) - performance.now());
}

async function look() {
  const begun = performance.now();
  const due = [...parts.values()].filter((part) => readyAt(part) <= begun);
  looking = new AbortController();
  const { signal } = looking;
  const way = { signal: AbortSignal.any([signal, AbortSignal.timeout(LONGEST_LOOK_MS)]) };
  let part = null;
  try {
    for (part of due) {
      part.due = Infinity; // what rings from here on is read again
      await part.read({ ...way, headers: part.isAsked ? {} : CAN_WAIT });
      part.isAsked = false;
      tellRead(part.name);
      signal.throwIfAborted();
    }
    heard();
  } catch (error) {
    if (signal.aborted || error.isForNow) part.due = begun;
    if (!signal.aborted) {
      tellUnread(part.name, error);
      missed(error);
    }
  } finally {
    const now = performance.now();
    if (!signal.aborted) {
      for (const one of due)
        if (one.due > begun) one.rested = now + Math.max(one.rest, now - begun);
      notBefore = Math.max(notBefore, now + (now - begun));
    }
    looking = null;
    plan();
  }
}

// `data-awaits` stands in the place of a part until it is read; what is beside it with `data-then` is
// shown in its stead if the part does not draw anything there.
/** @param {string} name */
function tellRead(name) {
  for (const waits of document.querySelectorAll(`[data-awaits="${name}"]`)) {
    for (const then of waits.parentElement.querySelectorAll(":scope > [data-then]"))
      then.hidden = false;
    waits.remove();
  }
}

/**
 * @param {string} name
 * @param {Error} error
 */
function tellUnread(name, error) {
  if (!(error instanceof Refused)) return;
  const words = error.isForNow ? `${error.message} Trying again.` : error.message;
  for (const waits of document.querySelectorAll(`[data-awaits="${name}"]`))
    waits.textContent = words;
}

function heard() {
  refusals = 0;
  clearTimeout(staleTimer);
  staleTimer = null;
  document.getElementById("out-of-date").hidden = true;
}

/** @param {Refused} error */
function missed(error) {
  if (error.name === "AbortError") return; // by who drew the same element meanwhile
  if (!(error instanceof Refused)) throw error;
  if (!error.isForNow) {
    if (error.status !== 401) tellStale(error.message); // the line says who is signed out
    return;
  }
  refusals += 1;
  const wait = error.waitMs ?? Math.min(FIRST_WAIT_MS * 2 ** (refusals - 1), LONGEST_WAIT_MS);
  notBefore = performance.now() + wait * (1 + Math.random());
  const since = new Date();
  if (!error.status) return; // the line is lost, and says so
  staleTimer ??= setTimeout(() => {
    const time = clock(since, { seconds: true });
    tellStale(`The server has been too busy to answer since ${time}. Trying again.`);
  }, STALE_AFTER_MS);
}

/** @param {string} why */
function tellStale(why) {
  const banner = document.getElementById("out-of-date");
  banner.querySelector("[data-out-of-date-why]").textContent = why;
  if (banner.hidden) announce(`What is shown may be out of date. ${why}`);
  banner.hidden = false;
}

document.querySelector("[data-look-now]").addEventListener("click", () => {
  notBefore = 0;
  for (const part of parts.values()) part.rested = 0;
  ring([...parts.keys()], { isAsked: true });
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) looking?.abort();
  else shownAt = performance.now();
  plan();
});
