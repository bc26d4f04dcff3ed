// The calendar: a week at a glance, one day by the hour, and booking by click, drag or keys. The
// verdict comes from the API before anything is booked.
import { blockWords, dayNote, HOUR_MS, hourLabel, hoursOf, midnight, runs } from "./hours.js";
import { gib } from "./formats.js";
import { follow } from "./lists.js";
import { announce } from "./page.js";
import { clock, day, distance, zone } from "./times.js";

const GRACE_MS = 5 * 60_000; // what a block's end keeps for cleaning up; the verdict is the API's
const DAYS = 7;
const MOST_JUDGED = 5000; // node-hours that the API judges at once
const STATES = new Set(["draining", "maintenance", "dirty", "quarantined", "retired"]);
const WORDS = { leased: "taken", yours: "yours", offered: "offered to somebody", maintenance: "maintenance", down: "down" };

const allNodes = JSON.parse(document.getElementById("calendar-nodes").textContent);
const viewer = JSON.parse(document.getElementById("calendar-viewer").textContent);
const find = (name) => document.querySelector(`[data-${name}]`);
const make = (tag, { text, ...attributes } = {}, position = {}) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  for (const [name, value] of Object.entries(position)) element.style.setProperty(`--${name}`, value);
  if (text !== undefined) element.textContent = text;
  return element;
};

let week = 0;
let shownDay = midnight(new Date());
let pick = null; // {node, start, hours}
let verdict = null;
let taken = new Map(); // hour -> node -> why
let refused = new Map(); // hour -> node -> what no block of any length may do there, of the shown day
let lengths = new Map(); // node -> hours that a block on it may have
let wanted = 0; // hours that were chosen for blocks, wherever they are allowed
let leases = [];
let jobs = [];
let waits = [];
let shapes = []; // how the rules divide the week: {nodes, bands, windows}
let upkeep = []; // maintenance to come, for staff
let key = "";

const nodes = () => {
  const chosen = find("class")?.value ?? "";
  return allNodes.filter((node) => !chosen || node.class === chosen);
};
const firstDay = () => midnight(new Date(), week * DAYS);
const days = () => Array.from({ length: DAYS }, (_, index) => midnight(firstDay(), index));
const iso = (at) => new Date(at).toISOString();

async function api(method, path, body, headers = {}) {
  const answer = await fetch(path, { method, headers: { ...(body ? { "Content-Type": "application/json" } : {}), ...headers }, body: body && JSON.stringify(body) });
  if (answer.status === 401) location.href = `/login?next=${encodeURIComponent("/calendar")}`;
  const document_ = answer.status !== 204 && answer.headers.get("content-type")?.includes("json") ? await answer.json() : {};
  if (!answer.ok) throw new Error(document_.errors?.map((one) => one.message).join(" ") || document_.detail || `The API answered ${answer.status}.`);
  return document_;
}

// ---- reading ------------------------------------------------------------------------------------
function whys(answer) {
  return new Map(answer.hours.map((hour) => [Date.parse(hour.start), new Map(hour.taken.map((one) => [one.node, one.why]))]));
}

// The rules' sentences, where nobody holds the hour.
function sentences(answer) {
  return new Map(answer.hours.map((hour) => [Date.parse(hour.start), new Map(hour.taken.filter((one) => one.message).map((one) => [one.node, one.message]))]));
}

async function readWeek() {
  const hours = days().flatMap(hoursOf);
  const open = "state=booked&state=active&state=ending&limit=200";
  const [free, held, open_, wished, divided, kept] = await Promise.all([
    api("GET", `/v1/leases/availability?start=${encodeURIComponent(iso(hours[0]))}&hours=${hours.length}`),
    api("GET", `/v1/leases?${open}${viewer.is_staff ? "&user=all" : ""}`),
    api("GET", "/v1/jobs?state=queued&state=starting&state=running&state=paused&limit=100"),
    api("GET", "/v1/waitlist?limit=50"),
    api("GET", `/v1/bands?start=${encodeURIComponent(iso(hours[0]))}&hours=${hours.length}`),
    viewer.is_staff ? api("GET", "/v1/maintenance?limit=50") : { data: [] },
  ]);
  shapes = divided.data.map((one) => ({ ...one, bands: one.bands.map(spanOf), windows: one.windows?.map(spanOf) ?? null }));
  upkeep = kept.data.filter((one) => !one.cancelled_at && one.occurrences.some((each) => each.held && Date.parse(each.end) > Date.now()));
  waits = wished.data.filter((one) => one.user === viewer.name && ["waiting", "offered"].includes(one.state));
  taken = whys(free);
  lengths = new Map(free.lengths.map((one) => [one.node, one.hours]));
  leases = held.data.map((lease) => ({ ...lease, from: Date.parse(lease.hold_start), to: Date.parse(lease.hold_end), stop: Date.parse(lease.usable_end), mine: lease.user === viewer.name }));
  jobs = open_.data;
}

