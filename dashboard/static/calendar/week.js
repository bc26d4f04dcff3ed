// The week at a glance.
import { find, make } from "../elements.js";
import { day, zone } from "../times.js";
import { bandsOf, bars, barWords, label, nowLine, shading } from "./bars.js";
import { freeSlots, gpusWords } from "./fill.js";
import { dayNote, HOUR_MS, hoursOf, runs } from "./hours.js";
import { drawnParts, freeByHour, sharesOf } from "./parts.js";
import { board, days, nodes, shown } from "./shown.js";
import { hasParts, lengthFor, wantedOf } from "./sizes.js";

/** @import { Bar } from "./bars.js" */
/** @import { ShownNode } from "./shown.js" */

export function drawWeek() {
  const grid = find("week-grid");
  const hours = days().flatMap(hoursOf);
  grid.style.setProperty("--hours", String(hours.length));
  grid.removeAttribute("aria-busy");
  const head = make("div", { class: "lane hd" });
  head.style.gridTemplateColumns = days()
    .map((date) => `${hoursOf(date).length}fr`)
    .join(" ");
  for (const date of days()) {
    const button = make("button", {
      type: "button",
      "aria-pressed": String(date.getTime() === shown.day.getTime()),
      "data-day": date.getTime(),
    });
    button.append(make("b", { text: day(date).replace(/ \w+$/, "") }), dayNote(date));
    head.append(button);
  }
  const corner = make("div", { class: "lab" });
  corner.append(make("span", { text: zone(shown.day).replace(/ .*/, "") }));
  grid.replaceChildren(
    corner,
    head,
    ...nodes().flatMap((node) => [label(node), weekLane(node, hours)]),
  );
  const names = [...new Set(bandsOf(hours).map((band) => band.name))];
  find("band-key").hidden = !names.length;
  find("band-names").textContent = names.join(", ");
}

/**
 * @param {ShownNode} node
 * @param {number[]} hours
 */
export function weekLane(node, hours) {
  const parts = hasParts(node);
  const held = parts ? [] : bars(node, hours);
  const lane = make(
    "div",
    {
      class: `lane week${parts ? " parts" : ""}`,
      role: "img",
      "aria-label": parts ? fillWords(node, hours) : weekWords(node, hours, held),
      "data-week-lane": node.name,
    },
    { slots: node.slots },
  );
  const past = Math.min(hours.length, Math.floor((Date.now() - hours[0]) / HOUR_MS));
  if (past > 0) lane.append(make("i", { class: "night" }, { s: 0, e: past }));
  let sum = 0;
  for (const date of days().slice(0, -1)) {
    sum += hoursOf(date).length;
    lane.append(make("i", { class: "daysep" }, { s: sum }));
  }
  lane.append(...shading(node, hours));
  if (parts) lane.append(...noStarts(node, hours));
  for (const bar of held)
    lane.append(
      make("i", { class: bar.kind, title: barWords(bar, hours) }, { s: bar.from, e: bar.to }),
    );
  if (parts)
    lane.append(...drawnParts(node, hours, (bar) => make("i", { class: bar.kind }), false));
  const line = nowLine(hours);
  if (line) lane.append(line);
  return lane;
}

/**
 * Hours from which on a block of the chosen size is not free for its whole length.
 * @param {ShownNode} node
 * @param {number[]} hours
 */
function noStarts(node, hours) {
  const [now, wanted, length] = [Date.now(), wantedOf(node), lengthFor(node.name)];
  const shares = sharesOf(node);
  const isOpen = board.isBookable(node.name);
  const closed = hours.map((at) => {
    if (!isOpen || at + HOUR_MS <= now) return null;
    const [start, end] = [Math.max(at, now), at + length * HOUR_MS];
    return freeSlots(shares, node.slots, start, end) < wanted ? "closed" : null;
  });
  const title = `no ${length} h of ${gpusWords(wanted)} from here on`;
  return runs(closed).map((run) =>
    make("i", { class: "closed", title }, { s: run.from, e: run.to }),
  );
}

/**
 * @param {ShownNode} node
 * @param {number[]} hours
 */
function fillWords(node, hours) {
  const free = freeByHour(node, hours);
  const full = free.filter((count) => !count).length;
  const whole = free.filter((count) => count === node.slots).length;
  return `${node.name}, ${gpusWords(node.slots)}: of ${hours.length} hours ${whole} are free as a whole, ${full} are full`;
}

/**
 * @param {ShownNode} node
 * @param {number[]} hours
 * @param {Bar[]} held
 */
function weekWords(node, hours, held) {
  const busy = held.reduce((sum, bar) => sum + bar.to - bar.from, 0);
  const yours = held.some((bar) => bar.lease?.mine) ? ", some by you" : "";
  return `${node.name}: ${busy} of ${hours.length} hours taken${yours}`;
}
