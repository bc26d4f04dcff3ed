// The curves of a job as uPlot charts: one shared cursor, legends in HTML, colours from the tokens.
import { count, decimal, gib, ticks } from "../formats.js";
import { aligned, smoothed } from "./series.js";

/* global uPlot */
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const faint = (colour, share) => {
  const [red, green, blue] = colour.match(/\w\w/g).map((pair) => parseInt(pair, 16));
  return `rgb(${red} ${green} ${blue} / ${share})`;
};
const same = (values) => values;
const WIDE_ENOUGH = 8; // px of a drag that means a zoom
export const MOMENTS = ["before_forward", "after_forward", "after_backward", "after_optimizer"];

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
  speed: {
    unit: "tokens/s, all ranks",
    format: count,
    fromZero: true,
    band: "tokens_per_s",
    series: [{ key: "tokens_per_s", name: "measured", colour: "--c-1", width: 1.5 }],
  },
  grad: {
    unit: "norm before clipping",
    format: decimal,
    fromZero: true,
    band: "grad_norm",
    series: [{ key: "grad_norm", name: "gradient norm", colour: "--c-1", width: 1.5 }],
  },
  lr: {
    unit: "learning rate",
    format: (value) => decimal(value, 3),
    fromZero: true,
    hasFuture: true,
    series: [{ key: "lr", name: "learning rate", colour: "--c-1", width: 1.5 }],
  },
  parts: {
    unit: "s per step, looked into at step 20 and every 500th",
    format: (value) => decimal(value, 3),
    fromZero: true,
    isStacked: true,
    series: [
      // from the top of the stack
      { key: "exposed_comm_time_s", name: "waiting for others", colour: "--m-4", width: 1 },
      { key: "optimizer_time_s", name: "optimizer", colour: "--m-3", width: 1 },
      { key: "backward_time_s", name: "backward", colour: "--m-1", width: 1 },
      { key: "forward_time_s", name: "forward", colour: "--m-2", width: 1 },
    ],
  },
  phases: {
    unit: "GiB, rank 0, in the last step looked into",
    x: "moment",
    xLabel: (place) => MOMENTS[place - 1]?.replaceAll("_", " ") ?? "",
    xTick: (place) => MOMENTS[place - 1]?.replace("_", "\n") ?? "", // four beside each other on a phone
    xEnd: 4.55,
    xStart: 0.45,
    format: (value) => (Number.isFinite(value) ? gib(value) : decimal(value)),
    fromZero: true,
    isStacked: true,
    isOwnX: true,
    series: [
      { key: "rest", name: "activations and rest", colour: "--m-4", width: 1 },
      { key: "optimizer", name: "optimizer", colour: "--m-3", width: 1 },
      { key: "gradients", name: "gradients", colour: "--m-2", width: 1 },
      { key: "weights", name: "weights", colour: "--m-1", width: 1 },
    ],
  },
  gpu: {
    unit: "% of the time, rank 0",
    format: count,
    fromZero: true,
    series: [{ key: "gpu_pct", name: "GPU is busy", colour: "--c-1", width: 1.5 }],
  },
  cpu: {
    unit: "% of its threads\u2019 time, rank 0",
    format: count,
    fromZero: true,
    series: [{ key: "cpu_pct", name: "CPU is busy", colour: "--c-1", width: 1.5 }],
  },
  memory: {
    unit: "GiB, rank 0, peak so far",
    format: (value) => (Number.isFinite(value) ? gib(value) : decimal(value)),
    fromZero: true,
    series: [{ key: "max_active_gib", name: "peak", colour: "--c-1", width: 1.5 }],
  },
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
  constructor(
    figure,
    series,
    { steps, counted = "tokens", limits = [], marks = [], kind = KINDS[figure.dataset.chart] },
  ) {
    this.figure = figure;
    this.plot = figure.querySelector(".plot");
    const unit = kind.unit
      .replace(/\btoken\b/, counted.slice(0, -1))
      .replace(/\btokens\b/, counted);
    this.kind = { x: "step", xLabel: count, ...kind, unit };
    this.source = series;
    this.steps = steps; // that it is to have; null once there are no more to come
    this.limits = limits; // [{at, name, isPlan}]
    this.marks = marks; // [{at, name}]
    this.weight = 0.8;
    this.isLog = false;
    this.axis = null; // another x than steps: {x, xShort, xLabel, places(steps), end}
    this.zoom = null; // [from, to] on the x axis
    this.onZoom = (range) => this.zoomTo(range);
    this.u = null;
    this.buildLegend();
    new ResizeObserver(() => this.resize()).observe(this.plot);
    this.plot.addEventListener("keydown", (event) => this.moveCursor(event));
  }

  data() {
    const columns = this.kind.series.map((one) => {
      const { steps, values } = this.source.get(one.key);
      return { steps, values: one.isSmoothed ? smoothed(values, this.weight) : same(values) };
    });
    if (this.kind.band) {
      const { steps, min, max } = this.source.get(this.kind.band);
      columns.push({ steps, values: max }, { steps, values: min });
    }
    const drawn = this.onAxis(this.stacked(aligned(columns)));
    if (this.isLog)
      return drawn.map((row, index) =>
        index ? row.map((value) => (value > 0 ? value : null)) : row,
      );
    return drawn;
  }

  // Each line of a stack is the sum of its own values and of those that come after it.
  stacked(drawn) {
    if (!this.kind.isStacked) return drawn;
    this.own = drawn;
    const sums = drawn.map((row) => [...row]);
    for (let place = sums.length - 2; place >= 1; place -= 1) {
      sums[place] = sums[place].map((value, index) =>
        value === null ? null : value + (sums[place + 1][index] ?? 0),
      );
    }
    return sums;
  }

  // The same at other places of the x axis; steps whose place is not known are left out.
  onAxis(drawn) {
    if (!this.axis || this.kind.isOwnX) return drawn;
    const places = this.axis.places(drawn[0]);
    const kept = places
      .map((_, index) => index)
      .filter(
        (index) =>
          places[index] !== null &&
          (index === 0 || places[index] > (places[index - 1] ?? -Infinity)),
      );
    return [
      kept.map((index) => places[index]),
      ...drawn.slice(1).map((row) => kept.map((index) => row[index])),
    ];
  }

  get x() {
    return this.kind.isOwnX || !this.axis ? this.kind : { isReal: true, ...this.axis };
  }

  setAxis(axis) {
    this.axis = axis;
    this.zoom = null;
    this.redraw();
  }

  zoomTo(range) {
    this.zoom = range;
    if (!this.u) return;
    if (range) this.u.setScale("x", { min: range[0], max: range[1] });
    else this.u.setData(this.u.data);
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
    const bands = this.kind.band
      ? [
          {
            series: [this.kind.series.length + 1, this.kind.series.length + 2],
            fill: css("--band"),
          },
        ]
      : [];
    const lines = this.kind.series.map((one) => {
      const isBehind = this.lifted && this.lifted !== one.key;
      const colour =
        one.share || isBehind
          ? faint(css(one.colour), isBehind ? 0.25 : one.share)
          : css(one.colour);
      const shared = {
        stroke: colour,
        spanGaps: false,
        points: { show: false },
        ...(this.kind.isStacked ? { fill: colour } : {}),
      };
      if (one.isPoints)
        return {
          ...shared,
          width: 0,
          paths: () => null,
          points: { show: true, size: 7, width: 2, stroke: colour, fill: css("--surface") },
        };
      // One value alone makes no line.
      const points = {
        show: (u) => Boolean(one.hasPoints) || u.data[0].length === 1,
        size: 7,
        width: 2,
        stroke: colour,
        fill: css("--surface"),
      };
      return {
        ...shared,
        points,
        width: one.width * (this.lifted === one.key ? 1.6 : 1),
        dash: DASHES[one.dash ?? 0],
      };
    });
    const edges = this.kind.band
      ? [{}, {}].map(() => ({ width: 0, stroke: "transparent", points: { show: false } }))
      : [];
    const font = `${parseFloat(css("--text-xs")) * 16}px ${css("--font")}`;
    this.u = new uPlot(
      {
        width: this.plot.clientWidth,
        height: this.plot.clientHeight,
        padding: [24, 20, 0, 0], // half of the last label stands out on the right
        legend: { show: false },
        cursor: {
          sync: { key: this.x.x, setSeries: false, scales: ["x", null] },
          drag: { setScale: false, x: !this.kind.isOwnX, y: false },
          points: { size: 7 },
          y: false,
        },
        scales: {
          x: { time: false, range: (_, min, max) => this.reach(min, max) },
          y: {
            distr: this.isLog ? 3 : 1,
            range: (_, min, max) => (this.isLog ? this.decades(min, max) : this.span(min, max)),
          },
        },
        axes: [
          {
            stroke: css("--axis"),
            font,
            grid: { show: false },
            ticks: { stroke: css("--line-2"), size: 4, width: 1 },
            gap: 4,
            size: this.kind.xTick ? 42 : 34,
            space: 60,
            values: (_, splits) =>
              splits.map((value) =>
                this.x.isReal || Number.isInteger(value)
                  ? (this.x.xTick ?? this.x.xLabel)(value)
                  : "",
              ),
          },
          {
            stroke: css("--axis"),
            font,
            grid: { stroke: css("--grid"), width: 1 },
            ticks: { show: false },
            gap: 6,
            space: 34,
            splits: this.isLog ? (_u, _axis, min, max) => powers(min, max) : undefined,
            values: (_u, splits, _axis, _space, step) =>
              this.isLog
                ? splits.map((value) =>
                    value === null
                      ? ""
                      : value >= 1
                        ? value.toLocaleString("en-US")
                        : decimal(value, 3),
                  )
                : ticks(splits, step),
            size: (u, values) => labelWidth(u, values, font),
          },
        ],
        series: [{}, ...lines, ...edges],
        bands,
        hooks: {
          drawClear: [(u) => this.shadeFuture(u)],
          draw: [(u) => this.annotate(u, font)],
          setCursor: [(u) => this.tell(u.cursor.idx)],
          setSelect: [(u) => this.selected(u)],
        },
      },
      data,
      this.plot,
    );
  }

  // The curve of the loss shows how far there is to go; the others end with the data, as all do once
  // it is over.
  get hasFuture() {
    return Boolean(this.kind.hasFuture && this.steps);
  }

  reach(min, max) {
    if (this.zoom) return this.zoom;
    if (this.kind.xEnd) return [this.kind.xStart ?? 0, this.kind.xEnd];
    if (this.x.isReal) return [0, (this.hasFuture && this.x.end) || max || 1];
    const last = this.hasFuture ? this.steps : Math.max(max ?? 1, 1);
    return [Math.min(min ?? 0, 1) === 1 ? 0 : Math.min(min ?? 0, 0), Math.max(last, max ?? 1, 2)];
  }

  // The y range is kept until a value leaves it.
  span(min, max) {
    if (min === null || max === null || min === undefined) return [0, 1];
    const low = this.kind.fromZero ? Math.min(0, min) : min;
    let high = max;
    for (const limit of this.limits) if (limit.at > high && limit.at < 3 * high) high = limit.at;
    const margin = (high - low || Math.abs(high) || 1) * 0.08;
    const kept = this.range;
    const isInside =
      kept && low >= kept[0] && high <= kept[1] && high - low > (kept[1] - kept[0]) / 4;
    if (!isInside) this.range = [this.kind.fromZero && low === 0 ? 0 : low - margin, high + margin];
    return this.range;
  }

  // A log axis reaches from decade to decade, so that it moves seldom.
  decades(min, max) {
    const limits = this.kind.withLimits ? this.limits.map((limit) => limit.at) : [];
    const low = Math.min(...[min, ...limits].filter((value) => value > 0));
    const high = Math.max(...[max, ...limits].filter((value) => value > 0));
    if (!(low > 0) || !Number.isFinite(low)) return [0.1, 1];
    const from = 10 ** Math.floor(Math.log10(low));
    const to = 10 ** Math.ceil(Math.log10(high));
    return to / from > 10 || this.kind.withLimits
      ? [from, Math.max(to, from * 10)]
      : [low * 0.97, high * 1.03];
  }

  // One line above the others, until it is asked for again.
  lift(key) {
    this.lifted = this.lifted === key ? null : key;
    this.redraw();
  }

  shadeFuture(u) {
    if (!this.hasFuture) return;
    const last = u.data[0].at(-1) ?? 0;
    const end = this.x.isReal ? this.x.end : this.steps;
    if (!end || last >= end || last > u.scales.x.max) return;
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
    ctx.font = font.replace(/^([\d.]+)px/, (_, size) => `${size * scale}px`);
    ctx.fillStyle = css("--text-2");
    ctx.textAlign = "left";
    ctx.textBaseline = "top";
    ctx.fillText(this.kind.unit, 0, 2 * scale);
    ctx.textAlign = "right";
    ctx.textBaseline = "bottom";
    if (!this.kind.isOwnX) ctx.fillText(this.x.x, bbox.left + bbox.width, u.ctx.canvas.height - 1);
    for (const limit of this.limits) {
      const y = u.valToPos(limit.at, "y", true);
      if (!(y >= bbox.top && y <= bbox.top + bbox.height)) continue;
      ctx.strokeStyle = ctx.fillStyle = limit.isPlan ? css("--text-3") : css("--limit");
      line(
        ctx,
        bbox.left,
        y,
        bbox.left + bbox.width,
        y,
        limit.isPlan ? [2 * scale, 3 * scale] : [6 * scale, 3 * scale],
        1.5 * scale,
      );
      ctx.textAlign = "right";
      ctx.textBaseline = y - bbox.top > 16 * scale ? "bottom" : "top";
      ctx.fillText(
        limit.name,
        bbox.left + bbox.width - 2 * scale,
        y + (ctx.textBaseline === "bottom" ? -2 : 3) * scale,
      );
    }
    for (const mark of this.axis ? [] : this.marks) {
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
      const text = document.createTextNode(`${name} `);
      item.append(key, text, value);
      legend.append(item);
      return { item, key, name: text, value };
    };
    this.stepEntry = entry(this.kind.xShort ?? this.kind.x);
    this.stepEntry.key.remove();
    this.entries = this.kind.series.map((one) => {
      const made = entry(one.name);
      made.key.className = one.isPoints
        ? "key diamond"
        : `key line${["", " dash", " dot", " dash"][one.dash ?? 0]}`;
      return made;
    });
    this.paintLegend();
  }

  paintLegend() {
    this.kind.series.forEach((one, index) => {
      this.entries[index].key.style.setProperty(
        "--k",
        one.share ? faint(css(one.colour), one.share) : css(one.colour),
      );
    });
  }

  // The values under the cursor; at rest the last ones.
  tell(index) {
    if (!this.u) return;
    const data = this.u.data;
    const at = index ?? data[0].length - 1;
    this.stepEntry.value.textContent = this.x.xLabel(data[0][at]);
    this.kind.series.forEach((one, place) => {
      const row = (this.kind.isStacked ? this.own : data)[place + 1];
      let value = row[at];
      for (
        let back = at;
        (value === null || value === undefined) &&
        back >= 0 &&
        (one.isPoints || index === null || index === undefined);
        back -= 1
      )
        value = row[back];
      const { item, value: field } = this.entries[place];
      item.hidden = one.isPoints && (value === null || value === undefined);
      field.textContent = this.kind.format(value ?? null);
    });
    this.stepEntry.name.nodeValue = `${this.x.xShort ?? this.x.x} `;
  }

  selected(u) {
    const { left, width } = u.select;
    if (width < WIDE_ENOUGH) return;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.onZoom([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
  }

  // + and - on a focused chart, around the cursor.
  zoomBy(factor) {
    const { min, max } = this.u.scales.x;
    const middle =
      this.u.data[0][this.u.cursor.idx ?? this.u.data[0].length - 1] ?? (min + max) / 2;
    const half = ((max - min) * factor) / 2;
    const [first, last] = [this.u.data[0][0], this.u.data[0].at(-1)];
    const isAll = half * 2 >= last - first;
    this.onZoom(isAll ? null : [Math.max(first, middle - half), Math.min(last, middle + half)]);
  }

  moveCursor(event) {
    if (this.u && !this.kind.isOwnX && (event.key === "+" || event.key === "-")) {
      event.preventDefault();
      this.zoomBy(event.key === "+" ? 0.5 : 2);
      return;
    }
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !this.u) return;
    event.preventDefault();
    const last = this.u.data[0].length - 1;
    const from = this.u.cursor.idx ?? last;
    const index = Math.max(0, Math.min(last, from + by * (event.shiftKey ? 10 : 1)));
    this.plot.dataset.label ??= this.plot.getAttribute("aria-label");
    const place = `${this.x.x} ${this.x.xLabel(this.u.data[0][index])}`;
    this.plot.setAttribute("aria-label", `${this.plot.dataset.label}; ${place}`);
    this.u.setCursor(
      {
        left: this.u.valToPos(this.u.data[0][index], "x"),
        top: this.u.bbox.height / 2 / devicePixelRatio,
      },
      true,
      true,
    );
  }

  resize() {
    if (this.u && this.plot.clientWidth)
      this.u.setSize({ width: this.plot.clientWidth, height: this.plot.clientHeight });
  }
}

// Powers of ten on a log axis; where there are too few, also their doubles and fives.
function powers(min, max) {
  const decades = Math.log10(max / min);
  const every = Math.max(1, Math.round(decades / 5));
  const factors = decades < 2.5 ? [1, 2, 5] : [1];
  const found = [];
  for (
    let power = Math.floor(Math.log10(min));
    power <= Math.ceil(Math.log10(max));
    power += every
  ) {
    for (const factor of factors) found.push(factor * 10 ** power);
  }
  return found.filter((value) => value >= min * 0.999 && value <= max * 1.001);
}

// As wide as the longest label; uPlot's own 50 px cut "52,000" to "2,000".
function labelWidth(u, values, font) {
  if (!values?.length) return 30;
  u.ctx.save();
  const scale = devicePixelRatio || 1;
  u.ctx.font = font.replace(/^([\d.]+)px/, (_, size) => `${size * scale}px`);
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