// When leases may lie on which nodes, where a policy says so.
async function readWindows() {
  const { data } = await api("GET", "/v1/windows");
  const open = data.filter((one) => Date.parse(one.ends_at) > Date.now()).sort((a, b) => Date.parse(a.starts_at) - Date.parse(b.starts_at));
  find("windows-card").hidden = !open.length;
  find("windows").replaceChildren(...open.map((one) => {
    const opens = one.opens_at && Date.parse(one.opens_at) > Date.now() ? `; booking opens ${day(new Date(one.opens_at))}, ${clock(new Date(one.opens_at))}` : "";
    const row = make("li");
    row.append(make("strong", { text: one.pools.join(", ") }), make("div", { class: "sub", text: `${blockWords(Date.parse(one.starts_at), Date.parse(one.ends_at))}${opens}` }));
    return row;
  }));
}

const spanOf = (one) => ({ name: one.name, from: Date.parse(one.starts_at), to: Date.parse(one.ends_at) });

// How full the days become before a window closes.
async function readForecast() {
  const { data } = await api("GET", "/v1/leases/forecast");
  find("forecast-card").hidden = !data.length;
  find("forecast").replaceChildren(...data.flatMap((one) => [
    make("p", { text: `${data.length > 1 ? `${one.policy}: ` : ""}${one.message}` }),
    forecastDays(one),
    make("p", { class: "sub", text: `The window closes ${day(new Date(one.closes_at))}, ${clock(new Date(one.closes_at))}. This is what quotas of ${one.people === 1 ? "1 person" : `${one.people} people`} allow, not what they will do.` }),
  ]));
}

function forecastDays(one) {
  const list = make("ol", { class: "forecast" });
  list.append(...one.days.map((each) => {
    const share = each.free_hours ? Math.round((100 * each.wanted_hours) / each.free_hours) : 100;
    const row = make("li");
    const bar = make("div", { class: "bar", "aria-hidden": "true" });
    bar.append(make("i", {}, { v: share }));
    row.append(make("span", { text: day(new Date(each.start)) }), bar, make("span", { class: "num", text: `${Math.round(each.wanted_hours)} of ${Math.round(each.free_hours)} h` }));
    return row;
  }));
  return list;
}

// Where no block may start, by the rules, however long it is.
async function readDay() {
  const hours = hoursOf(shownDay);
  if (allNodes.length * hours.length > MOST_JUDGED) return;
  refused = sentences(await api("GET", `/v1/leases/availability?start=${encodeURIComponent(iso(hours[0]))}&hours=${hours.length}&any_length=true`));
}

async function look() {
  try {
    await Promise.all([readWeek(), readDay()]);
    find("calendar-lost").hidden = true;
    draw();
  } catch (error) {
    find("calendar-why").textContent = `${error.message} What is shown may be out of date.`;
    find("calendar-lost").hidden = false;
  }
}

// ---- drawing ------------------------------------------------------------------------------------
const whyOf = (at, node) => taken.get(at)?.get(node.name) ?? null;
const classOf = (why) => (why === "yours" ? "lease mine" : why === "maintenance" ? "lease upkeep" : why === "down" || STATES.has(why) ? "lease dirty" : "lease anon");

// What holds a node over some hours: leases that the viewer may see, and whatever else is taken.
function bars(node, hours) {
  const [start, end] = [hours[0], hours.at(-1) + HOUR_MS];
  const place = (at) => (at - start) / HOUR_MS;
  const known = leases.filter((lease) => lease.node === node.name && lease.from < end && lease.to > start);
  const covered = new Set();
  const found = known.map((lease) => {
    hours.forEach((at, index) => { if (lease.from < at + HOUR_MS && lease.to > at) covered.add(index); });
    return { lease, from: Math.max(0, Math.floor(place(lease.from))), to: Math.min(hours.length, Math.ceil(place(lease.to))), kind: `${lease.mine ? "lease mine" : "lease"}${lease.kind === "walk_in" ? " walkin" : ""}`, text: lease.mine ? "yours" : lease.user };
  });
  const others = runs(hours.map((at, index) => (covered.has(index) ? null : whyOf(at, node))));
  for (const run of others) found.push({ from: run.from, to: run.to, kind: classOf(run.key), text: WORDS[run.key] ?? run.key.replaceAll("_", " ") });
  return found;
}

