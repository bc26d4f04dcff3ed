// A page about one document, which its stream sends whenever it reads differently: the report is drawn
// anew, and `heard(now, before)` is told.
import { Live } from "./live.js";

/* global htmx */
export function watch(address, kind, known, heard) {
  let before = known;
  const take = (now) => {
    if (JSON.stringify(before) !== JSON.stringify(now)) htmx.trigger(document.getElementById("report"), "refresh");
    heard(now, before);
    before = now;
  };
  new Live(`${address}/stream`, { on: { [kind]: take, end: take } });
}
