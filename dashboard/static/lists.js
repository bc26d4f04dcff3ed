// A page that shows lists: it is told when one of them reads differently, and reads it again; now
// and then at most, for what runs changes its list all the time.
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