const shapeOf = (node) => shapes.find((one) => one.nodes.includes(node.name));

// The part of [from, to) that lies in these hours, as columns; null where none does.
function columns({ from, to }, hours) {
  const [start, end] = [hours[0], hours.at(-1) + HOUR_MS];
  if (to <= start || from >= end) return null;
  return { s: Math.max(0, Math.floor((from - start) / HOUR_MS)), e: Math.min(hours.length, Math.ceil((to - start) / HOUR_MS)) };
}

// Bands as strips, and hatched what no window of the node has.
function shading(node, hours) {
  const shape = shapeOf(node);
  if (!shape) return [];
  const strips = shape.bands.map((band) => [band, columns(band, hours)]).filter(([, place]) => place).map(([band, place]) => make("i", { class: "band", title: `${band.name}: ${blockWords(band.from, band.to)}` }, place));
  if (!shape.windows) return strips;
  const open = hours.map((at) => shape.windows.some((one) => one.from <= at && at + HOUR_MS <= one.to));
  const shut = runs(open.map((isOpen) => (isOpen ? null : "shut"))).map((run) => make("i", { class: "closed", title: "in no window" }, { s: run.from, e: run.to }));
  return [...strips, ...shut];
}

// The bands of all shown nodes, each once.
function bandsOf(hours) {
  const found = new Map();
  for (const node of nodes()) {
    for (const band of shapeOf(node)?.bands ?? []) if (columns(band, hours)) found.set(`${band.name} ${band.from} ${band.to}`, band);
  }
  return [...found.values()];
}

function nowLine(hours) {
  const at = (Date.now() - hours[0]) / HOUR_MS;
  return at >= 0 && at <= hours.length ? make("i", { class: "nowline" }, { at, hours: hours.length }) : null;
}

function label(node) {
  const made = make("div", { class: "lab" });
  made.append(make("a", { href: "/nodes", text: node.name }), make("span", { text: node.class }));
  return made;
}

function drawWeek() {
  const grid = find("week-grid");
  const hours = days().flatMap(hoursOf);
  grid.style.setProperty("--hours", hours.length);
  grid.removeAttribute("aria-busy");
  const head = make("div", { class: "lane hd" });
  head.style.gridTemplateColumns = days().map((date) => `${hoursOf(date).length}fr`).join(" ");
  for (const date of days()) {
    const button = make("button", { type: "button", "aria-pressed": String(date.getTime() === shownDay.getTime()), "data-day": date.getTime() });
    button.append(make("b", { text: day(date).replace(/ \w+$/, "") }), dayNote(date));
    head.append(button);
  }
  const corner = make("div", { class: "lab" });
  corner.append(make("span", { text: zone(shownDay).replace(/ .*/, "") }));
  const rows = nodes().flatMap((node) => {
    const lane = make("div", { class: "lane week", role: "img", "aria-label": weekWords(node, hours) });
    const past = Math.min(hours.length, Math.floor((Date.now() - hours[0]) / HOUR_MS));
    if (past > 0) lane.append(make("i", { class: "night" }, { s: 0, e: past }));
    let sum = 0;
    for (const date of days().slice(0, -1)) lane.append(make("i", { class: "daysep" }, { s: (sum += hoursOf(date).length) }));
    lane.append(...shading(node, hours));
    for (const bar of bars(node, hours)) lane.append(make("i", { class: bar.kind, title: barWords(bar, hours) }, { s: bar.from, e: bar.to }));
    const line = nowLine(hours);
    if (line) lane.append(line);
    return [label(node), lane];
  });
  grid.replaceChildren(corner, head, ...rows);
  const names = [...new Set(bandsOf(hours).map((band) => band.name))];
  find("band-key").hidden = !names.length;
  find("band-names").textContent = names.join(", ");
}

const barWords = (bar, hours) => `${bar.text}: ${blockWords(hours[bar.from], hours[bar.to - 1] + HOUR_MS - (bar.lease ? GRACE_MS : 0))}`;

function weekWords(node, hours) {
  const found = bars(node, hours);
  const busy = found.reduce((sum, bar) => sum + bar.to - bar.from, 0);
  return `${node.name}: ${busy} of ${hours.length} hours taken${found.some((bar) => bar.lease?.mine) ? ", some by you" : ""}`;
}

