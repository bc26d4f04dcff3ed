// The ranks of a job, coloured by their last reported values: one hue for all, and amber for a
// rank that the others wait for. Colour, edge, glyph and sentence all say so.
import { askIfThere } from "../api.js";
import { count, decimal, difference, gib } from "../formats.js";

/** @import { GpuReading, Series } from "trainyard-api" */

/** @typedef {{ all?: number, waiting?: number, step?: number }} Look */

const SHADES = 5;
const RECENT_S = 10; // each rank tells its use and its memory once a second
const SLOW = 1.05; // times the median: less is noise of one rank against another
/** @type {Record<string, { write: (value: number) => string, word: string, finds: boolean }>} */
const KEYS = {
  own_time_s: { write: (value) => `${decimal(value, 3)} s`, word: "own work", finds: true },
  max_active_gib: { write: gib, word: "peak memory", finds: false },
  use_pct: { write: (value) => `${Math.round(value)} %`, word: "use", finds: false },
};

/** @param {number[]} values */
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** @param {number[]} values */
function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/**
 * The ranks that are slower than usual, slowest first.
 * @param {Map<number, number>} values
 */
function slowest(values) {
  if (values.size <= 2) return [];
  const usual = median([...values.values()]);
  return [...values]
    .filter(([, value]) => value > usual * SLOW)
    .sort((a, b) => b[1] - a[1])
    .map(([rank]) => rank);
}

/**
 * Map rank -> the last profiled step: its whole time, and the time that the rank waited.
 * @param {Series[]} series
 * @returns {Map<number, Look>}
 */
function lookedInto(series) {
  const found = new Map();
  for (const { key, rank, steps, values } of series) {
    const last = values.findLastIndex(Number.isFinite);
    if (last < 0) continue;
    const look = found.get(rank) ?? {};
    look[key === "look_time_s" ? "all" : "waiting"] = values[last];
    found.set(rank, { ...look, step: steps[last] });
  }
  return new Map([...found].filter(([, look]) => look.all > 0 && look.waiting !== undefined));
}

/**
 * A sentence on what holds a GPU back now; empty if nothing does.
 * @param {GpuReading | undefined} gpu
 */
export function causeOf(gpu) {
  if (!gpu) return "";
  if (gpu.throttled?.length) {
    const clock = gpu.clock_mhz
      ? `, ${count(gpu.clock_mhz)} of ${count(gpu.max_clock_mhz ?? gpu.clock_mhz)} MHz`
      : "";
    return `GPU ${gpu.index} throttles: ${gpu.throttled.join(", ")}${clock}.`;
  }
  if (gpu.pcie_width && gpu.max_pcie_width && gpu.pcie_width < gpu.max_pcie_width)
    return `GPU ${gpu.index} uses ${gpu.pcie_width} of ${gpu.max_pcie_width} PCIe lanes.`;
  return "";
}

export class Ranks {
  /**
   * @param {Element} card
   * @param {`/v1/jobs/${string}`} address
   */
  constructor(card, address) {
    this.card = card;
    this.address = address;
    this.key = "own_time_s";
    /** @type {Map<string, Map<number, number>>} */
    this.found = new Map(); // key -> rank -> value
    /** @type {Map<number, Look>} */
    this.looks = new Map();
    this.step = -1;
    this.cause = "";
    for (const button of card.querySelectorAll("[data-colour]")) {
      button.addEventListener("click", () => {
        this.key = button.dataset.colour;
        for (const one of card.querySelectorAll("[data-colour]"))
          one.setAttribute("aria-pressed", String(one === button));
        this.paint();
      });
    }
    for (const button of card.querySelectorAll("[data-rank]")) {
      button.addEventListener("click", () =>
        dispatchEvent(new CustomEvent("rankchosen", { detail: button.dataset.rank })),
      );
    }
  }

  /**
   * @param {Way} way
   * @param {string} keys
   * @param {Record<string, string>} [query]
   */
  async ask(way, keys, query = {}) {
    return (
      (await askIfThere(`${this.address}/metrics?${new URLSearchParams({ keys, ...query })}`, way))
        ?.series ?? []
    );
  }

  /**
   * Read the last values of each rank: its own work in the last profiled step, its use and memory.
   * @param {Way} way
   * @param {number} step
   * @param {number | null} stepTime
   */
  async read(way, step, stepTime) {
    if (step === this.step || !step) return;
    const recent = Math.ceil(RECENT_S / (stepTime || RECENT_S)) + 1;
    const [looks, lately] = await Promise.all([
      this.ask(way, "look_time_s,exposed_comm_time_s"),
      this.ask(way, "max_active_gib,gpu_pct,cpu_pct", {
        since_step: String(Math.max(-1, step - recent)),
        resolution: "100",
      }),
    ]);
    this.step = step;
    this.looks = lookedInto(looks);
    this.found = new Map(Object.keys(KEYS).map((key) => [key, new Map()]));
    for (const [rank, look] of this.looks)
      this.found.get("own_time_s").set(rank, look.all - look.waiting);
    for (const { key, rank, values } of lately) {
      const known = values.filter(Number.isFinite);
      if (!known.length) continue;
      if (key === "max_active_gib") this.found.get(key).set(rank, Math.max(...known));
      else this.found.get("use_pct").set(rank, mean(known));
    }
    this.cause = await this.findCause(way);
    this.paint();
    this.tellStages();
    this.tellBubble();
  }

