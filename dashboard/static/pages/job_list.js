// Selection of rows in the list of jobs, and a small curve of each job's loss, or of another number
// that was chosen. Both survive a reload of the rows.
import { askIfThere } from "../api.js";
import { find, make } from "../elements.js";
import { decimal } from "../formats.js";
import { reads, ring } from "../looks.js";

const MOST_COMPARED = 6;
const bulk = document.getElementById("bulk");
/** @returns {PageElement[]} */
const boxes = () => [...document.querySelectorAll("#rows input[type=checkbox]")];

/** @type {PageElement | null} */
const all = document.querySelector("[data-select-all]"); // not there while there is no job

function tell() {
  const chosen = boxes().filter((box) => box.checked);
  if (all) {
    all.checked = chosen.length > 0 && chosen.length === boxes().length;
    all.indeterminate = chosen.length > 0 && !all.checked;
  }
  const jobs = chosen.length === 1 ? "1 job" : `${chosen.length} jobs`;
  bulk.hidden = chosen.length === 0;
  bulk.querySelector("[data-bulk-count]").textContent = `${chosen.length} selected`;
  for (const element of bulk.querySelectorAll("[data-bulk-jobs]")) element.textContent = jobs;
  const compare = bulk.querySelector("[data-compare]");
  compare.disabled = chosen.length < 2 || chosen.length > MOST_COMPARED;
  compare.title = compare.disabled ? `Select 2 to ${MOST_COMPARED} jobs to compare them` : "";
  for (const box of boxes()) box.closest("tr").setAttribute("aria-selected", String(box.checked));
}

document.addEventListener("change", (event) => {
  if (event.target === all) for (const box of boxes()) box.checked = all.checked;
  if (event.target === all || event.target.closest("#rows")) tell();
});
document.addEventListener("htmx:after:swap", () => {
  tell();
  drawSparks();
});
bulk.querySelector("[data-bulk-clear]").addEventListener("click", () => {
  for (const box of boxes()) box.checked = false;
  tell();
});
tell();

// ---- curves -----------------------------------------------------------------------------------
const WIDTH = 96;
const HEIGHT = 22;
const POINTS = 48;
const AT_ONCE = 3;
const MOST_ASKED = 6; // jobs whose keys are offered
const chosen = find("metric-of-list");
const key = chosen.getAttribute("value") || "loss";
/** @type {Map<string, { step: number, d: string, last: number | null }>} */
const paths = new Map(); // by job

/**
 * A curve in the box of a spark, from its first to its last value; its own lowest is the bottom.
 * @param {(number | null)[]} values
 */
function pathOf(values) {
  const known = values.filter(Number.isFinite);
  if (known.length < 2) return "";
  const low = Math.min(...known);
  const scale = (HEIGHT - 3) / (Math.max(...known) - low || 1);
  let pen = "M";
  return values
    .map((value, index) => {
      if (!Number.isFinite(value)) {
        pen = "M";
        return "";
      }
      const x = (index / (values.length - 1)) * WIDTH;
      const y = HEIGHT - 1.5 - (value - low) * scale;
      const point = `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = "L";
      return point;
    })
    .join("");
}

// A line that was drawn once is drawn again at once, and read anew when it has grown by a
// twentieth.
function drawSparks() {
  for (const spark of document.querySelectorAll("[data-spark]")) {
    if (paths.has(spark.dataset.spark)) draw(spark.dataset.spark);
  }
  ring(["sparks"]);
}

/** @param {string} id */
function draw(id) {
  const { d, last } = paths.get(id);
  for (const spark of document.querySelectorAll(`[data-spark="${id}"]`))
    spark.firstElementChild.setAttribute("d", d);
  for (const cell of document.querySelectorAll(`[data-metric-value="${id}"]`))
    cell.textContent = decimal(last);
}

function dueSparks() {
  /** @param {DOMStringMap} spark */
  const grown = ({ spark, step }) => Number(step) > (paths.get(spark)?.step ?? 0) * 1.05;
  return [...document.querySelectorAll("[data-spark]")]
    .map((spark) => ({ ...spark.dataset }))
    .filter(grown);
}

/**
 * @param {Record<string, string>} spark
 * @param {Way} way
 */
async function readSpark({ spark: id, step }, way) {
  const found = await askIfThere(
    `/v1/jobs/${encodeURIComponent(id)}/metrics?keys=${encodeURIComponent(key)}&rank=0&resolution=${POINTS}`,
    way,
  );
  const values = found?.series[0]?.values ?? [];
  const last = values.findLast(Number.isFinite) ?? null;
  paths.set(id, { d: pathOf(values), step: Number(step), last });
  draw(id);
}

// Offer what the first jobs of the list have logged.
reads("metrics", async (way) => {
  const listed = [...document.querySelectorAll("[data-spark]")].slice(0, MOST_ASKED);
  const answers = await Promise.all(
    listed.map(({ dataset }) =>
      askIfThere(`/v1/jobs/${encodeURIComponent(dataset.spark)}/metrics?rank=0&resolution=2`, way),
    ),
  );
  const keys = new Set(answers.flatMap((answer) => answer?.series.map((one) => one.key) ?? []));
  document
    .getElementById("metrics")
    .replaceChildren(...[...keys].sort().map((value) => make("option", { value })));
});
chosen.addEventListener("focus", () => ring(["metrics"], { isAsked: true }), { once: true });

reads("sparks", async (way) => {
  const due = dueSparks();
  while (due.length)
    await Promise.all(due.splice(0, AT_ONCE).map((spark) => readSpark(spark, way)));
});
drawSparks();
