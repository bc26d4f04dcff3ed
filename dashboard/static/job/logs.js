// The output of every rank: filtered by the API, followed live, and inert. It is text only, with
// control and direction characters spelled out.
import { ask } from "../api.js";
import { announce } from "../page.js";

/** @import { LogLine } from "trainyard-api" */

const TAIL = 500;
const MOST = 3000; // lines on the page; older ones are dropped from its top
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what it looks for.
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/;
const IS_ERROR =
  /\b[A-Z]\w*(Error|Exception)\b|\b([Ee]rror|ERROR|[Ee]xception|Traceback|[Ff]atal|FATAL)\b/;
const IS_WARNING = /warn(ing)?\b/i;
const PAGE = 500;

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
    const shown = document.createElement("span");
    shown.className = "esc";
    shown.textContent =
      character === "\u001b"
        ? "ESC"
        : `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    element.append(shown);
  }
  flush();
}

export class Logs {
  /**
   * @param {Element} card
   * @param {`/v1/jobs/${string}/logs`} address
   */
  constructor(card, address) {
    this.address = address;
    /** @param {string} name */
    this.find = (name) => card.querySelector(`[data-log-${name}]`);
    this.box = card.querySelector("[data-log]");
    this.list = this.box.querySelector("ol");
    /** @type {Set<string>} */
    this.seen = new Set();
    /** @type {Set<number>} */
    this.ranks = new Set();
    /** @type {LogLine[]} */
    this.waiting = []; // live lines that came while a page was being read
    this.isReading = false;
    this.isFromTop = false; // what is read begins with the first error
    this.typing = 0;
    this.round = 0; // of reading: only the newest is shown
    this.isFollowing = true;
    this.find("rank").addEventListener("change", () => this.read());
    this.find("level").addEventListener("change", () => this.read());
    this.find("stream").addEventListener("change", () => this.read());
    this.find("search").addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.read(), 250);
    });
    this.find("follow").addEventListener("click", () => this.follow(!this.isFollowing));
    this.find("error").addEventListener("click", () => this.firstError());
    this.box.addEventListener("scroll", () => {
      const isAtEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 24;
      if (isAtEnd !== this.isFollowing) this.follow(isAtEnd);
    });
  }

  /**
   * The last lines that pass the filter, from the API. Throws Refused where nobody waits for them.
   * @param {Way | null} [way]
   */
  async read(way = null) {
    this.isReading = true;
    this.round += 1;
    const round = this.round;
    const query = new URLSearchParams(
      this.isFromTop ? { limit: String(PAGE) } : { tail: String(TAIL) },
    );
    if (this.find("level").value) query.set("level", this.find("level").value);
    if (this.find("rank").value !== "") query.set("rank", this.find("rank").value);
    if (this.find("search").value) query.set("search", this.find("search").value);
    try {
      const page = await ask(`${this.address}?${query}`, way ?? {});
      if (round !== this.round) return;
      this.list.replaceChildren();
      this.seen.clear();
      for (const rank of page.ranks) this.offer(rank);
      this.append(page.lines);
    } catch (error) {
      if (round !== this.round) return;
      if (way) throw error;
      this.find("empty").textContent = `The logs could not be read. ${error.message}`;
    } finally {
      if (round === this.round) {
        this.isReading = false;
        this.append(this.waiting.splice(0));
      }
    }
  }

  /** @param {LogLine[]} lines */
  add(lines) {
    for (const line of lines) this.offer(line.rank);
    if (this.isReading) this.waiting.push(...lines);
    else this.append(lines);
  }

  /** @param {LogLine[]} lines */
  append(lines) {
    const fresh = document.createDocumentFragment();
    for (const line of lines) {
      const name = `${line.epoch}.${line.rank}.${line.stream}.${line.line}`;
      if (this.seen.has(name) || !this.passes(line)) continue;
      this.seen.add(name);
      const row = this.row(line);
      row.dataset.line = name;
      fresh.append(row);
    }
    this.list.append(fresh);
    while (this.list.childElementCount > MOST) {
      const oldest = /** @type {HTMLElement} */ (this.list.firstElementChild);
      this.seen.delete(oldest.dataset.line);
      oldest.remove();
    }
    const shown = this.list.childElementCount;
    this.find("empty").hidden = shown > 0;
    if (!shown)
      this.find("empty").textContent = this.isFiltered() ? "No line matches." : "No line yet.";
    const words = `${shown.toLocaleString("en-US")} ${shown === 1 ? "line" : "lines"}`;
    const count = shown >= TAIL ? `${words}, the last ones` : words;
    this.find("count").textContent = shown ? count : "";
    if (this.isFollowing) this.box.scrollTop = this.box.scrollHeight;
  }

  /** @param {LogLine} line */
  row(line) {
    const row = document.createElement("li");
    if (line.rank < 0) row.className = "system";
    if (IS_ERROR.test(line.text)) row.className = "error";
    else if (IS_WARNING.test(line.text)) row.className = "warning";
    const cells = [
      [`a${line.epoch}`, "a"],
      [line.rank < 0 ? "sys" : `r${line.rank}`, "r"],
      [line.stream === "stderr" ? "err" : "out", "lv"],
    ];
    for (const [text, name] of cells) {
      const cell = document.createElement("span");
      cell.className = name;
      cell.textContent = text;
      row.append(cell);
    }
    const text = document.createElement("span");
    appendInert(text, line.text);
    row.append(text);
    return row;
  }

  /** @param {LogLine} line */
  passes(line) {
    const { value: rank } = this.find("rank");
    const { value: stream } = this.find("stream");
    const { value: search } = this.find("search");
    const { value: level } = this.find("level");
    if (level && !IS_ERROR.test(line.text) && !(level === "warning" && IS_WARNING.test(line.text)))
      return false;
    return (
      (rank === "" || Number(rank) === line.rank) &&
      (!stream || stream === line.stream) &&
      (!search || line.text.toLowerCase().includes(search.toLowerCase()))
    );
  }

  isFiltered() {
    return Boolean(
      this.find("rank").value ||
        this.find("level").value ||
        this.find("stream").value ||
        this.find("search").value,
    );
  }

  /** @param {number} rank */
  offer(rank) {
    if (this.ranks.has(rank)) return;
    this.ranks.add(rank);
    const select = this.find("rank");
    const chosen = select.value;
    const options = [...this.ranks]
      .sort((a, b) => a - b)
      .map((one) => new Option(one < 0 ? "launcher" : `rank ${one}`, String(one)));
    select.replaceChildren(new Option("all ranks", ""), ...options);
    select.value = chosen;
  }

  /**
   * Only the lines of one rank.
   * @param {string} rank
   */
  choose(rank) {
    this.offer(Number(rank));
    this.find("rank").value = rank;
    this.read();
  }

  /** @param {boolean} isOn */
  follow(isOn) {
    this.isFollowing = isOn;
    const button = this.find("follow");
    button.setAttribute("aria-pressed", String(isOn));
    button.firstChild.textContent = isOn ? "Following " : "Follow ";
    if (isOn) this.box.scrollTop = this.box.scrollHeight;
  }

  // The first of the job, which may lie before what is shown: then all errors are shown from it on.
  async firstError() {
    const { lines } = await ask(`${this.address}?level=error&limit=1`).catch(() => ({
      lines: /** @type {LogLine[]} */ ([]),
    }));
    const first = lines.find((line) => IS_ERROR.test(line.text));
    if (!first) {
      announce("There is no error in these logs.");
      this.find("count").textContent = "no error in these logs";
      return;
    }
    const row = () =>
      this.list.querySelector(
        `[data-line="${first.epoch}.${first.rank}.${first.stream}.${first.line}"]`,
      );
    if (!row()) {
      this.find("level").value = "error";
      for (const name of ["rank", "stream", "search"]) this.find(name).value = "";
      this.isFromTop = true;
      this.follow(false);
      await this.read();
      this.isFromTop = false;
    }
    this.show(row() ?? this.list.querySelector("li.error"));
  }

  /** @param {HTMLElement} row */
  show(row) {
    if (!row) return;
    this.follow(false);
    this.box.scrollTop = row.offsetTop - this.box.offsetTop - 60;
    row.tabIndex = -1;
    row.focus({ preventScroll: true });
  }
}