  /**
   * What holds the slowest rank's GPU back, by its node's last report.
   * @param {Way} way
   */
  async findCause(way) {
    const [rank] = slowest(this.found.get("own_time_s") ?? new Map());
    if (rank === undefined) return "";
    const places = (await askIfThere(this.address, way))?.nodes ?? [];
    const place = places.find(({ ranks }) => ranks.includes(rank));
    if (!place) return "";
    const node = await askIfThere(`/v1/nodes/${encodeURIComponent(place.node)}`, way);
    const slot = place.slots[place.ranks.indexOf(rank)];
    return causeOf(node?.telemetry?.gpus?.find(({ index }) => index === slot));
  }

  // The share of a step in which a rank computed nothing, beside the bubble that was planned.
  tellBubble() {
    const box = document.querySelector("[data-bubble]");
    if (!box || !this.looks.size) return;
    /** @param {Look[]} looks */
    const share = (looks) => 100 * mean(looks.map((look) => look.waiting / look.all));
    const stages = new Map();
    for (const cell of this.card.querySelectorAll("[data-rank]")) {
      const look = this.looks.get(Number(cell.dataset.rank));
      if (look) stages.set(cell.dataset.stage, [...(stages.get(cell.dataset.stage) ?? []), look]);
    }
    const step = Math.max(...[...this.looks.values()].map((look) => look.step));
    box.textContent = `${decimal(share([...this.looks.values()]), 3)} %`;
    const each = [...stages]
      .map(([stage, looks]) => `stage ${stage} ${decimal(share(looks), 3)} %`)
      .join(", ");
    document.querySelector("[data-bubble-stages]").textContent =
      `of step ${count(step)} waiting or sending while nothing was computed: ${each}.`;
  }

  // The most that a rank of each stage holds, beside what was planned for it.
  tellStages() {
    const peaks = this.found.get("max_active_gib") ?? new Map();
    for (const sum of document.querySelectorAll("[data-stage-sum]")) {
      const stage = sum.dataset.stageSum;
      const known = [...this.card.querySelectorAll(`[data-stage="${stage}"]`)]
        .map((cell) => peaks.get(Number(cell.dataset.rank)))
        .filter(Number.isFinite);
      if (!known.length) continue;
      const peak = Math.max(...known);
      sum.textContent = `${gib(peak)} ${difference(peak, Number(sum.dataset.plan))}`;
      document.querySelector(`[data-stage-bar="${stage}"]`).style.setProperty("--g", String(peak));
    }
  }

  paint() {
    const { write, word, finds } = KEYS[this.key];
    const values = this.found.get(this.key) ?? new Map();
    const cells = [...this.card.querySelectorAll("[data-rank]")];
    const usual = values.size ? median([...values.values()]) : 0;
    const slow = new Set(finds ? slowest(values) : []);
    const scale = [...values].filter(([rank]) => !slow.has(rank)).map(([, value]) => value);
    const [low, high] = [Math.min(...scale), Math.max(...scale)];
    for (const cell of cells) {
      const rank = Number(cell.dataset.rank);
      const value = values.get(rank);
      const shade =
        value === undefined || high === low
          ? 1
          : Math.min(SHADES - 1, Math.floor(((value - low) / (high - low)) * SHADES));
      const isSilent = value === undefined && values.size > 1;
      cell.className = `rank ${slow.has(rank) ? "straggler" : isSilent ? "silent" : `h${shade}`}`;
      const isSlow = slow.has(rank);
      const told = value === undefined ? "" : write(value);
      const measured = told ? `${word} ${told}` : "not measured";
      cell.querySelector("[data-value]").textContent = `${slow.has(rank) ? "\u25b2 " : ""}${told}`;
      cell.setAttribute(
        "aria-label",
        `rank ${rank}, ${measured}${isSlow ? ", slower than the others" : ""}; show its logs`,
      );
    }
    const box = this.card.querySelector("[data-scale]");
    box.hidden = values.size < 2 || high === low;
    this.card.querySelector("[data-low]").textContent = values.size ? write(low) : "";
    this.card.querySelector("[data-high]").textContent = values.size ? write(high) : "";
    this.card.querySelector("[data-rank-sentence]").textContent = this.sentence(
      values,
      slow,
      usual,
      cells.length,
    );
  }

  /**
   * @param {Map<number, number>} values
   * @param {Set<number>} slow
   * @param {number} usual
   * @param {number} all
   */
  sentence(values, slow, usual, all) {
    const { write, word } = KEYS[this.key];
    const [[only, itsValue] = []] = values;
    if (!values.size)
      return this.key === "own_time_s"
        ? "The colours appear after step 20, the first step that is profiled."
        : "No rank has reported it yet.";
    if (values.size === 1 && all > 1)
      return `Only rank ${only} measures its ${word}: ${write(itsValue)}.`;
    if (!slow.size)
      return this.key === "own_time_s"
        ? `No rank is slower than the others: ${write(usual)} of own work per step.`
        : "";
    const [rank] = slow;
    const value = values.get(rank);
    const others = slow.size > 1 ? `, and ${slow.size - 1} more` : "";
    const longer = `${write(value - usual)} longer than the usual ${write(usual)}`;
    return `\u25b2 Rank ${rank} takes ${longer}${others}; the others wait for it. ${this.cause}`;
  }
}
