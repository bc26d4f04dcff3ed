// The row of a node of which parts are leased: as fill, or, when opened, by lane.
import { make } from "../elements.js";
import { barWords } from "./bars.js";
import { holdsHour } from "./board.js";
import { freeSlots, gpusWords, lanesOf, sizeOf, stripes } from "./fill.js";
import { HOUR_MS, hourLabel, runs } from "./hours.js";
import { board, shown } from "./shown.js";
import { lengthFor, wantedOf } from "./sizes.js";

/** @import { Bar } from "./bars.js" */
/** @import { OwnLease, ShownNode } from "./shown.js" */
/** @import { Hold } from "./board.js" */

/** @typedef {OwnLease | (Hold & { id: string, mine: boolean })} Share */
/** @typedef {Bar & { lanes: number[], share?: Share }} LaneBar */

/**
 * What holds slots of the node: the viewer's leases, and the holds of others.
 * @param {ShownNode} node
 * @returns {Share[]}
 */
export function sharesOf(node) {
  const own = shown.leases.filter((lease) => lease.node === node.name);
  const others = [...board.holds(node.name)];
  for (const lease of own) {
    const at = others.findIndex((hold) =>
      hold.lease ? hold.lease === lease.id : isSame(hold, lease, node.slots),
    );
    if (at >= 0) others.splice(at, 1);
  }
  return [...own, ...others.map((hold) => ({ ...hold, id: hold.lease, mine: false }))];
}

/**
 * True if an anonymous hold may be the lease: only staff are told whose holds are.
 * @param {Hold} hold
 * @param {OwnLease} lease
 * @param {number} slots
 */
const isSame = (hold, lease, slots) =>
  (hold.kind === "lease" || hold.kind === "walk_in") &&
  hold.to === lease.to &&
  hold.from >= lease.from &&
  sizeOf(hold, slots) === sizeOf(lease, slots);

/**
 * Free slots of the node in each of these hours; 0 while it takes no leases.
 * @param {ShownNode} node
 * @param {number[]} hours
 */
export function freeByHour(node, hours) {
  const now = Date.now();
  const shares = sharesOf(node);
  return hours.map((at) =>
    board.isBookable(node.name)
      ? freeSlots(shares, node.slots, at <= now && now < at + HOUR_MS ? now : at, at + HOUR_MS)
      : 0,
  );
}

/**
 * Bars of the node: its state if it takes no leases, and every hold, each with its lanes.
 * @param {ShownNode} node
 * @param {number[]} hours
 * @returns {LaneBar[]}
 */
function barsByLane(node, hours) {
  const all = Array.from({ length: node.slots }, (_, lane) => lane);
  const state = board.state(node.name);
  if (!board.isBookable(node.name))
    return [
      { from: 0, to: hours.length, why: state, kind: "lease dirty", text: state, lanes: all },
    ];
  const now = Date.now();
  const found = [];
  for (const [share, lanes] of lanesOf(sharesOf(node), node.slots)) {
    const held = hours.flatMap((at, index) => (holdsHour(share, at, now) ? [index] : []));
    if (!held.length) continue;
    const bar = { from: held[0], to: held.at(-1) + 1, lanes, share };
    if (share.mine) found.push({ ...bar, lease: share, kind: "lease mine", text: "yours" });
    else found.push({ ...bar, ...looksOf(share) });
  }
  return found;
}

/** @param {Share} share */
function looksOf({ kind, user }) {
  if (kind === "maintenance") return { kind: "lease upkeep", text: "maintenance" };
  if (kind === "down") return { kind: "lease dirty", text: "down" };
  if (kind === "offer") return { kind: "lease anon", text: "offered to somebody" };
  const walkIn = kind === "walk_in" ? " walkin" : "";
  return { kind: `lease ${user ? "" : "anon"}${walkIn}`, text: user ?? "taken" };
}

/**
 * The parts of a row under its cells: others' fill, or a bar for each hold, by lane. `barOf` makes
 * the element of one of the viewer's bars.
 * @param {ShownNode} node
 * @param {number[]} hours
 * @param {(bar: Bar) => HTMLElement} barOf
 * @param {boolean} isOpen
 */
