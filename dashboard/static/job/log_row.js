// One line of a rank's output as a row: its name, its kind, and its text, which is inert: control
// and direction characters are spelled out.
import { make } from "../elements.js";
import { clock, day } from "../times.js";

/** @import { LogLine } from "trainyard-api" */

// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what it looks for.
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/;
const IS_ERROR =
  /\b[A-Z]\w*(Error|Exception)\b|\b([Ee]rror|ERROR|[Ee]xception|Traceback|[Ff]atal|FATAL)\b/;
const IS_WARNING = /warn(ing)?\b/i;
// Lines of libraries below the training: glog's ("I1122 10:00:00.1 file.cpp:52] ..."), NCCL's, and
// those that name a source file in C++.
const IS_OF_FRAMEWORK =
  /^\[?[IW]\d{4} \d\d:\d\d:\d\d|\bNCCL (INFO|TRACE)\b|\b\w+\.(cpp|cc|cu|h):\d+\]/;

/** @param {string} text */
export const isError = (text) => IS_ERROR.test(text);
/** @param {string} text */
export const isWarning = (text) => IS_WARNING.test(text);
/** @param {string} text */
export const isNoise = (text) => IS_OF_FRAMEWORK.test(text) && !IS_ERROR.test(text);

/**
 * The name of a line within its job, as the API's `around` takes it.
 * @param {LogLine} line
 */
export const nameOf = ({ epoch, rank, stream, line }) => `${epoch}.${rank}.${stream}.${line}`;

/**
 * @param {Element} element
 * @param {string} text
 */
function appendInert(element, text) {
  let plain = "";
  const flush = () => {
    if (plain) element.append(document.createTextNode(plain));
    plain = "";
  };
  for (const character of text) {
    if (!ODD.test(character)) {
      plain += character;
      continue;
    }
    flush();
    const shown = make("span", { class: "esc" });
    shown.textContent =
      character === "\u001b"
        ? "ESC"
        : `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    element.append(shown);
  }
  flush();
}

/**
 * @param {LogLine} line
 * @returns {HTMLLIElement}
 */
export function makeRow(line) {
  const row = make("li");
  row.dataset.line = nameOf(line);
  if (line.rank < 0) row.classList.add("system");
  if (isError(line.text)) row.classList.add("error");
  else if (isWarning(line.text)) row.classList.add("warning");
  if (isNoise(line.text)) row.classList.add("noise");
  const link = make("a", {
    class: "n",
    href: `?line=${row.dataset.line}#logs`,
    text: line.line + 1,
    "aria-label": `Link to line ${line.line + 1}`,
  });
  const time = make("time");
  if (line.at) {
    const at = new Date(line.at);
    time.dateTime = line.at;
    time.textContent = clock(at, { seconds: true });
    time.title = `${day(at, { year: true })}, ${time.textContent}`;
  }
  const text = make("span");
  appendInert(text, line.text);
  row.append(
    link,
    time,
    make("span", { class: "a", text: `a${line.epoch}` }),
    make("span", { class: "r", text: line.rank < 0 ? "sys" : `r${line.rank}` }),
    make("span", { class: "lv", text: line.stream === "stderr" ? "err" : "out" }),
    text,
  );
  return row;
}

/** A row that stands for the lines of frameworks after it, and opens them. */
export function makeFold() {
  const row = make("li", { class: "fold" });
  row.append(make("button", { type: "button", "aria-expanded": "false" }));
  return row;
}
