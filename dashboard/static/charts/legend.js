// The legend of a chart, in HTML: its lines, and their values under the cursor.
import { css, faint } from "./drawing.js";

/** @import { Kind, XAxis } from "./kinds.js" */
/** @import { Table } from "./series.js" */

export class Legend {
  /**
   * @param {Element} figure
   * @param {Kind} kind
   */
  constructor(figure, kind) {
    this.kind = kind;
    const legend = figure.querySelector("[data-legend]");
    /** @param {string} name */
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
    this.stepEntry = entry(kind.xShort ?? kind.x);
    this.stepEntry.key.remove();
    this.entries = kind.series.map((one) => {
      const made = entry(one.name);
      made.key.className = one.isPoints
        ? "key diamond"
        : `key line${["", " dash", " dot", " dash"][one.dash ?? 0]}`;
      return made;
    });
    this.paint();
  }

  paint() {
    this.kind.series.forEach((one, index) => {
      this.entries[index].key.style.setProperty(
        "--k",
        one.share ? faint(css(one.colour), one.share) : css(one.colour),
      );
    });
  }

  /**
   * Write the values at an index of the table; without one the last that are known.
   * @param {Table} table
   * @param {XAxis} x
   * @param {number | null | undefined} index
   */
  tell([places, ...rows], x, index) {
    const at = index ?? places.length - 1;
    this.stepEntry.value.textContent = x.xLabel(places[at]);
    this.kind.series.forEach((one, place) => {
      const row = rows[place];
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
    this.stepEntry.name.nodeValue = `${x.xShort ?? x.x} `;
  }
}
