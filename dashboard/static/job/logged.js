// Charts of all keys that a job logs and no other chart shows: in sections by prefix, found by a
// search. They are made when a new key comes, and drawn while they are in view.
import { Chart } from "../charts/chart.js";
import { KINDS, MOMENTS } from "../charts/kinds.js";
import { find, make } from "../elements.js";
import { count, decimal } from "../formats.js";
import { join, part } from "./job_charts.js";
import { series } from "./known.js";

const SHOWN = new Set([
  ...Object.values(KINDS).flatMap((kind) => kind.series.map((line) => line.key)),
  ...["time", "tokens_seen", "preflight_ms", "num_alloc_retries"], // an axis, and what is told
]);
const OF_A_MOMENT = new RegExp(`^(${MOMENTS.join("|")})_\\w+_gib$`); // the chart of the phases
const NO_PREFIX = "Others";
const MARGIN = "200px"; // of the view: a chart is drawn before it is scrolled to

const section = find("logged");
const searched = find("logged-search");
/** @type {Map<string, Chart>} */
const charts = new Map(); // by key
/** @type {Map<string, HTMLDetailsElement>} */
const groups = new Map(); // by prefix
const seen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const chart = charts.get(/** @type {HTMLElement} */ (target).dataset.key);
      if (isIntersecting) join(chart);
      else part(chart);
    }
  },
  { rootMargin: MARGIN },
);

/** @param {string} key */
const isNew = (key) => !charts.has(key) && !SHOWN.has(key) && !OF_A_MOMENT.test(key);

/** @param {string} key */
const prefix = (key) => (key.includes("/") ? key.slice(0, key.indexOf("/")) : NO_PREFIX);

/**
 * The section of a prefix: before the first that comes later in the alphabet, the others last.
 * @param {string} name
 */
function groupOf(name) {
  const known = groups.get(name);
  if (known) return known;
  const group = make("details", { class: "card logged-group", open: "" });
  const summary = make("summary");
  summary.append(make("strong", { text: name }), " ", make("span", { class: "sub" }));
  group.append(summary, make("div", { class: "grid" }));
  const after = [...groups.keys()]
    .filter((other) => name !== NO_PREFIX && (other === NO_PREFIX || other > name))
    .sort((a, b) => Number(a === NO_PREFIX) - Number(b === NO_PREFIX) || (a < b ? -1 : 1));
  section.insertBefore(group, groups.get(after[0]) ?? null);
  groups.set(name, group);
  return group;
}

/** @param {string} key */
function add(key) {
  const figure = /** @type {HTMLElement} */ (
    /** @type {HTMLTemplateElement} */ (find("logged-chart")).content.firstElementChild.cloneNode(
      true,
    )
  );
  figure.dataset.key = key;
  figure.querySelector("h3").textContent = key;
  figure.querySelector(".plot").setAttribute("aria-label", `${key} by step`);
  const grid = groupOf(prefix(key)).querySelector(".grid");
  const next = [...grid.children].find(
    (other) => /** @type {HTMLElement} */ (other).dataset.key > key,
  );
  grid.insertBefore(figure, next ?? null);
  const line = { key, name: "rank 0", colour: "--c-1", width: 1.5 };
  const kind = { unit: key.slice(key.lastIndexOf("/") + 1), format: decimal, band: key };
  charts.set(key, new Chart(figure, series, { steps: null, kind: { ...kind, series: [line] } }));
  seen.observe(figure);
}

// Show the charts whose key has all the words that are searched for.
function search() {
  const words = searched.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const [key, { figure }] of charts)
    figure.hidden = !words.every((word) => key.toLowerCase().includes(word));
  let found = 0;
  for (const group of groups.values()) {
    const shown = group.querySelectorAll("figure:not([hidden])").length;
    group.hidden = !shown;
    group.querySelector("summary span").textContent = count(shown);
    found += shown;
  }
  find("logged-none").hidden = found > 0;
}
searched.addEventListener("input", search);

// Make the charts of keys that have come since.
export function drawLogged() {
  const fresh = [...series.keys.keys()].filter(isNew);
  if (!fresh.length) return;
  for (const key of fresh.sort()) add(key);
  section.hidden = false;
  search();
}