function drawDay() {
  const grid = find("day-grid");
  const hours = hoursOf(shownDay);
  const focused = document.activeElement?.dataset?.cell;
  grid.style.setProperty("--hours", hours.length);
  find("day-title").textContent = new Intl.DateTimeFormat("en-GB", { weekday: "long", day: "numeric", month: "long" }).format(shownDay);
  const head = make("div", { class: "lane hd" }, { hours: hours.length });
  head.append(...hours.map((at) => make("span", { text: hourLabel(at, hours) })));
  head.append(...bandsOf(hours).map((band) => make("i", { class: "bandname", text: band.name, title: blockWords(band.from, band.to) }, columns(band, hours))));
  const corner = make("div", { class: "lab" });
  corner.append(make("span", { text: `${day(shownDay)}, ${zone(shownDay).replace(/ .*/, "")}` }));
  const rows = nodes().flatMap((node) => [label(node), dayLane(node, hours)]);
  grid.replaceChildren(corner, head, ...rows);
  const cells = [...grid.querySelectorAll(".cell")];
  const here = cells.find((cell) => cell.dataset.cell === focused) ?? cells.find((cell) => cell.classList.contains("pick")) ?? cells[0];
  cells.forEach((cell) => { cell.tabIndex = cell === here ? 0 : -1; });
  if (focused) here?.focus({ preventScroll: true });
  // On a narrow screen the day begins at the hour that can be booked.
  if (grid.dataset.day !== String(shownDay.getTime()) && here) {
    grid.dataset.day = shownDay.getTime();
    const scroll = find("day-scroll");
    scroll.scrollLeft = here.offsetLeft - grid.querySelector(".lab").offsetWidth - 40;
  }
}

function dayLane(node, hours) {
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
    const why = refused.get(at)?.get(node.name);
    if (why) lane.append(make("i", { class: "closed" }, { s: index, e: index + 1 }));
    const picked = pick && pick.node === node.name && at >= pick.start && at < pick.start + pick.hours * HOUR_MS;
    const edge = picked ? `${at === pick.start ? " first" : ""}${at === pick.start + (pick.hours - 1) * HOUR_MS ? " last" : ""}` : "";
    lane.append(make("button", { type: "button", class: `cell${picked ? ` pick${edge}` : ""}`, "data-cell": `${node.name} ${at}`, "data-at": at, "aria-pressed": String(Boolean(picked)), "aria-label": `${node.name}, ${day(new Date(at))}, ${hourLabel(at, hours)}, ${why ?? "free"}`, ...(why ? { title: why } : {}) }, { s: index }));
  });
  for (const bar of held) lane.append(dayBar(bar, hours));
  const line = nowLine(hours);
  if (line) lane.append(line);
  return lane;
}

function dayBar(bar, hours) {
  const position = { s: bar.from, e: bar.to, n: bar.to - bar.from };
  const words = barWords(bar, hours);
  const isLeased = bar.lease || bar.text === WORDS.leased;
  // Somebody else's hours can be asked for: the answer offers the waitlist.
  const asked = isLeased && !bar.lease?.mine && hours[bar.to - 1] > Date.now();
  const element = bar.lease?.mine
    ? make("button", { type: "button", class: bar.kind, "data-lease": bar.lease.id, title: words }, position)
    : make(asked ? "button" : "span", { class: bar.kind, title: words, ...(asked ? { type: "button", "data-taken": Math.max(hours[bar.from], Math.ceil(Date.now() / HOUR_MS) * HOUR_MS), "data-taken-hours": bar.to - bar.from, "aria-label": `${words}; ask for it` } : {}) }, position);
  element.append(make("span", { text: bar.text }));
  if (bar.lease) {
    const inside = jobs.filter((job) => job.lease === bar.lease.id || job.id === bar.lease.job);
    if (inside.length) {
      const box = make("span", { class: "jobs" });
      box.append(...inside.map((job) => make("span", { class: `job${job.state === "running" ? "" : " wait"}`, text: job.name }, { w: 1 })));
      element.append(box);
    }
    if (bar.lease.to <= hours.at(-1) + HOUR_MS) element.append(make("i", { class: "grace" }));
  }
  return element;
}

