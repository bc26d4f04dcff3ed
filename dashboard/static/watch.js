// Pages about one document. Its stream sends the document after each change; the report is
// redrawn, and `heard(now, before)` is called.
import { Live } from "./live.js";
import { reads, redraw, ring, SPREAD_MS } from "./looks.js";

/**
 * @template Document
 * @param {string} address
 * @param {string} kind
 * @param {Document} known
 * @param {(now: Document, before: Document) => void} heard
 */
export function watch(address, kind, known, heard) {
  let before = known;
  reads("report", (way) => redraw("report", way));
  /** @param {Document} now */
  const take = (now) => {
    if (JSON.stringify(before) !== JSON.stringify(now)) ring(["report"], { spread: SPREAD_MS });
    heard(now, before);
    before = now;
  };
  new Live(`${address}/stream`, { on: { [kind]: take, end: take } });
}
