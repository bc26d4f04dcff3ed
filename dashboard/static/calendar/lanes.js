// Lanes of chosen nodes, redrawn in both grids.
import { find } from "../elements.js";
import { dayLane, keepingFocus } from "./day.js";
import { hoursOf } from "./hours.js";
import { drawOpeners, drawRoom } from "./room.js";
import { days, nodes, shown } from "./shown.js";
import { weekLane } from "./week.js";

/**
 * The lanes of some nodes, where the rest reads as before.
 * @param {Set<string>} names
 */
export function drawLanes(names) {
  const [week, hours] = [days().flatMap(hoursOf), hoursOf(shown.day)];
  const grid = find("day-grid");
  const changed = nodes().filter((node) => names.has(node.name));
  for (const node of changed)
    find("week-grid")
      .querySelector(`[data-week-lane="${CSS.escape(node.name)}"]`)
      ?.replaceWith(weekLane(node, week));
  keepingFocus(grid, () => {
    for (const node of changed)
      grid
        .querySelector(`[data-lane="${CSS.escape(node.name)}"]`)
        ?.replaceWith(dayLane(node, hours));
  });
  drawOpeners(names);
  drawRoom(hours);
}