function drawMine() {
  const mine = leases.filter((lease) => lease.mine).sort((a, b) => a.from - b.from);
  const list = find("mine");
  const rows = mine.map((lease) => {
    const row = make("li", { class: "own-lease", "data-own": lease.id, tabindex: "-1" });
    const words = make("div");
    const state = make("span", { class: "badge", "data-state": lease.state, text: lease.state });
    words.append(make("strong", { text: lease.node }), " ", state, make("div", { class: "sub", text: `${blockWords(lease.from, lease.stop)}${lease.from > Date.now() ? `, ${distance(new Date(lease.from))}` : ""}` }));
    row.append(words);
    if (lease.kind === "booked") {
      const buttons = make("div", { class: "row" });
      buttons.append(make("button", { type: "button", class: "btn small", "data-extend": lease.id, text: "1 h more" }));
      const menu = make("details", { class: "menu confirm" });
      const inner = make("div");
      inner.append(make("p", { text: lease.state === "booked" ? "Its hours become free for others." : "Its running job stops with a checkpoint and goes back to the queue." }), make("button", { type: "button", class: "btn danger sure", "data-release": lease.id, text: lease.state === "booked" ? "Give it back" : "End it now" }));
      menu.append(make("summary", { class: "btn small danger", text: "Release" }), inner);
      buttons.append(menu);
      row.append(buttons);
    }
    return row;
  });
  const isOpen = list.querySelector("details[open]") || list.contains(document.activeElement);
  if (!isOpen) list.replaceChildren(...(rows.length ? rows : [make("li", { class: "sub", text: "None is open." })]));
  const swappable = mine.filter((lease) => lease.kind === "booked" && lease.state === "booked");
  const chosen = find("swap-with").value;
  find("swap-with").replaceChildren(...swappable.map((lease) => new Option(`for ${lease.node}, ${blockWords(lease.from, lease.stop)}`, lease.id)));
  if (swappable.some((lease) => lease.id === chosen)) find("swap-with").value = chosen;
  find("swap-box").hidden = find("swap-now").hidden = !swappable.length;
}

function drawWaits() {
  find("waits-card").hidden = !waits.length;
  find("waits").replaceChildren(...waits.map((wait) => {
    const row = make("li", { class: "own-lease" });
    const words = make("div");
    const offer = wait.offer?.state === "open" ? wait.offer : null;
    words.append(make("strong", { text: wait.node ?? wait.node_class ?? "any node" }), " ", make("span", { class: "badge", "data-state": offer ? "good" : "queued", text: offer ? "offered" : "waiting" }));
    words.append(make("div", { class: "sub", text: offer ? `${offer.node}, ${blockWords(Date.parse(offer.hold_start), Date.parse(offer.hold_end) - GRACE_MS)}, held for you until ${clock(new Date(offer.expires_at))}` : `${wait.hours} h, from ${day(new Date(wait.first_start))}, ${clock(new Date(wait.first_start))}; ${wait.ahead ? `${wait.ahead} ahead of you` : "you are next"}` }));
    const buttons = make("div", { class: "row" });
    if (offer) buttons.append(make("button", { type: "button", class: "btn small primary", "data-accept": wait.id, text: "Take it" }));
    buttons.append(make("button", { type: "button", class: "btn small", "data-leave": wait.id, text: "Leave", "aria-label": "Leave the waitlist" }));
    row.append(words, buttons);
    return row;
  }));
}

// ---- maintenance, for staff -----------------------------------------------------------------------
let upkeepPlan = null; // {body, found}

const upkeepBody = () => ({ nodes: [pick.node], start: iso(pick.start), hours: pick.hours, why: find("upkeep-why").value.trim() });

function drawUpkeep() {
  if (!viewer.is_staff) return;
  const list = find("upkeep");
  if (list.querySelector("details[open]") || list.contains(document.activeElement)) return;
  list.replaceChildren(...(upkeep.length ? upkeep.map((one) => {
    const ahead = one.occurrences.filter((each) => each.held && Date.parse(each.end) > Date.now());
    const row = make("li", { class: "own-lease" });
    const words = make("div");
    const on = [...new Set(ahead.map((each) => each.node))];
    words.append(make("strong", { text: on.join(", ") }), make("div", { class: "sub", text: `${blockWords(Date.parse(ahead[0].start), Date.parse(ahead[0].end))}${ahead.length > on.length ? `, and ${ahead.length - on.length} more times` : ""}: ${one.why}` }));
    const menu = make("details", { class: "menu confirm" });
    const inner = make("div");
    inner.append(make("p", { text: "Its hours can be booked again from now on." }), make("button", { type: "button", class: "btn danger sure", "data-upkeep-end": one.id, text: "End it" }));
    menu.append(make("summary", { class: "btn small danger", text: "End" }), inner);
    row.append(words, menu);
    return row;
  }) : [make("li", { class: "sub", text: "None is to come." })]));
}

function tellUpkeep(found) {
  const place = find("upkeep-answer");
  if (!found.displaced.length) {
    say(place, "good", "Nobody has these hours", []);
  } else {
    const acts = { move: (one) => `moves to ${one.to_node}`, refund: () => "is refunded", keep: () => "is left alone: it can't be displaced" };
    say(place, "warn", found.displaced.length === 1 ? "1 lease stands in the way" : `${found.displaced.length} leases stand in the way`, found.displaced.map((one) => `${one.user}, ${blockWords(Date.parse(one.hold_start), Date.parse(one.hold_end))}: ${acts[one.act]?.(one) ?? one.act}.`));
  }
  find("upkeep-keep").hidden = false;
}

