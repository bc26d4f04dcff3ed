// Holds on every node, hour by hour, as the calendar's stream reports them.
import { HOUR_MS } from "./hours.js";

/**
 * @typedef {object} HoldTold
 * @property {string} kind
 * @property {number | null} [gpus] null: the whole node
 * @property {string} start
 * @property {string} end
 * @property {string} [user]
 * @property {string} [lease]
 */
/** @typedef {{ node: string, state: string, holds: HoldTold[] }} HoldsTold */
/** @typedef {HoldTold & { from: number, to: number }} Hold */
/** @typedef {{ state: string | null, holds: Hold[] }} NodeHolds */

/** @type {Set<string>} */
const BOOKABLE = new Set(["ready", "pending"]);

/**
 * @param {HoldsTold} told
 * @returns {NodeHolds}
 */
function parsed({ state, holds }) {
  return {
    state,
    holds: holds.map((one) => ({ ...one, from: Date.parse(one.start), to: Date.parse(one.end) })),
  };
}

/** @type {NodeHolds} */
const NOTHING = { state: null, holds: [] };
/**
 * @param {NodeHolds} holds
 * @param {number} start
 * @param {number} end
 */
const within = ({ state, holds }, start, end) =>
  JSON.stringify([state, holds.filter((one) => one.from < end && one.to > start)]);

/**
 * The past part of the present hour belongs to nobody.
 * @param {number} at
 * @param {number} now
 */
const sinceOf = (at, now) => (at <= now && now < at + HOUR_MS ? now : at);

/**
 * True if it holds a part of the hour that begins at `at`.
 * @param {{ from: number, to: number }} span
 * @param {number} at
 * @param {number} now
 */
export const holdsHour = ({ from, to }, at, now) => from < at + HOUR_MS && to > sinceOf(at, now);

export class Board {
  constructor() {
    /** @type {Map<string, NodeHolds>} */
    this.nodes = new Map(); // by name
    this.isKnown = false;
  }

  /**
   * Take what the stream tells; the names of the nodes that read differently now, each with
   * `differs(start, end)`: whether it does so between two moments.
   * @param {{ whole: boolean, nodes: HoldsTold[] }} told
   * @returns {Map<string, { differs: (start: number, end: number) => boolean }>}
   */
  take({ whole, nodes }) {
    const told = new Map(nodes.map((one) => [one.node, parsed(one)]));
    const names = whole ? new Set([...this.nodes.keys(), ...told.keys()]) : told.keys();
    const changed = new Map();
    for (const name of names) {
      const [before, after] = [this.nodes.get(name) ?? NOTHING, told.get(name) ?? NOTHING];
      /**
       * @param {number} start
       * @param {number} end
       */
      const differs = (start, end) => within(before, start, end) !== within(after, start, end);
      if (differs(-Infinity, Infinity)) changed.set(name, { differs });
    }
    this.nodes = whole ? told : new Map([...this.nodes, ...told]);
    this.isKnown = true;
    return changed;
  }

  /** @param {string} name */
  isBookable(name) {
    return BOOKABLE.has(this.nodes.get(name)?.state);
  }

  /** @param {string} name */
  state(name) {
    return this.nodes.get(name)?.state ?? "retired";
  }

  /** @param {string} name */
  holds(name) {
    return this.nodes.get(name)?.holds ?? [];
  }

  /**
   * Why nobody can have this hour of the node: its state, or the kind of what holds it; or null.
   * @param {string} name
   * @param {number} at
   * @param {number} now
   * @returns {string | null}
   */
  why(name, at, now) {
    if (!this.isBookable(name)) return this.state(name);
    const kind = this.holds(name).find((hold) => holdsHour(hold, at, now))?.kind;
    return kind === "walk_in" ? "lease" : (kind ?? null);
  }

  /**
   * The leases on a node; only staff are told whose they are.
   * @param {string} name
   */
  leases(name) {
    return this.holds(name).filter((hold) => hold.lease);
  }
}
