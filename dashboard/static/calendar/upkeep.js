// Hours reserved by staff for maintenance: a preview of the affected leases, the reservation,
// and its end.
import { ask } from "../api.js";
import { find, make, say } from "../elements.js";
import { asked } from "../looks.js";
import { announce } from "../page.js";
import { cleared } from "./booking.js";
import { blockWords } from "./hours.js";
import { act } from "./lease_actions.js";
import { iso, shown } from "./shown.js";

/** @import { DisplacedLeaseView, MaintenanceView, OccurrenceView } from "trainyard-api" */
/** @import { Answer, Body } from "../../types/answers" */
/** @import { Shown } from "./shown.js" */

/** @typedef {Answer<"POST", "/v1/maintenance/plan">} Planned */
/** @type {{ body: Body<"POST", "/v1/maintenance/plan">, found: Planned }} */
let plan = null;

/** @param {OccurrenceView} each */
const isAhead = (each) => each.held && Date.parse(each.end) > Date.now();

/** @param {MaintenanceView[]} found */
export function takeUpkeep(found) {
  shown.upkeep = found.filter((one) => !one.cancelled_at && one.occurrences.some(isAhead));
}

export function drawUpkeep() {
  const list = find("upkeep");
  if (!list || list.querySelector("details[open]") || list.contains(document.activeElement)) return;
  list.replaceChildren(
    ...(shown.upkeep.length
      ? shown.upkeep.map(upkeepRow)
      : [make("li", { class: "sub", text: "No maintenance is planned." })]),
  );
}

/** @param {MaintenanceView} one */
function upkeepRow(one) {
  const ahead = one.occurrences.filter(isAhead);
  const row = make("li", { class: "own-lease" });
  const words = make("div");
  const on = [...new Set(ahead.map((each) => each.node))];
  const first = ahead.length
    ? blockWords(Date.parse(ahead[0].start), Date.parse(ahead[0].end))
    : "over";
  const more = ahead.length > on.length ? `, and ${ahead.length - on.length} more times` : "";
  words.append(
    make("strong", { text: on.join(", ") }),
    make("div", {
      class: "sub",
      text: `${first}${more}: ${one.why}`,
    }),
  );
  const menu = make("details", { class: "menu confirm" });
  const inner = make("div");
  inner.append(
    make("p", { text: "Its hours can be booked again from now on." }),
    make("button", {
      type: "button",
      class: "btn danger sure",
      "data-upkeep-end": one.id,
      text: "End it",
    }),
  );
  menu.append(make("summary", { class: "btn small danger", text: "End" }), inner);
  row.append(words, menu);
  return row;
}

/** @param {DisplacedLeaseView} one */
const heldHours = (one) => blockWords(Date.parse(one.hold_start), Date.parse(one.hold_end));

/** @param {Planned} found */
function tell(found) {
  const place = find("upkeep-answer");
  if (!found.displaced.length) {
    say(place, "good", "Nobody has these hours", []);
  } else {
    /** @type {Record<string, (one: DisplacedLeaseView) => string>} */
    const acts = {
      move: (one) => `moves to ${one.to_node}`,
      refund: () => "is refunded",
      keep: () => "stays: it can't be moved",
    };
    say(
      place,
      "warn",
      found.displaced.length === 1
        ? "1 lease is in the way"
        : `${found.displaced.length} leases are in the way`,
      found.displaced.map(
        (one) => `${one.user}, ${heldHours(one)}: ${acts[one.act]?.(one) ?? one.act}.`,
      ),
    );
  }
  find("upkeep-keep").hidden = false;
}

/** @param {Shown} state */
const wanted = ({ pick }) => ({
  nodes: [pick.node],
  start: iso(pick.start),
  hours: pick.hours,
  why: find("upkeep-why").value.trim(),
});

find("upkeep-plan")?.addEventListener("click", async (event) => {
  const place = find("upkeep-answer");
  event.target.setAttribute("aria-busy", "true");
  find("upkeep-keep").hidden = true;
  try {
    const body = wanted(shown);
    plan = {
      body,
      found: await asked(() => ask("/v1/maintenance/plan", { method: "POST", body })),
    };
    tell(plan.found);
    announce(place.textContent);
  } catch (error) {
    say(place, "bad", "Not planned", [error.message]);
  } finally {
    event.target.removeAttribute("aria-busy");
  }
});

find("upkeep-keep")?.addEventListener("click", (event) =>
  act(
    event.target,
    async () => {
      const made = await ask("/v1/maintenance", {
        method: "POST",
        body: { ...plan.body, plan: plan.found.displaced.length ? plan.found.plan : null },
      });
      cleared();
      takeUpkeep([...shown.upkeep, made]);
      drawUpkeep();
      return made;
    },
    (made) => `Kept for maintenance: ${made.why}.`,
  ),
);

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-upkeep-end]");
  if (!button) return;
  const { upkeepEnd: id } = button.dataset;
  button.closest("details").open = false;
  act(
    button,
    async () => {
      await ask(`/v1/maintenance/${id}`, { method: "DELETE" });
      shown.upkeep = shown.upkeep.filter((one) => one.id !== id);
      drawUpkeep();
    },
    () => "The maintenance has ended.",
  );
});