find("upkeep-plan")?.addEventListener("click", async (event) => {
  const place = find("upkeep-answer");
  event.target.setAttribute("aria-busy", "true");
  find("upkeep-keep").hidden = true;
  try {
    const body = upkeepBody();
    upkeepPlan = { body, found: await api("POST", "/v1/maintenance/plan", body) };
    tellUpkeep(upkeepPlan.found);
    announce(place.textContent);
  } catch (error) {
    say(place, "bad", "Not planned", [error.message]);
  } finally {
    event.target.removeAttribute("aria-busy");
  }
});

find("upkeep-keep")?.addEventListener("click", (event) => act(event.target, async () => {
  const made = await api("POST", "/v1/maintenance", { ...upkeepPlan.body, plan: upkeepPlan.found.displaced.length ? upkeepPlan.found.plan : null });
  cleared();
  return made;
}, (made) => `Kept for maintenance: ${made.why}.`, find("lease-answer")));

function draw() {
  drawUpkeep();
  drawWaits();
  drawWeek();
  drawDay();
  drawMine();
}

// ---- lengths ------------------------------------------------------------------------------------
const lengthsOf = (node) => lengths.get(node) ?? [1];
const lengthFor = (node) => (lengthsOf(node).includes(wanted) ? wanted : lengthsOf(node)[0]);

// What the rules allow on the node; and what was dragged over, so that the verdict can say why not.
function offerLengths(node, hours) {
  const offered = [...new Set([...lengthsOf(node), hours])].sort((a, b) => a - b);
  find("book-hours").replaceChildren(...offered.map((one) => new Option(`${one} h`, one, false, one === hours)));
}

// ---- the verdict --------------------------------------------------------------------------------
let judging = 0;

function say(place, state, headline, sentences) {
  const box = make("div", { class: "verdict", "data-state": state });
  const inner = make("div");
  inner.append(make("strong", { text: headline }), ...sentences.map((text) => make("p", { text })));
  box.append(inner);
  place.replaceChildren(box);
}

function choose(node, start, hours) {
  pick = { node, start, hours };
  key = crypto.randomUUID();
  offerLengths(node, hours);
  find("book-hint").hidden = true;
  find("book-form").hidden = false;
  const of = allNodes.find((one) => one.name === node);
  const end = start + hours * HOUR_MS;
  find("book-title").textContent = `Book ${node}`;
  find("book-usable").textContent = blockWords(start, end - GRACE_MS);
  find("book-hold").textContent = `${hours} h, ${zone(new Date(start))}`;
  find("book-hardware").textContent = `${of.class}: ${of.slots} ${of.device === "cuda" ? "GPUs" : "CPU slots"}${of.model ? `, ${of.model}` : ""}, ${gib(of.memory_gib)}${of.device === "cuda" ? " each" : ""}`;
  find("book-now").textContent = `Book ${hours} h`;
  if (viewer.is_staff) {
    find("upkeep-keep").hidden = true;
    find("upkeep-answer").replaceChildren();
  }
  drawDay();
  judge();
}

const block = () => ({ node: pick.node, start: iso(pick.start), hours: pick.hours });

async function judge() {
  const round = ++judging;
  find("book-now").disabled = find("swap-now").disabled = true;
  find("verdict").classList.add("old");
  try {
    const found = await api("POST", "/v1/leases/verdict", block());
    if (round === judging) tell(found);
  } catch (error) {
    if (round !== judging) return;
    say(find("verdict"), "bad", "It can't be booked", [error.message]);
  } finally {
    if (round === judging) find("verdict").classList.remove("old");
  }
}

