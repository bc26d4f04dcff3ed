// Length and size of a block, as the rules allow them; and the switch of the size, which stands over
// week and day where a policy lists sizes.
import { find, make } from "../elements.js";
import { gpusWords } from "./fill.js";
import { allNodes, nodes, shown } from "./shown.js";

/** @import { LengthsView } from "trainyard-api" */
/** @import { ShownNode } from "./shown.js" */

/** @param {string} node */
export const lengthsOf = (node) => shown.lengths.get(node) ?? [1];
/** @param {string} node */
export const lengthFor = (node) =>
  lengthsOf(node).includes(shown.wanted) ? shown.wanted : lengthsOf(node)[0];

/** @param {ShownNode} node */
const sizesOf = (node) => shown.sizes.get(node.name) ?? [node.slots];

/**
 * True if parts of the node are leased.
 * @param {ShownNode} node
 */
export const hasParts = (node) => sizesOf(node).some((size) => size < node.slots);

/**
 * The GPUs of the node that a block of the chosen size has.
 * @param {ShownNode} node
 */
export const wantedOf = (node) => shown.gpus ?? node.slots;

/** Sizes that may be chosen, ascending; null, the whole node, is the last. Empty without parts. */
export function sizes() {
  const parts = allNodes.flatMap((node) => sizesOf(node).filter((size) => size < node.slots));
  const isSoldWhole = allNodes.some((node) => sizesOf(node).includes(node.slots));
  const found = [...new Set(parts)].sort((a, b) => a - b);
  return found.length && isSoldWhole ? [...found, null] : found;
}

/**
 * Keep the sizes that the rules allow. At first the smallest is chosen; returns true if that has
 * changed the size, so that the answer was for another one.
 * @param {LengthsView[]} lengths
 */
export function takeSizes(lengths) {
  for (const one of lengths) shown.sizes.set(one.node, one.sizes ?? []);
  for (const [name, allowed] of shown.sizes) if (!allowed.length) shown.sizes.delete(name);
  const isFirst = !shown.isSizeChosen && sizes().length > 0;
  if (isFirst) {
    shown.isSizeChosen = true;
    shown.gpus = sizes()[0];
  } else if (!sizes().length) shown.gpus = null;
  drawSizes();
  return isFirst;
}

/**
 * The size that a digit chooses: as many GPUs, or the whole of the nodes that have as many.
 * @param {string} digit
 * @returns {number | null | undefined}
 */
export function sizeOfKey(digit) {
  const count = Number(digit);
  if (sizes().includes(count)) return count;
  return sizes().includes(null) && nodes().some((node) => node.slots === count) ? null : undefined;
}

export function drawSizes() {
  const place = find("sizes");
  const offered = sizes();
  find("sizes-box").hidden = !offered.length;
  const before = document.activeElement;
  const focused = place.contains(before) ? before.getAttribute("value") : null;
  place.replaceChildren(
    ...offered.map((size) =>
      make("button", {
        type: "button",
        value: size ?? "",
        "data-size": size ?? "",
        "aria-pressed": String(size === shown.gpus),
        text: size ? gpusWords(size) : "whole node",
      }),
    ),
  );
  if (focused !== null) place.querySelector(`[data-size="${focused}"]`)?.focus();
}
