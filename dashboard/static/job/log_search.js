// Search in a log: all matches among the shown lines are marked, Enter jumps from one to the next,
// Shift Enter back. What is not among them is sought in the whole log.
const MARK = "found"; // of the highlights of style.css

export class LogSearch {
  /**
   * @param {Element} list
   * @param {PageElement} input
   * @param {Element} told the number of matches
   * @param {{ show: (row: HTMLElement) => void, seek: (text: string) => Promise<HTMLElement | null> }} log
   */
  constructor(list, input, told, log) {
    this.list = list;
    this.input = input;
    this.told = told;
    this.log = log;
    /** @type {HTMLElement | null} */
    this.current = null;
    input.addEventListener("input", () => {
      this.current = null;
      this.mark();
    });
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.jump(event.shiftKey ? -1 : 1);
    });
  }

  get text() {
    return this.input.value.toLowerCase();
  }

  /** @returns {HTMLElement[]} */
  matches() {
    const { text } = this;
    if (!text) return [];
    return [...this.list.querySelectorAll("li[data-line]")].filter((row) =>
      row.lastElementChild.textContent.toLowerCase().includes(text),
    );
  }

  mark() {
    const rows = this.matches();
    this.tell(rows);
    if (!globalThis.CSS?.highlights) return; // an older browser: rows are jumped to all the same
    const ranges = rows.flatMap((row) => this.ranges(row.lastElementChild));
    CSS.highlights.set(MARK, new Highlight(...ranges));
  }

  /** @param {HTMLElement[]} rows */
  tell(rows) {
    const at = rows.indexOf(this.current);
    this.told.textContent = !this.text
      ? ""
      : at >= 0
        ? `${at + 1} of ${rows.length}`
        : `${rows.length} here`;
  }

  /**
   * @param {Element} element
   * @returns {Range[]}
   */
  ranges(element) {
    const found = [];
    for (const node of element.childNodes) {
      const content = node.textContent.toLowerCase();
      if (node.nodeType !== Node.TEXT_NODE || content.length !== node.textContent.length) continue;
      for (let at = content.indexOf(this.text); at >= 0; at = content.indexOf(this.text, at + 1)) {
        const range = new Range();
        range.setStart(node, at);
        range.setEnd(node, at + this.text.length);
        found.push(range);
      }
    }
    return found;
  }

  /** @param {number} by */
  async jump(by) {
    if (!this.text) return;
    const rows = this.matches();
    if (!rows.length) {
      this.current = await this.log.seek(this.input.value);
      this.mark();
      if (!this.current) this.told.textContent = "none in this log";
    } else {
      const at = rows.indexOf(this.current);
      const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by;
      this.current = rows[(next + rows.length) % rows.length];
      this.tell(rows);
    }
    if (!this.current) return;
    this.list.querySelector(".current")?.classList.remove("current");
    this.current.classList.add("current");
    this.log.show(this.current);
    this.input.focus({ preventScroll: true }); // Enter goes on
  }
}
