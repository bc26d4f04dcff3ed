// What the calendar shows, and to whom: the days in view, the block that is picked, what was read.

import { Board } from "./board.js";
import { find } from "./elements.js";
import { midnight } from "./hours.js";

export const DAYS = 7;
export const GRACE_MS = 5 * 60_000; // what a block's end keeps for cleaning up; the verdict is the API's

const read = (id) => JSON.parse(document.getElementById(id).textContent);
export const allNodes = read("calendar-nodes");
export const viewer = read("calendar-viewer");

export const board = new Board();
export const shown = {
  week: 0,
  day: midnight(new Date()),
  pick: null, // {node, start, hours}
  wanted: 0, // hours that were chosen for blocks, wherever they are allowed
  leases: [], // the viewer's
  jobs: [],
  waits: [],
  shapes: [], // how the rules divide the week: {nodes, bands, windows}
  refused: new Map(), // node -> hour -> why no block of any length may start there, of the shown day
  lengths: new Map(), // node -> hours that a block on it may have
  upkeep: [], // maintenance to come, for staff
};

export const nodes = () => {
  const chosen = find("class")?.value ?? "";
  return allNodes.filter((node) => !chosen || node.class === chosen);
};
export const firstDay = () => midnight(new Date(), shown.week * DAYS);
export const days = () => Array.from({ length: DAYS }, (_, index) => midnight(firstDay(), index));
export const iso = (at) => new Date(at).toISOString();