function tell(found) {
  verdict = found;
  const [node] = found.nodes;
  const start = Date.parse(found.hold_start);
  if (found.ok) {
    const { quota, hours } = node.charge;
    const counts = quota ? `Counts ${hours} h of the quota \u201c${quota.replaceAll("_", " ")}\u201d.` : "It is charged to no quota.";
    say(find("verdict"), "good", "You may book this", [counts, ...node.warnings.map((one) => one.message)]);
  } else {
    const [first, ...more] = node?.reasons ?? [];
    say(find("verdict"), "bad", first ? first.message : "It can't be booked", more.map((one) => one.message));
  }
  find("book-now").disabled = !found.ok;
  find("wait-now").hidden = !found.can_wait;
  find("swap-now").disabled = false; // a swap is judged without the lease that goes
  const left = node?.left ?? [];
  find("left-card").hidden = !left.length;
  find("left-policy").textContent = node?.policy && node.policy !== "default" ? `policy ${node.policy}, version ${node.policy_version}` : "";
  const words = new Map(); // of blocks one alternative or another, of node-hours every band
  for (const one of left) {
    const before = words.get(one.quota);
    const joined = before ? `${before}${one.text.includes("node-hours") ? "; " : ", or "}` : "";
    words.set(one.quota, `${joined}${one.text}${one.by_swap ? " (by swap)" : ""}`);
  }
  find("left").replaceChildren(...[...words].map(([quota, text]) => make("li", { text: `${quota.replaceAll("_", " ")}: ${text}` })));
  const next = (node?.next_starts ?? []).map(Date.parse).filter((at) => at !== start).slice(0, 5);
  find("next-card").hidden = !next.length;
  find("next-about").textContent = `${pick.hours} h on ${pick.node}`;
  find("next").replaceChildren(...next.map((at) => {
    const row = make("li", { class: "row spread" });
    row.append(make("span", { text: blockWords(at, at + pick.hours * HOUR_MS - GRACE_MS) }), make("button", { type: "button", class: "btn small", "data-pick-next": at, text: "Pick", "aria-label": `Pick ${blockWords(at, at + pick.hours * HOUR_MS - GRACE_MS)}` }));
    return row;
  }));
  announce(find("verdict").textContent);
}

// ---- acting -------------------------------------------------------------------------------------
async function act(button, work, done, place) {
  button.setAttribute("aria-busy", "true");
  try {
    const answer = await work();
    say(place, "good", done(answer), []);
    announce(done(answer));
    await look();
  } catch (error) {
    say(place, "bad", "Not done", [error.message]);
    await look();
  } finally {
    button.removeAttribute("aria-busy");
  }
}

const booked = (lease) => `Booked: ${lease.node}, ${blockWords(Date.parse(lease.hold_start), Date.parse(lease.usable_end))}`;

function cleared() {
  pick = null;
  find("book-form").hidden = true;
  find("book-hint").hidden = false;
  find("book-title").textContent = "Book hours";
  for (const name of ["left-card", "next-card"]) find(name).hidden = true;
}

find("book-now").addEventListener("click", (event) => act(event.target, async () => {
  const lease = await api("POST", "/v1/leases", block(), { "Idempotency-Key": key });
  cleared();
  return lease;
}, booked, find("lease-answer")));

find("swap-now").addEventListener("click", (event) => act(event.target, async () => {
  const lease = await api("POST", `/v1/leases/${find("swap-with").value}/swap`, block());
  cleared();
  return lease;
}, (lease) => `Swapped. ${booked(lease)}`, find("lease-answer")));

find("wait-now").addEventListener("click", (event) => act(event.target, async () => {
  const made = await api("POST", "/v1/waitlist", { node: pick.node, first_start: iso(pick.start), last_start: iso(pick.start), hours: pick.hours });
  cleared();
  return made;
}, (made) => `You wait for ${made.node}: when its hours become free, they are held for you and you are told.`, find("lease-answer")));

// A calendar program subscribes to the link; whoever has it can read it, and it is shown this once.
find("feed").addEventListener("click", async (event) => {
  const place = find("feed-answer");
  event.target.setAttribute("aria-busy", "true");
  try {
    const { url } = await api("POST", "/v1/calendars", {});
    say(place, "good", "Subscribe to this address; it is shown this once", ["It has your leases. Whoever has it can read them."]);
    place.firstElementChild.lastElementChild.append(make("input", { class: "input mono", readonly: "", "aria-label": "Calendar address", value: url }));
  } catch (error) {
    say(place, "bad", "No link was made", [error.message]);
  } finally {
    event.target.removeAttribute("aria-busy");
  }
});

