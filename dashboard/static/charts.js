// The curves of a job as uPlot charts: one shared cursor, legends in HTML, colours from the tokens.
import { count, decimal, gib, ticks } from "./formats.js";
import { aligned, smoothed } from "./series.js";

/* global uPlot */
const DASHES = [[], [6, 3], [2, 3]];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const faint = (colour, share) => {
  const [red, green, blue] = colour.match(/\w\w/g).map((pair) => parseInt(pair, 16));
  return `rgb(${red} ${green} ${blue} / ${share})`;
};
const same = (values) => values;

// Per chart: unit above the y axis, series with key, name, place among the colours, and number format;
// where x is no step, what it is (`x`), its labels (`xLabel`) and its end (`xEnd`).
const KINDS = {
  loss: {
    unit: "loss, nats per token",
    format: decimal,
    series: [
      { key: "loss", name: "train, raw", colour: "--c-1", share: 0.38, width: 1 },
      { key: "loss", name: "train, smoothed", colour: "--c-1", width: 2, isSmoothed: true },
      { key: "eval_loss", name: "held out", colour: "--c-2", isPoints: true },
    ],
    band: "loss",
    hasFuture: true,
  },
  speed: { unit: "tokens/s, all ranks", format: count, fromZero: true, band: "tokens_per_s", series: [{ key: "tokens_per_s", name: "measured", colour: "--c-1", width: 1.5 }] },
  grad: { unit: "norm before clipping", format: decimal, fromZero: true, band: "grad_norm", series: [{ key: "grad_norm", name: "gradient norm", colour: "--c-1", width: 1.5 }] },
  lr: { unit: "learning rate", format: (value) => decimal(value, 3), fromZero: true, hasFuture: true, series: [{ key: "lr", name: "learning rate", colour: "--c-1", width: 1.5 }] },
  memory: { unit: "GiB, rank 0, peak so far", format: (value) => (Number.isFinite(value) ? gib(value) : decimal(value)), fromZero: true, series: [{ key: "max_active_gib", name: "peak", colour: "--c-1", width: 1.5 }] },
  time: {
    unit: "seconds",
    format: (value) => decimal(value, 3),
    fromZero: true,
    series: [
      { key: "step_time_s", name: "step", colour: "--c-1", width: 1.5 },
      { key: "data_time_s", name: "waiting for data", colour: "--c-2", width: 1.5, dash: 1 },
    ],
  },
};

export class Chart {
  constructor(figure, series, { steps, counted = "tokens", limits = [], marks = [], kind = KINDS[figure.dataset.chart] }) {
    this.figure = figure;
    this.plot = figure.querySelector(".plot");
    const unit = kind.unit.replace(/\btoken\b/, counted.slice(0, -1)).replace(/\btokens\b/, counted);
    this.kind = { x: "step", xLabel: count, ...kind, unit };
    this.source = series;
    this.steps = steps;
    this.limits = limits; // [{at, name, isPlan}]
    this.marks = marks; // [{at, name}]
    this.weight = 0.8;
    this.isLog = false;
    this.u = null;
    this.buildLegend();
    new ResizeObserver(() => this.resize()).observe(this.plot);
    this.plot.addEventListener("keydown", (event) => this.moveCursor(event));
  }

  data() {
    const columns = this.kind.series.map((one) => {
      const { steps, values } = this.source.get(one.key);
      return { steps, values: (one.isSmoothed ? smoothed(values, this.weight) : same(values)) };
    });
    if (this.kind.band) {
      const { steps, min, max } = this.source.get(this.kind.band);
      columns.push({ steps, values: max }, { steps, values: min });
    }
    const drawn = aligned(columns);
    if (this.isLog) return drawn.map((row, index) => (index ? row.map((value) => (value > 0 ? value : null)) : row));
    return drawn;
  }

  draw() {
    if (!this.kind.series.some((one) => this.source.get(one.key).steps.length)) return;
    const data = this.data();
    if (!this.u) this.create(data);
    else this.u.setData(data);
    this.plot.dataset.points = data[0].length;
    this.tell(this.u.cursor.idx);
  }

  redraw() {
    if (!this.u) return;
    this.u.destroy();
    this.u = null;
    this.paintLegend();
    this.draw();
  }

