// "Any 3 h on Tuesday": the starts of a length on the shown day, on whichever node, before an hour
// is chosen.
import { ask } from "../api.js";
import { find, make } from "../elements.js";
import { asked } from "../looks.js";
import { announce } from "../page.js";
import { day } from "../times.js";
import { choose } from "./booking.js";
import { blockWords, HOUR_MS, hoursOf } from "./hours.js";
import { board, GRACE_MS, iso, nodes, shown } from "./shown.js";

const MOST = 8; // starts that are listed

/** The lengths that some bookable node allows, and the shown day: also when either has changed. */
export function drawAny() {
  const bookable = nodes().filter((node) => board.isBookable(node.name));
  const allowed = bookable.flatMap((node) => shown.lengths.get(node.name) ?? []);
  const lengths = [...new Set(allowed)].sort((a, b) => a - b);
  const select = find("any-hours");
  const before = Number(select.value);
  find("any").hidden = !lengths.length;
  find("any-day").textContent = day(shown.day);
  select.replaceChildren(
    ...lengths.map((one) => new Option(`${one} h`, String(one), false, one === before)),
  );
}

/**
 * Starts of blocks of so many hours on the shown day, the earliest first; and why there is none,
 * if all are refused for one reason.
 * @param {number} length
 * @returns {Promise<{ starts: { node: string, at: number }[], why: string }>}
 */
async function startsOf(length) {
  const hours = hoursOf(shown.day);
  const query = new URLSearchParams([
    ["start", iso(hours[0])],
    ["hours", String(hours.length)],
    ["block_hours", String(length)],
    ...(shown.gpus ? [["gpus", String(shown.gpus)]] : []),
  ]);
  const found = await ask(`/v1/leases/availability?${query}`);
  const wanted = nodes().map((node) => node.name);
  const reasons = new Set(
    found.hours.flatMap((hour) => hour.taken.map((one) => one.message).filter(Boolean)),
  );
  const starts = found.hours.flatMap((hour) => {
    const refused = new Set(hour.taken.filter((one) => one.message).map((one) => one.node));
    return wanted
      .filter((node) => !refused.has(node) && hour.nodes.includes(node))
      .map((node) => ({ node, at: Date.parse(hour.start) }));
  });
  return { starts, why: reasons.size === 1 ? [...reasons][0] : "" };
}

find("any-hours").addEventListener("change", () => find("any-hours").form.requestSubmit());
find("any").addEventListener("submit", async (event) => {
  event.preventDefault();
  const list = find("any-found");
  const length = Number(find("any-hours").value);
  list.setAttribute("aria-busy", "true");
  try {
    const { starts, why } = await asked(() => startsOf(length));
    const words = starts.length
      ? `${starts.length === 1 ? "1 start" : `${starts.length} starts`} for ${length} h`
      : why ||
        `No block of ${length} h can start on ${day(shown.day)}. Try another day, or fewer hours.`;
    list.replaceChildren(
      make("li", { class: "sub", text: words }),
      ...starts.slice(0, MOST).map(({ node, at }) => {
        const row = make("li", { class: "row spread" });
        const block = blockWords(at, at + length * HOUR_MS - GRACE_MS);
        const pick = make("button", {
          type: "button",
          class: "btn small",
          text: "Pick",
          "aria-label": `Pick ${block} on ${node}`,
        });
        pick.addEventListener("click", () => choose(node, at, length));
        row.append(make("span", { text: `${block}, ${node}` }), pick);
        return row;
      }),
    );
    announce(words);
  } catch (error) {
    list.replaceChildren(make("li", { class: "sub", text: error.message }));
  } finally {
    list.removeAttribute("aria-busy");
  }
});
