// The two grids of the calendar: the week at a glance, and the shown day by the hour.

import { day, zone } from "../times.js";
import { holdsHour } from "./board.js";
import { find, make } from "./elements.js";
import { blockWords, dayNote, HOUR_MS, hourLabel, hoursOf, runs } from "./hours.js";
import { board, days, GRACE_MS, nodes, shown, viewer } from "./shown.js";

const WORDS = { lease: "taken", offer: "offered to somebody" };
const CLASSES = { lease: "lease anon", offer: "lease anon", maintenance: "lease upkeep" };
const classOf = (why) => CLASSES[why] ?? "lease dirty";

// What holds a node over some hours: the viewer's leases, those whose owner staff are told, and
// whatever else is taken.
function bars(node, hours) {
  const now = Date.now();
  const own = shown.leases.filter((lease) => lease.node === node.name);
  const known = new Set(own.map((lease) => lease.id));
  const others = board
    .leases(node.name)
    .filter((hold) => !known.has(hold.lease))
    .map((hold) => ({ ...hold, id: hold.lease, mine: hold.user === viewer.name }));
  const covered = new Set();
  const found = [];
  for (const lease of [...own, ...others]) {
    const held = hours.flatMap((at, index) => (holdsHour(lease, at, now) ? [index] : []));
    if (!held.length) continue;
    for (const index of held) covered.add(index);
    found.push({
      lease,
      from: held[0],
      to: held.at(-1) + 1,
      kind: `${lease.mine ? "lease mine" : "lease"}${lease.kind === "walk_in" ? " walkin" : ""}`,
      text: lease.mine ? "yours" : lease.user,
    });
  }
  const rest = runs(
    hours.map((at, index) => (covered.has(index) ? null : board.why(node.name, at, now))),
  );
  for (const run of rest)
    found.push({
      from: run.from,
      to: run.to,
      why: run.key,
      kind: classOf(run.key),
      text: WORDS[run.key] ?? run.key.replaceAll("_", " "),
    });
  return found;
}

// ---- the rules' shape of the week ---------------------------------------------------------------
const shapeOf = (node) => shown.shapes.find((one) => one.nodes.includes(node.name));

// The part of [from, to) that lies in these hours, as columns; null where none does.
function columns({ from, to }, hours) {
  const [start, end] = [hours[0], hours.at(-1) + HOUR_MS];
  if (to <= start || from >= end) return null;
  return {
    s: Math.max(0, Math.floor((from - start) / HOUR_MS)),
    e: Math.min(hours.length, Math.ceil((to - start) / HOUR_MS)),
  };
}

// Bands as strips, and hatched what no window of the node has.
function shading(node, hours) {
  const shape = shapeOf(node);
  if (!shape) return [];
  const strips = shape.bands
    .map((band) => [band, columns(band, hours)])
    .filter(([, place]) => place)
    .map(([band, place]) =>
      make("i", { class: "band", title: `${band.name}: ${blockWords(band.from, band.to)}` }, place),
    );
  if (!shape.windows) return strips;
  const open = hours.map((at) =>
    shape.windows.some((one) => one.from <= at && at + HOUR_MS <= one.to),
  );
  const shut = runs(open.map((isOpen) => (isOpen ? null : "shut"))).map((run) =>
    make("i", { class: "closed", title: "in no window" }, { s: run.from, e: run.to }),
  );
  return [...strips, ...shut];
}

// The bands of all shown nodes, each once.
function bandsOf(hours) {
  const found = new Map();
  for (const node of nodes()) {
    for (const band of shapeOf(node)?.bands ?? [])
      if (columns(band, hours)) found.set(`${band.name} ${band.from} ${band.to}`, band);
  }
  return [...found.values()];
}

function nowLine(hours) {
  const at = (Date.now() - hours[0]) / HOUR_MS;
  return at >= 0 && at <= hours.length
    ? make("i", { class: "nowline" }, { at, hours: hours.length })
    : null;
}

function label(node) {
  const made = make("div", { class: "lab" });
  made.append(make("a", { href: "/nodes", text: node.name }), make("span", { text: node.class }));
  return made;
}

