// The shown day by the hour.
import { find, make } from "../elements.js";
import { day, zone } from "../times.js";
import { bandsOf, bars, barWords, columns, label, nowLine, shading } from "./bars.js";
import { gpusWords } from "./fill.js";
import { blockWords, HOUR_MS, hourLabel, hoursOf } from "./hours.js";
import { askable, drawnParts, freeByHour } from "./parts.js";
import { drawRoom, opener } from "./room.js";
import { nodes, shown } from "./shown.js";
import { hasParts, wantedOf } from "./sizes.js";

/** @import { Bar } from "./bars.js" */
/** @import { Pick, ShownNode } from "./shown.js" */

export function drawDay() {
  const grid = find("day-grid");
  const hours = hoursOf(shown.day);
  grid.style.setProperty("--hours", String(hours.length));
  find("day-title").textContent = new Intl.DateTimeFormat("en-GB", {
    weekday: "long",
    day: "numeric",
    month: "long",
  }).format(shown.day);
  const head = make("div", { class: "lane hd" }, { hours: hours.length });
  head.append(...hours.map((at) => make("span", { text: hourLabel(at, hours) })));
  head.append(
    ...bandsOf(hours).map((band) =>
      make(
        "i",
        { class: "bandname", text: band.name, title: blockWords(band.from, band.to) },
        columns(band, hours),
      ),
    ),
  );
  const corner = make("div", { class: "lab" });
  corner.append(make("span", { text: `${day(shown.day)}, ${zone(shown.day).replace(/ .*/, "")}` }));
  const here = keepingFocus(grid, () =>
    grid.replaceChildren(
      corner,
      head,
      ...nodes().flatMap((node) => [dayLabel(node), dayLane(node, hours)]),
    ),
  );
  drawRoom(hours);
  // On a narrow screen the day begins at the hour that can be booked.
  if (grid.dataset.day !== String(shown.day.getTime()) && here) {
    grid.dataset.day = String(shown.day.getTime());
    const scroll = find("day-scroll");
    scroll.scrollLeft = here.offsetLeft - grid.querySelector(".lab").offsetWidth - 40;
  }
}

/** @param {ShownNode} node */
function dayLabel(node) {
  const made = label(node);
  if (hasParts(node)) made.append(opener(node));
  return made;
}

/**
 * One cell is reached by the Tab key: that which had the focus, was picked, or is the first.
 * @param {HTMLElement} grid
 * @param {() => void} draw
 * @returns {HTMLElement}
 */
export function keepingFocus(grid, draw) {
  const { cell: focused, open } = /** @type {HTMLElement} */ (document.activeElement).dataset ?? {};
  draw();
  if (open) grid.querySelector(`[data-open="${CSS.escape(open)}"]`)?.focus({ preventScroll: true });
  const cells = [...grid.querySelectorAll(".cell")];
  const here =
    cells.find((cell) => cell.dataset.cell === focused) ??
    cells.find((cell) => cell.classList.contains("pick")) ??
    cells[0];
  cells.forEach((cell) => {
    cell.tabIndex = cell === here ? 0 : -1;
  });
  if (focused) here?.focus({ preventScroll: true });
  return here;
}

/** @param {Pick} pick */
const lastOf = (pick) => pick.start + (pick.hours - 1) * HOUR_MS;

/**
 * @param {ShownNode} node
 * @param {number[]} hours
 */
export function dayLane(node, hours) {
  const { pick } = shown;
  const parts = hasParts(node);
  const isOpen = parts && shown.opened.has(node.name);
  const lane = make(
    "div",
    { class: `lane day${parts ? " parts" : ""}${isOpen ? " opened" : ""}`, "data-lane": node.name },
    { hours: hours.length, slots: node.slots },
  );
  const held = parts ? [] : bars(node, hours);
  const free = parts ? freeByHour(node, hours) : [];
  lane.append(...shading(node, hours).filter((one) => one.className === "band"));
  hours.forEach((at, index) => {
    const isPast = at + HOUR_MS <= Date.now();
    if (held.some((bar) => bar.from <= index && bar.to > index)) return;
    if (parts && !isPast && free[index] < Math.min(wantedOf(node), node.slots)) return;
    if (isPast) {
      lane.append(make("i", { class: "night" }, { s: index, e: index + 1 }));
      return;
    }
    const why = shown.refused.get(node.name)?.get(at);
    if (why) lane.append(make("i", { class: "closed" }, { s: index, e: index + 1 }));
    const picked =
      pick && pick.node === node.name && at >= pick.start && at < pick.start + pick.hours * HOUR_MS;
    const when = `${day(new Date(at))}, ${hourLabel(at, hours)}`;
    const edge = picked
      ? `${at === pick.start ? " first" : ""}${at === lastOf(pick) ? " last" : ""}`
      : "";
    lane.append(
      make(
        "button",
        {
          type: "button",
          class: `cell${picked ? ` pick${edge}` : ""}`,
          "data-cell": `${node.name} ${at}`,
          "data-at": at,
          "aria-pressed": String(Boolean(picked)),
          "aria-label": `${node.name}, ${when}, ${why ?? freeWords(free[index], node)}`,
          ...(why ? { title: why } : {}),
        },
        { s: index },
      ),
    );
  });
  if (parts) {
    const drawn = drawnParts(node, hours, (bar) => dayBar(bar, hours), isOpen);
    lane.append(...askable(node, hours, free), ...drawn);
  }
  for (const bar of held) lane.append(dayBar(bar, hours));
  const line = nowLine(hours);
  if (line) lane.append(line);
  return lane;
}

/**
 * @param {number | undefined} count
 * @param {ShownNode} node
 */
const freeWords = (count, node) =>
  count === undefined ? "free" : `${count} of ${gpusWords(node.slots)} free`;

/**
 * @param {Bar} bar
 * @param {number[]} hours
 */
function dayBar(bar, hours) {
  const position = { s: bar.from, e: bar.to, n: bar.to - bar.from };
  const words = barWords(bar, hours);
  const isLeased = bar.lease || bar.why === "lease";
  // Somebody else's hours can be asked for: the answer offers the waitlist.
  const asked = isLeased && !bar.lease?.mine && hours[bar.to - 1] > Date.now();
  const element = bar.lease?.mine
    ? make(
        "button",
        { type: "button", class: bar.kind, "data-lease": bar.lease.id, title: words },
        position,
      )
    : make(
        asked ? "button" : "span",
        {
          class: bar.kind,
          title: words,
          ...(asked
            ? {
                type: "button",
                "data-taken": Math.max(hours[bar.from], Math.ceil(Date.now() / HOUR_MS) * HOUR_MS),
                "data-taken-hours": bar.to - bar.from,
                "aria-label": `${words}; ask for these hours`,
              }
            : {}),
        },
        position,
      );
  element.append(make("span", { text: bar.text }));
  if (bar.lease) {
    const inside = shown.jobs.filter(
      (job) => job.lease === bar.lease.id || job.id === bar.lease.job,
    );
    if (inside.length) {
      const box = make("span", { class: "jobs" });
      box.append(
        ...inside.map((job) =>
          make(
            "span",
            { class: `job${job.state === "running" ? "" : " wait"}`, text: job.name },
            { w: 1 },
          ),
        ),
      );
      element.append(box);
    }
    if (bar.lease.to <= hours.at(-1) + HOUR_MS) element.append(make("i", { class: "grace" }));
  }
  return element;
}
