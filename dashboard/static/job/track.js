// The track of a job: a line from its start towards its stop time, drawn with a buffer stop.
import { near } from "../times.js";

/**
 * Moments of a job, in milliseconds since 1970.
 * @typedef {object} Moments
 * @property {number} start
 * @property {number} now
 * @property {number | null} finish
 * @property {number | null} stop
 * @property {number | null} end when it really ended
 * @property {number[]} saves
 * @property {boolean} isLive
 */

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 82;
const Y = 46;
const LABEL = 75; // px, as wide as `stop Sat 04:55` may be

/**
 * @param {string} name
 * @param {Record<string, string | number>} attributes
 * @param {string} [text]
 * @returns {SVGElement}
 */
function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") made.style.cssText = String(value);
    else made.setAttribute(key, String(value));
  }
  if (text !== undefined) made.textContent = text;
  return made;
}

const STEPS_MS = [10e3, 30e3, 60e3, 300e3, 600e3, 1800e3, 3600e3, 6 * 3600e3, 24 * 3600e3];

/**
 * @param {number} from
 * @param {number} to
 * @param {number} width
 */
function ticks(from, to, width) {
  const most = Math.max(2, Math.floor(width / 110));
  const size = STEPS_MS.find((one) => (to - from) / one <= most) ?? (to - from) / most;
  const zone = new Date(from).getTimezoneOffset() * 60e3;
  const first = Math.ceil((from - zone) / size) * size + zone;
  const found = [];
  for (let at = first; at <= to; at += size) found.push(at);
  return { found, seconds: size < 60e3 };
}

/**
 * @param {Element} box
 * @param {Moments} moments
 */
export function drawTrack(box, { start, now, finish, stop, end, saves, isLive }) {
  const width = box.clientWidth;
  if (!width) return;
  const until = end ?? now;
  const latest = Math.max(until, isLive ? Math.max(finish ?? 0, stop ?? 0) : 0, start + 10e3);
  // A stop that is far behind the finish would squeeze the track: it is then only named.
  const isStopFar = isLive && stop && finish && stop - start > 4 * (finish - start);
  const to = isStopFar ? start + (finish - start) * 1.35 : latest + (latest - start) * 0.02;
  /** @param {number} at */
  const X = (at) => 2 + ((at - start) / (to - start)) * (width - 4);
  const svg = element("svg", {
    class: "track",
    height: HEIGHT,
    viewBox: `0 0 ${width} ${HEIGHT}`,
    role: "img",
  });
  /**
   * @param {string} name
   * @param {Record<string, string | number>} attributes
   * @param {string} [text]
   */
  const add = (name, attributes, text) => svg.append(element(name, attributes, text));
  const { found, seconds } = ticks(start, to, width);
  for (const at of found) {
    add("line", { x1: X(at), x2: X(at), y1: Y + 12, y2: Y + 18, style: "stroke:var(--line-2)" });
    add(
      "text",
      {
        x: X(at),
        y: Y + 31,
        "text-anchor": X(at) < 24 ? "start" : X(at) > width - 24 ? "end" : "middle",
      },
      near(new Date(at), { seconds }),
    );
  }
  /**
   * @param {string} name
   * @param {Record<string, string | number>} attributes
   * @param {string} [text]
   */
  add("rect", {
    x: X(start),
    width: X(to) - X(start),
    y: Y - 4,
    height: 8,
    rx: 1,
    style: "fill:var(--wait-tint)",
  });
  add("rect", {
    x: X(start),
    width: Math.max(2, X(until) - X(start)),
    y: Y - 4,
    height: 8,
    rx: 1,
    style: "fill:var(--live)",
  });
  const isLate = Boolean(isLive && finish && stop && finish > stop);
  if (isLive && finish) {
    add("path", {
      d: `M${X(now)} ${Y}H${X(isLate ? stop : finish)}`,
      style: "stroke:var(--live);stroke-width:2;stroke-dasharray:5 4",
    });
    if (isLate)
      add("path", {
        d: `M${X(stop)} ${Y}H${X(finish)}`,
        style: "stroke:var(--bad);stroke-width:2;stroke-dasharray:3 2",
      });
  }
  for (const at of saves) {
    if (at >= start && at <= to)
      add("line", {
        x1: X(at),
        x2: X(at),
        y1: Y - 9,
        y2: Y + 9,
        style: "stroke:var(--live);stroke-width:2",
      });
  }
  if (isLive && stop && !isStopFar) {
    add("path", {
      d: `M${X(stop)} ${Y - 14}V${Y + 14}M${X(stop)} ${Y - 14}h7M${X(stop)} ${Y + 14}h7`,
      style: "stroke:var(--bad-ink);stroke-width:3;fill:none",
    });
    const isCrowded = X(stop) - X(now) < 2 * LABEL; // then it goes to the other side of its mark
    const [x, anchor] =
      isCrowded && X(stop) + LABEL < width ? [X(stop) + 10, "start"] : [X(stop) - 6, "end"];
    add(
      "text",
      { x, y: Y - 16, "text-anchor": anchor, class: "strong" },
      `stop ${near(new Date(stop))}`,
    );
  } else if (isStopFar) {
    add(
      "text",
      { x: width - 2, y: Y - 16, "text-anchor": "end" },
      `stopped at ${near(new Date(stop))} at the latest \u2192`,
    );
  }
  if (isLive) {
    add("circle", {
      cx: X(now),
      cy: Y,
      r: 6,
      style: "fill:var(--surface);stroke:var(--live);stroke-width:3",
    });
    const room = X(now) < 40 ? "start" : X(now) > width - 60 ? "end" : "middle";
    add(
      "text",
      { x: X(now), y: Y - 14, "text-anchor": room, class: "strong" },
      `now ${near(new Date(now), { seconds })}`,
    );
  } else {
    add(
      "text",
      {
        x: X(until),
        y: Y - 14,
        "text-anchor": X(until) > width - 60 ? "end" : "middle",
        class: "strong",
      },
      `ended ${near(new Date(until), { seconds: true })}`,
    );
  }
  if (isLive && finish) {
    add("path", {
      d: `M${X(finish)} ${Y - 7}l6 7-6 7-6-7z`,
      style: `fill:var(--surface);stroke:var(${isLate ? "--bad" : "--good"});stroke-width:2`,
    });
    add("path", {
      d: `M${X(finish)} ${Y - 28}V${Y - 8}`,
      style: `stroke:var(${isLate ? "--bad" : "--good"})`,
    });
    add(
      "text",
      {
        x: Math.min(width - 2, X(finish) + 4),
        y: Y - 32,
        "text-anchor": "end",
        class: isLate ? "bad" : "good",
      },
      `finish ${near(new Date(finish), { seconds: finish - now < 120e3 })}`,
    );
  }
  svg.setAttribute(
    "aria-label",
    [...svg.querySelectorAll("text[class]")].map((text) => text.textContent).join(", "),
  );
  box.replaceChildren(svg);
}
