// Pages with lists: the stream reports that a list has changed, and the page reads it again.
// Running jobs change their lists all the time, so reads are spread out.
import { Live } from "./live.js";
import { reads, redraw, ring, SPREAD_MS } from "./looks.js";

/**
 * @param {string[]} names
 * @param {(way: Way) => Promise<void>} read
 */
export function follow(names, read) {
  /** @type {string} */
  let drawn = "";
  reads("list", read);
  /** @param {{ words: unknown }} told */
  const changes = ({ words }) => {
    const now = JSON.stringify(words);
    if (now === drawn) return;
    drawn = now;
    ring(["list"], { spread: SPREAD_MS });
  };
  const asked = names.map((name) => `list=${name}`).join("&");
  new Live(`/v1/changes/stream?${asked}`, { on: { changes } });
}

/**
 * A list that the server draws says of itself what it shows.
 * @type {HTMLElement}
 */
const list = document.querySelector("[data-lists]");
if (list) follow(list.dataset.lists.split(" "), (way) => redraw(list.id, way));
