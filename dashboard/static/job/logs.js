// The output of every rank: filtered by the API, followed live, opened at a line that an address
// names.
import { ask } from "../api.js";
import { count } from "../formats.js";
import { ring } from "../looks.js";
import { announce } from "../page.js";
import { isError, isNoise, isWarning, makeFold, makeRow, nameOf } from "./log_row.js";
import { LogSearch } from "./log_search.js";
import { letView } from "./log_view.js";
import { openTabOf } from "./tabs.js";

/** @import { LogLine } from "trainyard-api" */

const TAIL = 500;
const AGAIN_MS = 3000; // after a reading that failed
const MOST = 3000; // lines on the page; older ones are dropped from its top

export class Logs {
  /**
   * @param {HTMLElement} card
   * @param {`/v1/jobs/${string}/logs`} address
   */
  constructor(card, address) {
    this.address = address;
    /** @param {string} name */
    this.find = (name) => card.querySelector(`[data-log-${name}]`);
    this.box = card.querySelector("[data-log]");
    /** @type {HTMLElement} */
    this.list = this.box.querySelector("ol");
    /** @type {Set<string>} */
    this.seen = new Set();
    /** @type {Set<number>} */
    this.ranks = new Set();
    /** @type {LogLine[]} */
    this.waiting = []; // live lines that came while a page was being read
    this.isReading = false;
    this.trouble = ""; // why the last reading failed
    this.isDetached = false; // lines between those shown and the newest are missing
    this.typing = 0;
    this.round = 0; // of reading: only the newest is shown
    this.isFollowing = true;
    for (const name of ["rank", "level", "stream"])
      this.find(name).addEventListener("change", () => this.read());
    this.find("only").addEventListener("change", () => this.read());
    this.find("search").addEventListener("input", () => {
      if (!this.find("only").checked) return;
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.read(), 250);
    });
    this.find("follow").addEventListener("click", () => {
      if (this.isDetached) this.read();
      this.follow(this.isDetached || !this.isFollowing);
    });
    this.find("error").addEventListener("click", () => this.firstError());
    this.find("earlier").addEventListener("click", () => this.readEarlier());
    this.box.addEventListener("scroll", () => {
      const isAtEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 24;
      if (isAtEnd !== this.isFollowing && this.box.clientHeight) this.follow(isAtEnd);
    });
    this.list.addEventListener("click", (event) => {
      const link = event.target.closest("a.n");
      if (!link) return;
      event.preventDefault();
      history.replaceState(null, "", link.getAttribute("href"));
      this.pick(link.closest("li"));
    });
    letView(card, this.box);
    this.search = new LogSearch(this.list, this.find("search"), this.find("matches"), {
      show: (row) => this.show(row),
      seek: (text) =>
        this.seek({ search: text }, (line) => line.toLowerCase().includes(text.toLowerCase())),
    });
    // In a tab that is not open nothing scrolls: the end is shown when it opens.
    new ResizeObserver(() => this.toEnd()).observe(this.box);
  }

  query() {
    const query = new URLSearchParams();
    for (const name of ["level", "rank"])
      if (this.find(name).value !== "") query.set(name, this.find(name).value);
    if (this.wanted) query.set("search", this.wanted);
    return query;
  }

  // The text that every shown line must have.
  get wanted() {
    return this.find("only").checked ? this.find("search").value : "";
  }

  /**
   * The last lines that pass the filter, from the API; with `around`, those around a line. Throws
   * Refused where nobody waits for them.
   * @param {Way | null} [way]
   * @param {string} [around]
   */
  async read(way = null, around = "") {
    this.isReading = true;
    this.round += 1;
    const round = this.round;
    const query = this.query();
    if (around) {
      query.set("around", around);
      query.set("limit", String(2 * TAIL));
    } else query.set("tail", String(TAIL));
    try {
      const page = await ask(`${this.address}?${query}`, way ?? {});
      if (round !== this.round) return;
      this.list.replaceChildren();
      this.seen.clear();
      this.isDetached = page.has_more;
      this.trouble = "";
      for (const rank of page.ranks) this.offer(rank);
      this.append(page.lines);
      this.find("earlier").hidden = page.lines.length < TAIL;
    } catch (error) {
      if (round !== this.round) return;
      this.trouble = error.message;
      if (way) throw error;
      if (error.isForNow) ring(["logs"], { after: AGAIN_MS });
    } finally {
      if (round === this.round) {
        this.isReading = false;
        this.add(this.waiting.splice(0));
      }
    }
  }

  async readEarlier() {
    const first = this.list.querySelector("li[data-line]");
    if (!first) return;
    const query = this.query();
    query.set("around", first.dataset.line);
    query.set("limit", String(2 * TAIL));
    const { lines } = await ask(`${this.address}?${query}`);
    const fresh = lines.filter((/** @type {LogLine} */ line) => !this.seen.has(nameOf(line)));
    const earlier = lines.findIndex(
      (/** @type {LogLine} */ line) => nameOf(line) === first.dataset.line,
    );
    this.find("earlier").hidden = earlier < TAIL;
    const kept = [...this.list.children];
    this.list.replaceChildren();
    this.append(fresh.slice(0, Math.max(0, earlier)));
    this.list.append(...kept);
    this.tellCount();
    this.show(first);
  }

  /** @param {LogLine[]} lines */
  add(lines) {
    for (const line of lines) this.offer(line.rank);
    if (this.isReading) this.waiting.push(...lines);
    else if (!this.isDetached) this.append(lines);
  }

  /** @param {LogLine[]} lines */
  append(lines) {
    let before = this.list.lastElementChild;
    const fresh = document.createDocumentFragment();
    for (const line of lines) {
      const name = nameOf(line);
      if (this.seen.has(name) || !this.passes(line)) continue;
      this.seen.add(name);
      const row = makeRow(line);
      if (isNoise(line.text) && !before?.matches(".noise")) fresh.append(makeFold());
      fresh.append(row);
      before = row;
    }
    this.list.append(fresh);
    this.tellFolds();
    while (this.list.childElementCount > MOST) this.drop();
    this.tellCount();
    if (this.find("search").value) this.search.mark();
    this.toEnd();
  }

  // Drop the oldest line; a fold with all that it folds.
  drop() {
    const oldest = /** @type {HTMLElement} */ (this.list.firstElementChild);
    this.seen.delete(oldest.dataset.line);
    oldest.remove();
    if (!oldest.matches(".fold")) return;
    while (this.list.firstElementChild?.matches(".noise")) this.drop();
  }

  tellFolds() {
    for (const fold of this.list.querySelectorAll(".fold")) {
      let lines = 0;
      let row = fold.nextElementSibling;
      for (; row?.classList.contains("noise"); row = row.nextElementSibling) lines += 1;
      fold.querySelector("button").textContent =
        `${count(lines)} ${lines === 1 ? "line" : "lines"} of frameworks`;
    }
  }

  tellCount() {
    const shown = this.list.querySelectorAll("li[data-line]").length;
    this.find("empty").hidden = shown > 0;
    if (!shown)
      this.find("empty").textContent = this.trouble
        ? `The logs could not be read. ${this.trouble}`
        : this.isFiltered()
          ? "No line matches."
          : "The job has printed nothing yet.";
    const words = `${count(shown)} ${shown === 1 ? "line" : "lines"}`;
    this.find("count").textContent = !shown
      ? ""
      : this.trouble
        ? `${words}; the others could not be read`
        : this.isDetached
          ? `${words}, not the newest`
          : words;
  }

  /** @param {LogLine} line */
  passes(line) {
    const { value: rank } = this.find("rank");
    const { value: stream } = this.find("stream");
    const { value: level } = this.find("level");
    if (level && !isError(line.text) && !(level === "warning" && isWarning(line.text)))
      return false;
    return (
      (rank === "" || Number(rank) === line.rank) &&
      (!stream || stream === line.stream) &&
      line.text.toLowerCase().includes(this.wanted.toLowerCase())
    );
  }

  isFiltered() {
    return Boolean(
      ["rank", "level", "stream"].some((name) => this.find(name).value) || this.wanted,
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
    this.toEnd();
  }

  toEnd() {
    if (this.isFollowing) this.box.scrollTop = this.box.scrollHeight;
  }

  async firstError() {
    const row = await this.seek({ level: "error" }, isError);
    if (row) {
      this.show(row);
      return;
    }
    announce("There is no error in these logs.");
    this.find("count").textContent = "no error in these logs";
  }

  /**
   * The row of the first line of the whole job that the API's filter and `fits` take. Filters of
   * the page that hide it are taken back, and the lines around it are read.
   * @param {Record<string, string>} filter
   * @param {(text: string) => boolean} fits
   */
  async seek(filter, fits) {
    const query = new URLSearchParams({ ...filter, limit: "1" });
    for (;;) {
      /** @type {{ lines: LogLine[], has_more: boolean, cursor: string } | null} */
      const page = await ask(`${this.address}?${query}`).catch(/** @returns {null} */ () => null);
      const found = page?.lines.find((line) => fits(line.text));
      if (found) return this.open(nameOf(found));
      if (!page?.has_more) return null;
      query.set("cursor", page.cursor);
    }
  }

  /**
   * The row of a line, read from the API unless it is shown.
   * @param {string} name
   * @returns {Promise<HTMLElement | null>}
   */
  async open(name) {
    const row = () =>
      /** @type {HTMLElement | null} */ (
        this.list.querySelector(`[data-line="${CSS.escape(name)}"]`)
      );
    if (!row()) {
      for (const filter of ["rank", "stream", "level"]) this.find(filter).value = "";
      this.find("only").checked = false;
      this.follow(false);
      await this.read(null, name);
    }
    return row();
  }

  /** @param {HTMLElement} row */
  show(row) {
    openTabOf(this.box);
    if (row.classList.contains("noise")) row.classList.add("shown");
    this.follow(false);
    this.box.scrollTop = row.offsetTop - this.box.offsetTop - 60;
    row.tabIndex = -1;
    row.focus({ preventScroll: true });
  }

  /**
   * Show the line that the address names.
   * @param {HTMLElement} row
   */
  pick(row) {
    this.list.querySelector(".picked")?.classList.remove("picked");
    row.classList.add("picked");
    this.show(row);
  }

  // What the page begins with: the line of its address, or the last ones.
  async start() {
    const line = new URLSearchParams(location.search).get("line");
    const row = line && /^[\w.-]+$/.test(line) ? await this.open(line) : null;
    if (row) this.pick(row);
    else await this.read();
  }
}
