// The curves of a job as uPlot charts: one shared cursor, legends in HTML, colours from the tokens.
import { count } from "../formats.js";
import { KINDS } from "./kinds.js";
import { Legend } from "./legend.js";
import { plotOptions } from "./options.js";
import { aligned, smoothed } from "./series.js";

/** @import { Kind, XAxis } from "./kinds.js" */
/** @import { Series, Table, Values } from "./series.js" */

/** @typedef {{ at: number, name: string, isPlan?: boolean }} Limit */
/** @typedef {XAxis & { places: (steps: number[]) => Values }} Axis another x than steps */
/** @typedef {[number, number]} Range */
/**
 * @typedef {object} About
 * @property {number | null} [steps] that it is to have; null once there are no more to come
 * @property {string} [counted] what its tokens are called
 * @property {Limit[]} [limits]
 * @property {{ at: number, name: string }[]} [marks]
 * @property {Kind} [kind]
 */

const WIDE_ENOUGH = 8; // px of a drag that means a zoom

export class Chart {
  /**
   * @param {HTMLElement} figure
   * @param {Series} series
   * @param {About} about
   */
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
    /** @type {Kind} */
    this.kind = { x: "step", xLabel: count, ...kind, unit };
    this.source = series;
    /** @type {number | null} */
    this.steps = steps;
    this.limits = limits;
    this.marks = marks;
    this.weight = 0.8;
    this.isLog = false;
    /** @type {Axis | null} */
    this.axis = null;
    /** @type {Range | null} */
    this.zoom = null; // on the x axis
    /** @type {(range: Range | null) => void} */
    this.onZoom = (range) => this.zoomTo(range);
    /** @type {uPlot | null} */
    this.u = null;
    this.isWaiting = false; // for a width: it lies in a tab that is not open
    /** @type {Table | null} */
    this.own = null; // values of a stack, before they were summed
    /** @type {string | null} */
    this.lifted = null; // key of the line that is above the others
    /** @type {Range | null} */
    this.range = null; // of y
    this.legend = new Legend(figure, this.kind);
    new ResizeObserver(() => this.resize()).observe(this.plot);
    this.plot.addEventListener("keydown", (event) => this.moveCursor(event));
  }

  /** @returns {Table} */
  data() {
    const columns = this.kind.series.map((one) => {
      const { steps, values } = this.source.get(one.key);
      return { steps, values: one.isSmoothed ? smoothed(values, this.weight) : values };
    });
    if (this.kind.band) {
      const { steps, min, max } = this.source.get(this.kind.band);
      columns.push({ steps, values: max }, { steps, values: min });
    }
    const drawn = this.onAxis(this.stacked(aligned(columns)));
    if (!this.isLog) return drawn;
    const [places, ...rows] = drawn;
    return [places, ...rows.map((row) => row.map((value) => (value > 0 ? value : null)))];
  }

  /**
   * Each line of a stack is the sum of its own values and of those that come after it.
   * @param {Table} drawn
   * @returns {Table}
   */
  stacked(drawn) {
    if (!this.kind.isStacked) return drawn;
    this.own = drawn;
    const sums = /** @type {Table} */ (drawn.map((row) => [...row]));
    for (let place = sums.length - 2; place >= 1; place -= 1) {
      sums[place] = sums[place].map((value, index) =>
        value === null ? null : value + (sums[place + 1][index] ?? 0),
      );
    }
    return sums;
  }

  /**
   * Place the values on the chosen x axis; steps without a known place are left out.
   * @param {Table} drawn
   * @returns {Table}
   */
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

  /** @returns {XAxis} */
  get x() {
    return this.kind.isOwnX || !this.axis ? this.kind : { isReal: true, ...this.axis };
  }

  /** @param {Axis | null} axis */
  setAxis(axis) {
    this.axis = axis;
    this.zoom = null;
    this.redraw();
  }

  /** @param {Range | null} range */
  zoomTo(range) {
    this.zoom = range;
    if (!this.u) return;
    if (range) this.u.setScale("x", { min: range[0], max: range[1] });
    else this.u.setData(this.u.data);
  }

  get hasData() {
    return this.kind.series.some((one) => this.source.get(one.key).steps.length > 0);
  }

  draw() {
    if (!this.hasData) return;
    if (!this.u && !this.plot.clientWidth) {
      this.isWaiting = true;
      return;
    }
    const data = this.data();
    if (!this.u) this.create(data);
    else this.u.setData(data);
    this.plot.dataset.points = String(data[0].length);
    this.tell(this.u.cursor.idx);
  }

  redraw() {
    if (!this.u) return;
    this.u.destroy();
    this.u = null;
    /** @type {Table | null} */
    this.own = null; // values of a stack, before they were summed
    /** @type {string | null} */
    this.lifted = null; // key of the line that is above the others
    /** @type {Range | null} */
    this.range = null; // of y
    this.legend.paint();
    this.draw();
  }

  /** @param {Table} data */
  create(data) {
    this.plot.querySelector("[data-empty]")?.remove();
    this.u = new uPlot(plotOptions(this), data, this.plot);
  }

  // The curve of the loss shows how far there is to go; the others end with the data, as all do
  // once it is over.
  get hasFuture() {
    return Boolean(this.kind.hasFuture && this.steps);
  }

  /**
   * @param {number} min
   * @param {number} max
   * @returns {Range}
   */
  reach(min, max) {
    if (this.zoom) return this.zoom;
    if (this.kind.xEnd) return [this.kind.xStart ?? 0, this.kind.xEnd];
    if (this.x.isReal) return [0, (this.hasFuture && this.x.end) || max || 1];
    const last = this.hasFuture ? this.steps : Math.max(max ?? 1, 1);
    return [Math.min(min ?? 0, 1) === 1 ? 0 : Math.min(min ?? 0, 0), Math.max(last, max ?? 1, 2)];
  }

  /**
   * The y range is kept until a value leaves it.
   * @param {number} min
   * @param {number} max
   * @returns {Range}
   */
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

  /**
   * One line above the others, until it is asked for again.
   * @param {string} key
   */
  lift(key) {
    this.lifted = this.lifted === key ? null : key;
    this.redraw();
  }

  /**
   * The values under the cursor; at rest the last ones.
   * @param {number | null | undefined} index
   */
  tell(index) {
    if (!this.u) return;
    const data = /** @type {Table} */ (this.u.data);
    this.legend.tell(this.kind.isStacked ? [data[0], ...this.own.slice(1)] : data, this.x, index);
  }

  /** @param {uPlot} u */
  selected(u) {
    const { left, width } = u.select;
    if (width < WIDE_ENOUGH) return;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.onZoom([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
  }

  /**
   * + and - on a focused chart, around the cursor.
   * @param {number} factor
   */
  zoomBy(factor) {
    const { min, max } = this.u.scales.x;
    const middle =
      this.u.data[0][this.u.cursor.idx ?? this.u.data[0].length - 1] ?? (min + max) / 2;
    const half = ((max - min) * factor) / 2;
    const [first, last] = [this.u.data[0][0], this.u.data[0].at(-1)];
    const isAll = half * 2 >= last - first;
    this.onZoom(isAll ? null : [Math.max(first, middle - half), Math.min(last, middle + half)]);
  }

  /** @param {KeyboardEvent} event */
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
      // @ts-expect-error its types leave out the last argument: charts of one x follow
      true,
    );
  }

  resize() {
    if (!this.plot.clientWidth) return;
    if (this.isWaiting) {
      this.isWaiting = false;
      this.draw();
    } else if (this.u)
      this.u.setSize({ width: this.plot.clientWidth, height: this.plot.clientHeight });
  }
}