const barWords = (bar, hours) =>
  `${bar.text}: ${blockWords(hours[bar.from], hours[bar.to - 1] + HOUR_MS - (bar.lease ? GRACE_MS : 0))}`;

// ---- the week -----------------------------------------------------------------------------------
export function drawWeek() {
  const grid = find("week-grid");
  const hours = days().flatMap(hoursOf);
  grid.style.setProperty("--hours", hours.length);
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

function weekLane(node, hours) {
  const held = bars(node, hours);
  const lane = make("div", {
    class: "lane week",
    role: "img",
    "aria-label": weekWords(node, hours, held),
    "data-week-lane": node.name,
  });
  const past = Math.min(hours.length, Math.floor((Date.now() - hours[0]) / HOUR_MS));
  if (past > 0) lane.append(make("i", { class: "night" }, { s: 0, e: past }));
  let sum = 0;
  for (const date of days().slice(0, -1)) {
    sum += hoursOf(date).length;
    lane.append(make("i", { class: "daysep" }, { s: sum }));
  }
  lane.append(...shading(node, hours));
  for (const bar of held)
    lane.append(
      make("i", { class: bar.kind, title: barWords(bar, hours) }, { s: bar.from, e: bar.to }),
    );
  const line = nowLine(hours);
  if (line) lane.append(line);
  return lane;
}

function weekWords(node, hours, held) {
  const busy = held.reduce((sum, bar) => sum + bar.to - bar.from, 0);
  return `${node.name}: ${busy} of ${hours.length} hours taken${held.some((bar) => bar.lease?.mine) ? ", some by you" : ""}`;
}

// ---- the day ------------------------------------------------------------------------------------
export function drawDay() {
  const grid = find("day-grid");
  const hours = hoursOf(shown.day);
  grid.style.setProperty("--hours", hours.length);
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
      ...nodes().flatMap((node) => [label(node), dayLane(node, hours)]),
    ),
  );
  // On a narrow screen the day begins at the hour that can be booked.
  if (grid.dataset.day !== String(shown.day.getTime()) && here) {
    grid.dataset.day = shown.day.getTime();
    const scroll = find("day-scroll");
    scroll.scrollLeft = here.offsetLeft - grid.querySelector(".lab").offsetWidth - 40;
  }
}

// One cell is reached by the Tab key: that which had the focus, was picked, or is the first.
function keepingFocus(grid, draw) {
  const focused = document.activeElement?.dataset?.cell;
  draw();
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

function dayLane(node, hours) {
  const { pick } = shown;
  const lane = make("div", { class: "lane day", "data-lane": node.name }, { hours: hours.length });
  const held = bars(node, hours);
  lane.append(...shading(node, hours).filter((one) => one.className === "band"));
  hours.forEach((at, index) => {
    if (held.some((bar) => bar.from <= index && bar.to > index)) return;
    const isPast = at + HOUR_MS <= Date.now();
    if (isPast) {
      lane.append(make("i", { class: "night" }, { s: index, e: index + 1 }));
      return;
    }
    const why = shown.refused.get(node.name)?.get(at);
    if (why) lane.append(make("i", { class: "closed" }, { s: index, e: index + 1 }));
    const picked =
      pick && pick.node === node.name && at >= pick.start && at < pick.start + pick.hours * HOUR_MS;
    const edge = picked
      ? `${at === pick.start ? " first" : ""}${at === pick.start + (pick.hours - 1) * HOUR_MS ? " last" : ""}`
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
          "aria-label": `${node.name}, ${day(new Date(at))}, ${hourLabel(at, hours)}, ${why ?? "free"}`,
          ...(why ? { title: why } : {}),
        },
        { s: index },
      ),
    );
  });
  for (const bar of held) lane.append(dayBar(bar, hours));
  const line = nowLine(hours);
  if (line) lane.append(line);
  return lane;
}

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
                "aria-label": `${words}; ask for it`,
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

// ---- a part of both -----------------------------------------------------------------------------
// The lanes of some nodes, where the rest reads as before.
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
}