document.addEventListener("click", (event) => {
  const at = (name) => event.target.closest(`[data-${name}]`);
  if (at("extend")) act(at("extend"), () => api("POST", `/v1/leases/${at("extend").dataset.extend}/extend`, { hours: 1 }), (lease) => `Longer: until ${clock(new Date(lease.usable_end))}.`, find("lease-answer"));
  if (at("release")) {
    const button = at("release");
    button.closest("details").open = false;
    act(button, () => api("POST", `/v1/leases/${button.dataset.release}/release`), () => "Given back.", find("lease-answer"));
  }
  if (at("taken")) choose(nodeOf(at("taken")), Number(at("taken").dataset.taken), Number(at("taken").dataset.takenHours));
  if (at("upkeep-end")) {
    const button = at("upkeep-end");
    button.closest("details").open = false;
    act(button, () => api("DELETE", `/v1/maintenance/${button.dataset.upkeepEnd}`), () => "The maintenance is over.", find("lease-answer"));
  }
  if (at("accept")) act(at("accept"), () => api("POST", `/v1/waitlist/${at("accept").dataset.accept}/accept`), () => "It is yours.", find("lease-answer"));
  if (at("leave")) act(at("leave"), () => api("DELETE", `/v1/waitlist/${at("leave").dataset.leave}`), () => "You wait no longer.", find("lease-answer"));
  if (at("pick-next")) {
    const start = Number(at("pick-next").dataset.pickNext);
    showDay(midnight(new Date(start)));
    choose(pick.node, start, pick.hours);
  }
  if (at("day")) showDay(new Date(Number(at("day").dataset.day)));
  if (at("lease")) document.querySelector(`[data-own="${at("lease").dataset.lease}"]`)?.focus();
});

async function showDay(date) {
  shownDay = midnight(date);
  const apart = Math.floor((shownDay - midnight(new Date())) / (DAYS * 24 * HOUR_MS) + 1e-6);
  if (apart !== week) {
    week = Math.max(0, apart);
    await look();
    return;
  }
  draw();
  await readDay().then(drawDay, () => {});
}

// ---- picking ------------------------------------------------------------------------------------
let dragging = null; // {node, at}

function stretch(node, one, other) {
  const [start, last] = one < other ? [one, other] : [other, one];
  choose(node, start, (last - start) / HOUR_MS + 1);
}

const dayGrid = find("day-grid");
const nodeOf = (cell) => cell.closest("[data-lane]").dataset.lane;
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
  pick = { node: dragging.node, start: Math.min(dragging.at, dragging.last), hours: Math.abs(dragging.last - dragging.at) / HOUR_MS + 1 };
  drawDay();
});
addEventListener("pointerup", () => {
  if (!dragging) return;
  const { node, at, last, moved } = dragging;
  dragging = null;
  if (moved) stretch(node, at, last);
});
dayGrid.addEventListener("click", (event) => {
  const cell = event.target.closest(".cell");
  if (!cell) return;
  if (pick && event.detail && pick.node === nodeOf(cell) && pick.hours > 1 && Number(cell.dataset.at) >= pick.start && Number(cell.dataset.at) < pick.start + pick.hours * HOUR_MS) return; // the end of a drag
  choose(nodeOf(cell), Number(cell.dataset.at), lengthFor(nodeOf(cell)));
});

dayGrid.addEventListener("keydown", (event) => {
  const cell = event.target.closest(".cell");
  if (!cell || !["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(event.key)) return;
  event.preventDefault();
  const at = Number(cell.dataset.at);
  const node = nodeOf(cell);
  if (event.shiftKey && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
    const before = pick && pick.node === node && pick.start === at ? pick.hours : lengthFor(node);
    const hours = event.key === "ArrowRight" ? lengthsOf(node).find((one) => one > before) : lengthsOf(node).findLast((one) => one < before);
    if (hours) choose(node, at, hours);
    return;
  }
  const lanes = [...dayGrid.querySelectorAll("[data-lane]")];
  const row = lanes.findIndex((lane) => lane.dataset.lane === node);
  let next;
  if (event.key === "ArrowUp" || event.key === "ArrowDown") {
    const by = event.key === "ArrowDown" ? 1 : -1;
    for (let index = row + by; index >= 0 && index < lanes.length && !next; index += by) {
      next = [...lanes[index].querySelectorAll(".cell")].sort((a, b) => Math.abs(a.dataset.at - at) - Math.abs(b.dataset.at - at))[0];
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

// ---- controls -----------------------------------------------------------------------------------
for (const button of document.querySelectorAll("[data-week]")) {
  button.addEventListener("click", () => {
    const by = Number(button.dataset.week);
    week = by === 0 ? 0 : Math.max(0, week + by);
    shownDay = firstDay();
    document.querySelector("[data-week='-1']").disabled = week === 0;
    look();
  });
}
document.querySelector("[data-week='-1']").disabled = true;
find("class")?.addEventListener("change", draw);
find("book-hours").addEventListener("change", (event) => {
  wanted = Number(event.target.value);
  choose(pick.node, pick.start, wanted);
});
readWindows().catch(() => {}); // the verdict says it anyway
readForecast().catch(() => {});
find("calendar-again").addEventListener("click", look);
look();
follow(["leases"], () => { if (!dragging) look(); });
