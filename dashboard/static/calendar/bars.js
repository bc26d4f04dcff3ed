// Parts of both grids: bars of the holds on a node, bands of the rules, the line of the present.
import { make } from "../elements.js";
import { holdsHour } from "./board.js";
import { blockWords, HOUR_MS, runs } from "./hours.js";
import { board, GRACE_MS, nodes, shown, viewer } from "./shown.js";

/** @import { OwnLease, ShownNode } from "./shown.js" */
/** @import { Hold } from "./board.js" */

/**
 * A hold on a node: from column `from` of a grid to before column `to`.
 * @typedef {object} Bar
 * @property {(OwnLease | (Hold & { id: string, mine: boolean, job?: string }))} [lease]
 * @property {number} from
 * @property {number} to
 * @property {string} [why]
 * @property {string} kind
 * @property {string} text
 */

/** @type {Record<string, string>} */
const WORDS = { lease: "taken", offer: "offered to somebody" };
/** @type {Record<string, string>} */
const CLASSES = { lease: "lease anon", offer: "lease anon", maintenance: "lease upkeep" };
/** @param {string} why */
const classOf = (why) => CLASSES[why] ?? "lease dirty";

/**
 * Bars of a node over some hours: the viewer's leases, leases whose owner is known to staff, and
 * everything else that is taken.
 * @param {ShownNode} node
 * @param {number[]} hours
 * @returns {Bar[]}
 */
export function bars(node, hours) {
  const now = Date.now();
  const own = shown.leases.filter((lease) => lease.node === node.name);
  const known = new Set(own.map((lease) => lease.id));
  const others = board
    .leases(node.name)
    .filter((hold) => !known.has(hold.lease))
    .map((hold) => ({ ...hold, id: hold.lease, mine: hold.user === viewer.name }));
  const covered = new Set();
  const found = [];
  for (const lease of [...own, ...others]) {
    const held = hours.flatMap((at, index) => (holdsHour(lease, at, now) ? [index] : []));
    if (!held.length) continue;
    for (const index of held) covered.add(index);
    found.push({
      lease,
      from: held[0],
      to: held.at(-1) + 1,
      kind: `${lease.mine ? "lease mine" : "lease"}${lease.kind === "walk_in" ? " walkin" : ""}`,
      text: lease.mine ? "yours" : lease.user,
    });
  }
  const rest = runs(
    hours.map((at, index) => (covered.has(index) ? null : board.why(node.name, at, now))),
  );
  for (const run of rest)
    found.push({
      from: run.from,
      to: run.to,
      why: run.key,
      kind: classOf(run.key),
      text: WORDS[run.key] ?? run.key.replaceAll("_", " "),
    });
  return found;
}

// ---- the rules' shape of the week ---------------------------------------------------------------
/** @param {ShownNode} node */
const shapeOf = (node) => shown.shapes.find((one) => one.nodes.includes(node.name));

/**
 * The part of [from, to) that lies in these hours, as columns; null where none does.
 * @param {{ from: number, to: number }} span
 * @param {number[]} hours
 */
export function columns({ from, to }, hours) {
  const [start, end] = [hours[0], hours.at(-1) + HOUR_MS];
  if (to <= start || from >= end) return null;
  return {
    s: Math.max(0, Math.floor((from - start) / HOUR_MS)),
    e: Math.min(hours.length, Math.ceil((to - start) / HOUR_MS)),
  };
}

/**
 * Bands as strips, and hatched what no window of the node has.
 * @param {ShownNode} node
 * @param {number[]} hours
 */
export function shading(node, hours) {
  const shape = shapeOf(node);
  if (!shape) return [];
  const strips = shape.bands
    .map((band) => ({ band, place: columns(band, hours) }))
    .filter(({ place }) => place)
    .map(({ band, place }) =>
      make("i", { class: "band", title: `${band.name}: ${blockWords(band.from, band.to)}` }, place),
    );
  if (!shape.windows) return strips;
  const open = hours.map((at) =>
    shape.windows.some((one) => one.from <= at && at + HOUR_MS <= one.to),
  );
  const shut = runs(open.map((isOpen) => (isOpen ? null : "shut"))).map((run) =>
    make(
      "i",
      { class: "closed", title: "outside every booking window" },
      { s: run.from, e: run.to },
    ),
  );
  return [...strips, ...shut];
}

/**
 * The bands of all shown nodes, each once.
 * @param {number[]} hours
 */
export function bandsOf(hours) {
  const found = new Map();
  for (const node of nodes()) {
    for (const band of shapeOf(node)?.bands ?? [])
      if (columns(band, hours)) found.set(`${band.name} ${band.from} ${band.to}`, band);
  }
  return [...found.values()];
}

/** @param {number[]} hours */
export function nowLine(hours) {
  const at = (Date.now() - hours[0]) / HOUR_MS;
  return at >= 0 && at <= hours.length
    ? make("i", { class: "nowline" }, { at, hours: hours.length })
    : null;
}

/** @param {ShownNode} node */
export function label(node) {
  const made = make("div", { class: "lab" });
  made.append(
    make("a", { href: `/nodes/${node.name}`, text: node.name }),
    make("span", { text: node.class }),
  );
  return made;
}

/**
 * @param {Bar} bar
 * @param {number[]} hours
 */
export function barWords(bar, hours) {
  const end = hours[bar.to - 1] + HOUR_MS - (bar.lease ? GRACE_MS : 0);
  return `${bar.text}: ${blockWords(hours[bar.from], end)}`;
}
