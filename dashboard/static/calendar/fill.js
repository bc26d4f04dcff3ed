// Slots of a node over time: how many are free, and the thin lanes in which its holds are drawn.
// A lane is a place in the drawing: which GPUs a lease gets is decided when it begins.

/**
 * A hold of some slots of a node, or of all of them where `gpus` is not a number.
 * @typedef {{ from: number, to: number, gpus?: number | null }} Held
 */

/** @param {number} count */
export const gpusWords = (count) => (count === 1 ? "1 GPU" : `${count} GPUs`);

/**
 * @param {Held} hold
 * @param {number} slots
 */
export const sizeOf = ({ gpus }, slots) => Math.min(slots, gpus ?? slots);

/**
 * Slots of a node that nobody holds at any moment of [start, end).
 * @param {Held[]} holds
 * @param {number} slots
 * @param {number} start
 * @param {number} end
 */
export function freeSlots(holds, slots, start, end) {
  const over = holds.filter((hold) => hold.from < end && hold.to > start);
  // The sum grows only where a hold begins.
  const moments = [start, ...over.map((hold) => hold.from).filter((at) => at > start)];
  const held = moments.map((at) =>
    over
      .filter((hold) => hold.from <= at && hold.to > at)
      .reduce((sum, hold) => sum + sizeOf(hold, slots), 0),
  );
  return Math.max(0, slots - Math.max(...held));
}

/**
 * Map each hold to its lanes, ascending: the lowest that are free when it begins. In order of start
 * they always suffice, unless a fault makes the sum greater than the node: then lanes are shared.
 * @template {Held} Hold
 * @param {Hold[]} holds
 * @param {number} slots
 * @returns {Map<Hold, number[]>}
 */
export function lanesOf(holds, slots) {
  const all = Array.from({ length: slots }, (_, lane) => lane);
  const until = all.map(() => -Infinity);
  const found = new Map();
  for (const hold of holds.toSorted((a, b) => a.from - b.from)) {
    const size = sizeOf(hold, slots);
    const free = all.filter((lane) => until[lane] <= hold.from);
    const lanes = free.length < size ? all.slice(slots - size) : free.slice(0, size);
    for (const lane of lanes) until[lane] = Math.max(until[lane], hold.to);
    found.set(hold, lanes);
  }
  return found;
}

/**
 * Neighbouring lanes as one: [{ a, b }], `b` is above the last.
 * @param {number[]} lanes ascending
 */
export function stripes(lanes) {
  /** @type {{ a: number, b: number }[]} */
  const found = [];
  for (const lane of lanes) {
    const last = found.at(-1);
    if (last && last.b === lane) last.b = lane + 1;
    else found.push({ a: lane, b: lane + 1 });
  }
  return found;
}
