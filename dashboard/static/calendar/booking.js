// The booking form: a chosen block, and the API's verdict on it before anything is booked.
import { ask } from "../api.js";
import { find, make, say } from "../elements.js";
import { gib } from "../formats.js";
import { asked } from "../looks.js";
import { announce } from "../page.js";
import { zone } from "../times.js";
import { drawDay } from "./day.js";
import { gpusWords } from "./fill.js";
import { blockWords, HOUR_MS } from "./hours.js";
import { allNodes, GRACE_MS, iso, shown, viewer } from "./shown.js";
import { hasParts, lengthsOf, wantedOf } from "./sizes.js";

/** @import { VerdictView } from "trainyard-api" */
/** @import { ShownNode } from "./shown.js" */

/** @type {AbortController} */
let judging = null; // aborts the question that is under way

// ---- lengths ------------------------------------------------------------------------------------
/**
 * Offer the lengths that the rules allow on the node, and the dragged one: the verdict explains it.
 * @param {string} node
 * @param {number} hours
 */
function offerLengths(node, hours) {
  const offered = [...new Set([...lengthsOf(node), hours])].sort((a, b) => a - b);
  find("book-hours").replaceChildren(
    ...offered.map((one) => new Option(`${one} h`, String(one), false, one === hours)),
  );
}

// ---- the verdict --------------------------------------------------------------------------------
/** @param {ShownNode} node */
function hardware(node) {
  const isCuda = node.device === "cuda";
  const of = wantedOf(node) === node.slots ? "" : `${wantedOf(node)} of `;
  const slots = `${of}${node.slots} ${isCuda ? "GPUs" : "CPU slots"}`;
  const parts = [slots, node.model, `${gib(node.memory_gib)}${isCuda ? " each" : ""}`];
  return `${node.class}: ${parts.filter(Boolean).join(", ")}`;
}

/**
 * @param {string} node
 * @param {number} start
 * @param {number} hours
 */
export function choose(node, start, hours) {
  shown.pick = { node, start, hours };
  shown.key = crypto.randomUUID();
  offerLengths(node, hours);
  find("book-hint").hidden = true;
  find("book-form").hidden = false;
  const of = allNodes.find((one) => one.name === node);
  const end = start + hours * HOUR_MS;
  const part = hasParts(of) ? `${gpusWords(wantedOf(of))} of ` : "";
  find("book-title").textContent = `Book ${part}${node}`;
  find("book-usable").textContent = blockWords(start, end - GRACE_MS);
  find("book-hold").textContent = `${hours} h, ${zone(new Date(start))}`;
  find("book-hardware").textContent = hardware(of);
  find("book-now").textContent = `Book ${part.replace(" of ", ", ")}${hours} h`;
  if (viewer.is_staff) {
    find("upkeep-keep").hidden = true;
    find("upkeep-answer").replaceChildren();
  }
  drawDay();
  judge();
}

export const block = () => ({
  node: shown.pick.node,
  start: iso(shown.pick.start),
  hours: shown.pick.hours,
  gpus: shown.gpus,
});
/** @param {Way} way */
const verdictOf = (way) => ask("/v1/leases/verdict", { ...way, method: "POST", body: block() });

async function judge() {
  judging?.abort();
  judging = new AbortController();
  const { signal } = judging;
  find("book-now").disabled = find("swap-now").disabled = true;
  find("verdict").classList.add("old");
  try {
    tell(await asked(() => verdictOf({ signal })));
  } catch (error) {
    if (!signal.aborted) say(find("verdict"), "bad", "This block can't be booked", [error.message]);
  } finally {
    if (!signal.aborted) find("verdict").classList.remove("old");
  }
}

/**
 * The rules have changed: what was said of the chosen block may not hold any more.
 * @param {Way} way
 */
export async function judgeAgain(way) {
  const { pick } = shown;
  if (!pick) return;
  const found = await verdictOf(way);
  if (shown.pick === pick) tell(found);
}

/** @param {VerdictView} found */
function tell(found) {
  const [node] = found.nodes;
  const { pick } = shown;
  const start = Date.parse(found.hold_start);
  if (found.ok) {
    const { quota, hours, gpu_hours: gpuHours } = node.charge;
    const isPart = hasParts(allNodes.find((one) => one.name === pick.node));
    const counts = quota
      ? `It counts ${isPart ? `${gpuHours} GPU-hours` : `${hours} h`} against the quota \u201c${quota.replaceAll("_", " ")}\u201d.`
      : "It counts against no quota.";
    say(find("verdict"), "good", "You may book this", [
      counts,
      ...node.warnings.map((one) => one.message),
    ]);
  } else {
    const [first, ...more] = node?.reasons ?? [];
    say(
      find("verdict"),
      "bad",
      first ? first.message : "This block can't be booked",
      more.map((one) => one.message),
    );
  }
  find("book-now").disabled = !found.ok;
  find("wait-now").hidden = !found.can_wait;
  find("swap-now").disabled = false; // a swap is judged without the lease that goes
  const left = node?.left ?? [];
  find("left-card").hidden = !left.length;
  find("left-policy").textContent =
    node?.policy && node.policy !== "default"
      ? `policy ${node.policy}, version ${node.policy_version}`
      : "";
  const words = new Map(); // of blocks one alternative or another, of node-hours every band
  for (const one of left) {
    const before = words.get(one.quota);
    const joined = before ? `${before}${/(node|GPU)-hours/.test(one.text) ? "; " : ", or "}` : "";
    words.set(one.quota, `${joined}${one.text}${one.by_swap ? " (by swap)" : ""}`);
  }
  find("left").replaceChildren(
    ...[...words].map(([quota, text]) =>
      make("li", { text: `${quota.replaceAll("_", " ")}: ${text}` }),
    ),
  );
  const next = (node?.next_starts ?? [])
    .map(Date.parse)
    .filter((at) => at !== start)
    .slice(0, 5);
  find("next-card").hidden = !next.length;
  find("next-about").textContent =
    `${shown.gpus ? `${gpusWords(shown.gpus)}, ` : ""}${pick.hours} h on ${pick.node}`;
  find("next").replaceChildren(
    ...next.map((at) => {
      const row = make("li", { class: "row spread" });
      row.append(
        make("span", { text: blockWords(at, at + pick.hours * HOUR_MS - GRACE_MS) }),
        make("button", {
          type: "button",
          class: "btn small",
          "data-pick-next": at,
          text: "Pick",
          "aria-label": `Pick ${blockWords(at, at + pick.hours * HOUR_MS - GRACE_MS)}`,
        }),
      );
      return row;
    }),
  );
  announce(find("verdict").textContent);
}

// No block is chosen any more.
export function cleared() {
  judging?.abort();
  shown.pick = null;
  find("book-form").hidden = true;
  find("book-hint").hidden = false;
  find("book-title").textContent = "Book hours";
  for (const name of ["left-card", "next-card"]) find(name).hidden = true;
}
