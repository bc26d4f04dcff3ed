// Choice of a block in the day: a click chooses a start, a drag chooses hours, arrow keys move
// from cell to cell.

import { find } from "../elements.js";
import { choose } from "./booking.js";
import { drawDay } from "./day.js";
import { HOUR_MS } from "./hours.js";
import { shown } from "./shown.js";
import { lengthFor, lengthsOf, sizeOfKey } from "./sizes.js";

/** @type {{ node: string, at: number, last?: number, moved: boolean }} */
let dragging = null;
let isDown = false; // the pointer, wherever it is
/** @type {Set<() => void>} */
const later = new Set(); // what is drawn once it is up

/** @param {Element} cell */
const nodeOf = (cell) => cell.closest("[data-lane]").dataset.lane;

/**
 * Draw a part now; or all of it once the pointer is up: what is under it stays, and gets the click.
 * @param {() => void} part
 * @param {() => void} [all]
 */
export function drawFree(part, all = part) {
  if (isDown) later.add(all);
  else part();
}

function freed() {
  dragging = null;
  isDown = false;
  setTimeout(() => {
    // after the click that follows
    const parts = [...later];
    later.clear();
    for (const part of parts) drawFree(part);
  });
}

/**
 * @param {string} node
 * @param {number} one
 * @param {number} other
 */
function stretch(node, one, other) {
  const [start, last] = one < other ? [one, other] : [other, one];
  choose(node, start, (last - start) / HOUR_MS + 1);
}

const dayGrid = find("day-grid");
dayGrid.addEventListener("pointerdown", (event) => {
  const cell = event.target.closest(".cell");
  if (!cell || event.button !== 0) return;
  dragging = { node: nodeOf(cell), at: Number(cell.dataset.at), moved: false };
});
dayGrid.addEventListener("pointermove", (event) => {
  if (!dragging) return;
  const cell = document.elementFromPoint(event.clientX, event.clientY)?.closest?.(".cell");
  if (!cell || nodeOf(cell) !== dragging.node || Number(cell.dataset.at) === dragging.last) return;
  dragging.last = Number(cell.dataset.at);
  if (dragging.last === dragging.at && !dragging.moved) return;
  dragging.moved = true;
  shown.pick = {
    node: dragging.node,
    start: Math.min(dragging.at, dragging.last),
    hours: Math.abs(dragging.last - dragging.at) / HOUR_MS + 1,
  };
  drawDay();
});
addEventListener("pointerdown", (event) => {
  if (event.button === 0) isDown = true;
});
addEventListener("pointermove", (event) => {
  if (isDown && !event.buttons) freed(); // it was let go outside of the window
});
addEventListener("pointerup", () => {
  const drag = dragging;
  freed();
  if (drag?.moved) stretch(drag.node, drag.at, drag.last);
});
addEventListener("pointercancel", freed);
dayGrid.addEventListener("click", (event) => {
  const cell = event.target.closest(".cell");
  if (!cell) return;
  const { pick } = shown;
  if (
    pick &&
    event.detail &&
    pick.node === nodeOf(cell) &&
    pick.hours > 1 &&
    Number(cell.dataset.at) >= pick.start &&
    Number(cell.dataset.at) < pick.start + pick.hours * HOUR_MS
  )
    return; // the end of a drag
  choose(nodeOf(cell), Number(cell.dataset.at), lengthFor(nodeOf(cell)));
});

dayGrid.addEventListener("keydown", (event) => {
  const cell = event.target.closest(".cell");
  if (cell && /^[1-9]$/.test(event.key)) {
    const size = sizeOfKey(event.key);
    if (size !== undefined) find(`size="${size ?? ""}"`).click();
    return;
  }
  if (!cell || !["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(event.key)) return;
  event.preventDefault();
  const at = Number(cell.dataset.at);
  const node = nodeOf(cell);
  if (event.shiftKey && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
    const { pick } = shown;
    const before = pick && pick.node === node && pick.start === at ? pick.hours : lengthFor(node);
    const hours =
      event.key === "ArrowRight"
        ? lengthsOf(node).find((one) => one > before)
        : lengthsOf(node).findLast((one) => one < before);
    if (hours) choose(node, at, hours);
    return;
  }
  const lanes = [...dayGrid.querySelectorAll("[data-lane]")];
  const row = lanes.findIndex((lane) => lane.dataset.lane === node);
  let next;
  if (event.key === "ArrowUp" || event.key === "ArrowDown") {
    const by = event.key === "ArrowDown" ? 1 : -1;
    for (let index = row + by; index >= 0 && index < lanes.length && !next; index += by) {
      next = [...lanes[index].querySelectorAll(".cell")].sort(
        (a, b) => Math.abs(Number(a.dataset.at) - at) - Math.abs(Number(b.dataset.at) - at),
      )[0];
    }
  } else {
    const cells = [...lanes[row].querySelectorAll(".cell")];
    next = cells[cells.indexOf(cell) + (event.key === "ArrowRight" ? 1 : -1)];
  }
  if (!next) return;
  cell.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});

document.addEventListener("click", (event) => {
  const cell = event.target.closest("[data-taken]");
  if (cell) choose(nodeOf(cell), Number(cell.dataset.taken), Number(cell.dataset.takenHours));
});