  create(data) {
    this.plot.querySelector("[data-empty]")?.remove();
    const bands = this.kind.band ? [{ series: [this.kind.series.length + 1, this.kind.series.length + 2], fill: css("--band") }] : [];
    const lines = this.kind.series.map((one) => {
      const colour = one.share ? faint(css(one.colour), one.share) : css(one.colour);
      const shared = { stroke: colour, spanGaps: false, points: { show: false } };
      if (one.isPoints) return { ...shared, width: 0, paths: () => null, points: { show: true, size: 7, width: 2, stroke: colour, fill: css("--surface") } };
      const points = { show: Boolean(one.hasPoints), size: 7, width: 2, stroke: colour, fill: css("--surface") };
      return { ...shared, points, width: one.width, dash: DASHES[one.dash ?? 0] };
    });
    const edges = this.kind.band ? [{}, {}].map(() => ({ width: 0, stroke: "transparent", points: { show: false } })) : [];
    const font = `${parseFloat(css("--text-xs")) * 16}px ${css("--font")}`;
    this.u = new uPlot({
      width: this.plot.clientWidth,
      height: this.plot.clientHeight,
      padding: [20, 14, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: this.kind.x, setSeries: false, scales: ["x", null] }, drag: { setScale: false, x: false, y: false }, points: { size: 7 }, y: false },
      scales: {
        x: { time: false, range: (u, min, max) => this.reach(min, max) },
        y: { distr: this.isLog ? 3 : 1, range: this.isLog ? undefined : (u, min, max) => this.span(u, min, max) },
      },
      axes: [
        { stroke: css("--axis"), font, grid: { show: false }, ticks: { stroke: css("--line-2"), size: 4, width: 1 }, gap: 4, size: 34, space: 60, values: (u, splits) => splits.map((value) => (Number.isInteger(value) ? this.kind.xLabel(value) : "")) },
        { stroke: css("--axis"), font, grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false }, gap: 6, space: 34, values: (u, splits, axis, space, step) => (this.isLog ? splits.map((value) => (value === null ? "" : decimal(value, 2))) : ticks(splits, step)), size: (u, values) => labelWidth(u, values, font) },
      ],
      series: [{}, ...lines, ...edges],
      bands,
      hooks: {
        drawClear: [(u) => this.shadeFuture(u)],
        draw: [(u) => this.annotate(u, font)],
        setCursor: [(u) => this.tell(u.cursor.idx)],
      },
    }, data, this.plot);
  }

  // The curve of the loss shows how far there is to go; the others end with the data.
  reach(min, max) {
    if (this.kind.xEnd) return [0, this.kind.xEnd];
    const last = this.kind.hasFuture ? this.steps : Math.max(max ?? 1, 1);
    return [Math.min(min ?? 0, 1) === 1 ? 0 : Math.min(min ?? 0, 0), Math.max(last, max ?? 1, 2)];
  }

  // The y range is kept until a value leaves it.
  span(u, min, max) {
    if (min === null || max === null || min === undefined) return [0, 1];
    let low = this.kind.fromZero ? Math.min(0, min) : min;
    let high = max;
    for (const limit of this.limits) if (limit.at > high && limit.at < 3 * high) high = limit.at;
    const margin = (high - low || Math.abs(high) || 1) * 0.08;
    const kept = this.range;
    const isInside = kept && low >= kept[0] && high <= kept[1] && high - low > (kept[1] - kept[0]) / 4;
    if (!isInside) this.range = [this.kind.fromZero && low === 0 ? 0 : low - margin, high + margin];
    return this.range;
  }

  shadeFuture(u) {
    if (!this.kind.hasFuture) return;
    const last = this.source.get(this.kind.series[0].key).steps.at(-1) ?? 0;
    if (last >= this.steps) return;
    const from = Math.max(u.bbox.left, u.valToPos(last, "x", true));
    u.ctx.save();
    u.ctx.fillStyle = css("--sunken");
    u.ctx.fillRect(from, u.bbox.top, u.bbox.left + u.bbox.width - from, u.bbox.height);
    u.ctx.restore();
  }

  annotate(u, font) {
    const { ctx, bbox } = u;
    const scale = devicePixelRatio || 1;
    ctx.save();
    ctx.font = font.replace(/^([\d.]+)px/, (whole, size) => `${size * scale}px`);
    ctx.fillStyle = css("--text-2");
    ctx.textAlign = "left";
    ctx.textBaseline = "top";
    ctx.fillText(this.kind.unit, 0, 2 * scale);
    ctx.textAlign = "right";
    ctx.textBaseline = "bottom";
    ctx.fillText(this.kind.x, bbox.left + bbox.width, u.ctx.canvas.height - 1);
    for (const limit of this.limits) {
      const y = u.valToPos(limit.at, "y", true);
      if (!(y >= bbox.top && y <= bbox.top + bbox.height)) continue;
      ctx.strokeStyle = ctx.fillStyle = limit.isPlan ? css("--text-3") : css("--limit");
      line(ctx, bbox.left, y, bbox.left + bbox.width, y, limit.isPlan ? [2 * scale, 3 * scale] : [6 * scale, 3 * scale], 1.5 * scale);
      ctx.textAlign = "right";
      ctx.textBaseline = y - bbox.top > 16 * scale ? "bottom" : "top";
      ctx.fillText(limit.name, bbox.left + bbox.width - 2 * scale, y + (ctx.textBaseline === "bottom" ? -2 : 3) * scale);
    }
    for (const mark of this.marks) {
      const x = u.valToPos(mark.at, "x", true);
      if (!(x >= bbox.left && x <= bbox.left + bbox.width)) continue;
      ctx.strokeStyle = ctx.fillStyle = css("--text-3");
      line(ctx, x, bbox.top, x, bbox.top + bbox.height, [2 * scale, 3 * scale], scale);
      ctx.textAlign = "left";
      ctx.textBaseline = "bottom";
      ctx.fillText(mark.name, x + 3 * scale, bbox.top + bbox.height - 3 * scale);
    }
    ctx.restore();
  }

  buildLegend() {
    const legend = this.figure.querySelector("[data-legend]");
    const entry = (name) => {
      const item = document.createElement("span");
      const value = document.createElement("b");
      value.className = "val";
      const key = document.createElement("i");
      item.append(key, document.createTextNode(`${name} `), value);
      legend.append(item);
      return { item, key, value };
    };
    this.stepEntry = entry(this.kind.x);
    this.stepEntry.key.remove();
    this.entries = this.kind.series.map((one) => {
      const made = entry(one.name);
      made.key.className = one.isPoints ? "key diamond" : `key line${one.dash ? " dash" : ""}`;
      return made;
    });
    this.paintLegend();
  }

  paintLegend() {
    this.kind.series.forEach((one, index) => {
      this.entries[index].key.style.setProperty("--k", one.share ? faint(css(one.colour), one.share) : css(one.colour));
    });
  }

  // The values under the cursor; at rest the last ones.
  tell(index) {
    if (!this.u) return;
    const data = this.u.data;
    const at = index ?? data[0].length - 1;
    this.stepEntry.value.textContent = this.kind.xLabel(data[0][at]);
    this.kind.series.forEach((one, place) => {
      const row = data[place + 1];
      let value = row[at];
      for (let back = at; (value === null || value === undefined) && back >= 0 && (one.isPoints || index === null || index === undefined); back -= 1) value = row[back];
      const { item, value: field } = this.entries[place];
      item.hidden = one.isPoints && (value === null || value === undefined);
      field.textContent = this.kind.format(value ?? null);
    });
    this.plot.setAttribute("aria-valuetext", `${this.kind.x} ${this.kind.xLabel(data[0][at])}`);
  }

  moveCursor(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !this.u) return;
    event.preventDefault();
    const last = this.u.data[0].length - 1;
    const from = this.u.cursor.idx ?? last;
    const index = Math.max(0, Math.min(last, from + by * (event.shiftKey ? 10 : 1)));
    this.u.setCursor({ left: this.u.valToPos(this.u.data[0][index], "x"), top: this.u.bbox.height / 2 / devicePixelRatio }, true, true);
  }

  resize() {
    if (this.u && this.plot.clientWidth) this.u.setSize({ width: this.plot.clientWidth, height: this.plot.clientHeight });
  }
}

// As wide as the longest label; uPlot's own 50 px cut "52,000" to "2,000".
function labelWidth(u, values, font) {
  if (!values?.length) return 30;
  u.ctx.save();
  const scale = devicePixelRatio || 1;
  u.ctx.font = font.replace(/^([\d.]+)px/, (whole, size) => `${size * scale}px`);
  const widest = Math.max(...values.map((value) => u.ctx.measureText(value ?? "").width));
  u.ctx.restore();
  return Math.ceil(widest / scale) + 12;
}

function line(ctx, x1, y1, x2, y2, dash, width) {
  ctx.beginPath();
  ctx.setLineDash(dash);
  ctx.lineWidth = width;
  ctx.moveTo(x1, y1);
  ctx.lineTo(x2, y2);
  ctx.stroke();
  ctx.setLineDash([]);
}
