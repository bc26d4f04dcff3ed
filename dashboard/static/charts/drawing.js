// Additions to uPlot's own lines on the canvas of a chart: units, limits, marks, the remaining
// steps.

/** @import { Chart } from "./chart.js" */

/** @param {string} name */
export const css = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();
/**
 * @param {string} colour `#rrggbb`
 * @param {number} share
 */
export const faint = (colour, share) => {
  const [red, green, blue] = colour.match(/\w\w/g).map((pair) => parseInt(pair, 16));
  return `rgb(${red} ${green} ${blue} / ${share})`;
};

/**
 * The font at the resolution of the canvas.
 * @param {string} font
 */
export const scaled = (font) =>
  font.replace(/^([\d.]+)px/, (_, size) => `${size * (devicePixelRatio || 1)}px`);

/**
 * @param {Chart} chart
 * @param {uPlot} u
 */
export function shadeFuture(chart, u) {
  if (!chart.hasFuture) return;
  const last = u.data[0].at(-1) ?? 0;
  const end = chart.x.isReal ? chart.x.end : chart.steps;
  if (!end || last >= end || last > u.scales.x.max) return;
  const from = Math.max(u.bbox.left, u.valToPos(last, "x", true));
  u.ctx.save();
  u.ctx.fillStyle = css("--sunken");
  u.ctx.fillRect(from, u.bbox.top, u.bbox.left + u.bbox.width - from, u.bbox.height);
  u.ctx.restore();
}

/**
 * @param {Chart} chart
 * @param {uPlot} u
 * @param {string} font
 */
export function annotate(chart, u, font) {
  const { ctx, bbox } = u;
  const scale = devicePixelRatio || 1;
  ctx.save();
  ctx.font = scaled(font);
  ctx.fillStyle = css("--text-2");
  ctx.textAlign = "left";
  ctx.textBaseline = "top";
  ctx.fillText(chart.kind.unit, 0, 2 * scale);
  ctx.textAlign = "right";
  ctx.textBaseline = "bottom";
  if (!chart.kind.isOwnX) ctx.fillText(chart.x.x, bbox.left + bbox.width, u.ctx.canvas.height - 1);
  for (const limit of chart.limits) {
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
  for (const mark of chart.axis ? [] : chart.marks) {
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

/**
 * @param {CanvasRenderingContext2D} ctx
 * @param {number} x1
 * @param {number} y1
 * @param {number} x2
 * @param {number} y2
 * @param {number[]} dash
 * @param {number} width
 */
function line(ctx, x1, y1, x2, y2, dash, width) {
  ctx.beginPath();
  ctx.setLineDash(dash);
  ctx.lineWidth = width;
  ctx.moveTo(x1, y1);
  ctx.lineTo(x2, y2);
  ctx.stroke();
  ctx.setLineDash([]);
}
