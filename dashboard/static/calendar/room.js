// The largest block that is free on the shown day, at a glance: for each node, and of all nodes.
import { find, make } from "../elements.js";
import { clock } from "../times.js";
import { gpusWords } from "./fill.js";
import { hoursOf } from "./hours.js";
import { largestBlock } from "./parts.js";
import { nodes, shown } from "./shown.js";
import { hasParts, lengthFor } from "./sizes.js";

/** @import { ShownNode } from "./shown.js" */

/**
 * The button that opens a node's lanes; it shows how many GPUs are free together.
 * @param {ShownNode} node
 */
export function opener(node) {
  const gpus = largestBlock(node, hoursOf(shown.day), lengthFor(node.name))?.gpus ?? 0;
  const isOpen = shown.opened.has(node.name);
  return make("button", {
    type: "button",
    class: "opener",
    "data-open": node.name,
    "aria-expanded": String(isOpen),
    "aria-label": `Lanes of ${node.name}: at most ${gpus} of ${gpusWords(node.slots)} free together on this day`,
    text: `${gpus} of ${node.slots} free`,
  });
}

/**
 * Draw the openers of these nodes anew, in place: one of them may have the focus.
 * @param {Set<string>} names
 */
export function drawOpeners(names) {
  for (const node of nodes().filter((one) => names.has(one.name))) {
    const before = find("day-grid").querySelector(`[data-open="${CSS.escape(node.name)}"]`);
    const after = opener(node);
    if (!before) continue;
    before.textContent = after.textContent;
    before.setAttribute("aria-label", after.getAttribute("aria-label"));
  }
}

/** @param {number[]} hours */
export function drawRoom(hours) {
  const shared = nodes().filter(hasParts);
  find("room").hidden = !shared.length;
  if (!shared.length) return;
  let best = null;
  for (const node of nodes()) {
    const length = lengthFor(node.name);
    const found = largestBlock(node, hours, length);
    if (
      found &&
      (!best || found.gpus > best.gpus || (found.gpus === best.gpus && found.at < best.at))
    )
      best = { ...found, node, length };
  }
  find("room").textContent = best
    ? `Largest block free: ${gpusWords(best.gpus)} for ${best.length} h, on ${best.node.name} from ${clock(new Date(best.at))}.`
    : "No GPU is free on this day.";
}
