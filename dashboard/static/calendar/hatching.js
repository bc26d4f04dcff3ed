// The rules' verdict on the shown day for the viewer: hours in which no block of the chosen size may
// start, and the allowed lengths and sizes of blocks.
import { ask } from "../api.js";
import { hoursOf } from "./hours.js";
import { iso, shown } from "./shown.js";
import { takeSizes } from "./sizes.js";

/** @type {AbortController} */
let reading = null;

/**
 * Read it for these nodes, or for all. An older request is aborted: its day may be another one.
 * @param {Way} [way]
 * @param {string[]} [names]
 */
export async function readDay(way = {}, names = []) {
  const { signal, ...how } = way;
  reading?.abort();
  const mine = new AbortController();
  reading = mine;
  const hours = hoursOf(shown.day);
  const asked = new URLSearchParams([
    ["start", iso(hours[0])],
    ["hours", String(hours.length)],
    ["any_length", "true"],
    ...(shown.gpus ? [["gpus", String(shown.gpus)]] : []),
    ...names.map((name) => ["node", name]),
  ]);
  const found = await ask(`/v1/leases/availability?${asked}`, {
    ...how,
    signal: signal ? AbortSignal.any([signal, mine.signal]) : mine.signal,
  });
  if (takeSizes(found.lengths)) {
    await readDay(way, names);
    return;
  }
  const refused = new Map(found.lengths.map((one) => [one.node, new Map()]));
  for (const hour of found.hours) {
    for (const one of hour.taken)
      if (one.message) refused.get(one.node)?.set(Date.parse(hour.start), one.message);
  }
  shown.refused = names.length ? new Map([...shown.refused, ...refused]) : refused;
  for (const one of found.lengths) shown.lengths.set(one.node, one.hours);
}
