// State of the calendar: the days in view, the chosen block, the viewer, and everything that was
// read.

import { find } from "../elements.js";
import { Board } from "./board.js";
import { midnight } from "./hours.js";

/** @import { JobView, LeaseView, MaintenanceView, WaitView } from "trainyard-api" */

/**
 * A node, as the page was given it.
 * @typedef {object} ShownNode
 * @property {string} name
 * @property {string} class
 * @property {number} slots
 * @property {string} device
 * @property {string} model
 * @property {number} memory_gib
 */
/** @typedef {{ name: string, from: number, to: number }} Span */
/** @typedef {{ nodes: string[], bands: Span[], windows: Span[] | null }} Shape */
/** @typedef {LeaseView & { from: number, to: number, stop: number, mine: true }} OwnLease */
/** @typedef {{ node: string, start: number, hours: number }} Pick */
/**
 * @typedef {object} Shown
 * @property {number} week
 * @property {Date} day
 * @property {Pick | null} pick
 * @property {string} key of that block: it is booked once, however often it is sent
 * @property {number} wanted hours that were chosen for blocks, wherever they are allowed
 * @property {OwnLease[]} leases the viewer's
 * @property {JobView[]} jobs
 * @property {WaitView[]} waits
 * @property {Shape[]} shapes how the rules divide the week
 * @property {Map<string, Map<number, string>>} refused node -> hour of the shown day -> why no
 *   block of any length may start there
 * @property {Map<string, number[]>} lengths node -> hours that a block on it may have
 * @property {Map<string, number[]>} sizes node -> GPUs that a block on it may have, ascending
 * @property {number | null} gpus of a block; null: the whole node
 * @property {boolean} isSizeChosen
 * @property {Set<string>} opened nodes whose lanes are drawn
 * @property {MaintenanceView[]} upkeep maintenance to come, for staff
 */

export const DAYS = 7;
// The end of a block that is reserved for cleaning up; the API decides.
export const GRACE_MS = 5 * 60_000;

/** @param {string} id */
const read = (id) => JSON.parse(document.getElementById(id).textContent);
/** @type {ShownNode[]} */
export const allNodes = read("calendar-nodes");
/** @type {{ name: string, is_staff: boolean }} */
export const viewer = read("calendar-viewer");

export const board = new Board();
/** @type {Shown} */
export const shown = {
  week: 0,
  day: midnight(new Date()),
  pick: null,
  key: "",
  wanted: 0,
  leases: [],
  jobs: [],
  waits: [],
  shapes: [],
  refused: new Map(),
  lengths: new Map(),
  sizes: new Map(),
  gpus: null,
  isSizeChosen: false,
  opened: new Set(),
  upkeep: [],
};

export const nodes = () => {
  const chosen = find("class")?.value ?? "";
  return allNodes.filter((node) => !chosen || node.class === chosen);
};
export const firstDay = () => midnight(new Date(), shown.week * DAYS);
export const days = () => Array.from({ length: DAYS }, (_, index) => midnight(firstDay(), index));
/** @param {number} at */
export const iso = (at) => new Date(at).toISOString();