export function drawnParts(node, hours, barOf, isOpen) {
  const bars = barsByLane(node, hours);
  const drawn = isOpen ? bars : bars.filter((bar) => bar.share?.mine || isWhole(bar, node));
  const elements = drawn.flatMap((bar) =>
    stripes(isOpen ? bar.lanes : lanesBelow(bar, drawn)).map((stripe, index) => {
      const place = { s: bar.from, e: bar.to, ...stripe };
      const words = `${shareWords(bar, node)}${barWords(bar, hours)}`;
      const element = index ? make("i", { class: bar.kind, "aria-hidden": "true" }) : barOf(bar);
      element.classList.add("share");
      element.setAttribute("title", words);
      for (const [name, value] of Object.entries(place))
        element.style.setProperty(`--${name}`, String(value));
      return element;
    }),
  );
  return isOpen ? elements : [...fillOf(node, hours, drawn), ...elements];
}

/**
 * A bar of the whole node that is nobody's lease: its state, maintenance, a fault.
 * @param {LaneBar} bar
 * @param {ShownNode} node
 */
const isWhole = (bar, node) =>
  !["lease", "walk_in", "offer"].includes(bar.share?.kind) && bar.lanes.length === node.slots;

/**
 * @param {LaneBar} bar
 * @param {ShownNode} node
 */
const shareWords = (bar, node) =>
  bar.lanes.length < node.slots ? `${gpusWords(bar.lanes.length)}, ` : "";

/**
 * Lanes of one's own lease where no others are drawn: the lowest.
 * @param {LaneBar} bar
 * @param {LaneBar[]} drawn
 */
function lanesBelow(bar, drawn) {
  const below = drawn
    .slice(0, drawn.indexOf(bar))
    .filter((other) => other.from < bar.to && other.to > bar.from);
  const first = below.reduce((sum, other) => sum + other.lanes.length, 0);
  return bar.lanes.map((_, index) => first + index);
}

/**
 * Fill of the node above one's own leases, hour by hour, with the number of free slots.
 * @param {ShownNode} node
 * @param {number[]} hours
 * @param {LaneBar[]} drawn
 */
function fillOf(node, hours, drawn) {
  const levels = freeByHour(node, hours).map((free, index) => {
    const own = drawn
      .filter((bar) => bar.from <= index && bar.to > index)
      .reduce((sum, bar) => sum + bar.lanes.length, 0);
    const held = node.slots - free;
    return held > own ? `${own} ${held} ${free}` : null;
  });
  return runs(levels).map((run) => {
    const [a, b, free] = run.key.split(" ").map(Number);
    const element = make(
      "i",
      { class: "fill", title: `${free} of ${gpusWords(node.slots)} free` },
      { s: run.from, e: run.to, a, b },
    );
    const words = run.to - run.from > 1 ? `${free} free` : String(free); // one hour is narrow
    element.append(make("span", { text: free ? words : "full" }));
    return element;
  });
}

/**
 * Buttons on hours in which the chosen size is not free: the answer offers the waitlist.
 * @param {ShownNode} node
 * @param {number[]} hours
 * @param {number[]} free
 */
export function askable(node, hours, free) {
  const next = Math.ceil(Date.now() / HOUR_MS) * HOUR_MS;
  const wanted = wantedOf(node);
  const isOpen = board.isBookable(node.name) && wanted <= node.slots;
  const closed = hours.map((at, index) =>
    isOpen && free[index] < wanted && at + HOUR_MS > next ? "short" : null,
  );
  return runs(closed).map((run) =>
    make(
      "button",
      {
        type: "button",
        class: "ask share",
        "data-taken": Math.max(hours[run.from], next),
        "data-taken-hours": lengthFor(node.name),
        "aria-label": `${node.name}, ${hourLabel(hours[run.from], hours)}: ${Math.min(...free.slice(run.from, run.to))} of ${gpusWords(node.slots)} free; ask for these hours`,
      },
      { s: run.from, e: run.to, a: 0, b: node.slots },
    ),
  );
}

/**
 * The largest block of the node that is free for `length` hours, and its earliest start in these
 * hours; null if none is.
 * @param {ShownNode} node
 * @param {number[]} hours
 * @param {number} length
 */
export function largestBlock(node, hours, length) {
  if (!board.isBookable(node.name)) return null;
  const now = Date.now();
  const shares = sharesOf(node);
  let best = null;
  for (const at of hours.filter((start) => start + HOUR_MS > now)) {
    const gpus = freeSlots(shares, node.slots, Math.max(at, now), at + length * HOUR_MS);
    if (gpus > (best?.gpus ?? 0)) best = { gpus, at };
  }
  return best;
}
