// Booking: a block is chosen, the API's verdict is told before anything is booked, and what was done
// is shown as soon as it is answered.
import { ask } from "../api.js";
import { gib } from "../formats.js";
import { asked, ring } from "../looks.js";
import { announce } from "../page.js";
import { clock, zone } from "../times.js";
import { find, make, say } from "./elements.js";
import { drawDay, drawWeek } from "./grids.js";
import { blockWords, HOUR_MS } from "./hours.js";
import { drawOwn, dropWait, keepLease, keepWait } from "./own.js";
import { allNodes, GRACE_MS, iso, shown, viewer } from "./shown.js";

const TOLD_WITHIN_MS = 3000; // the stream says what changed within a second; if not, it is read then

let key = ""; // of the block that is chosen: it is booked once, however often it is sent
let judging = null; // aborts the question that is under way

// ---- lengths ------------------------------------------------------------------------------------
export const lengthsOf = (node) => shown.lengths.get(node) ?? [1];
export const lengthFor = (node) =>
  lengthsOf(node).includes(shown.wanted) ? shown.wanted : lengthsOf(node)[0];

// What the rules allow on the node; and what was dragged over, so that the verdict can say why not.
function offerLengths(node, hours) {
  const offered = [...new Set([...lengthsOf(node), hours])].sort((a, b) => a - b);
  find("book-hours").replaceChildren(
    ...offered.map((one) => new Option(`${one} h`, one, false, one === hours)),
  );
}

// ---- the verdict --------------------------------------------------------------------------------
export function choose(node, start, hours) {
  shown.pick = { node, start, hours };
  key = crypto.randomUUID();
  offerLengths(node, hours);
  find("book-hint").hidden = true;
  find("book-form").hidden = false;
  const of = allNodes.find((one) => one.name === node);
  const end = start + hours * HOUR_MS;
  find("book-title").textContent = `Book ${node}`;
  find("book-usable").textContent = blockWords(start, end - GRACE_MS);
  find("book-hold").textContent = `${hours} h, ${zone(new Date(start))}`;
  find("book-hardware").textContent =
    `${of.class}: ${of.slots} ${of.device === "cuda" ? "GPUs" : "CPU slots"}${of.model ? `, ${of.model}` : ""}, ${gib(of.memory_gib)}${of.device === "cuda" ? " each" : ""}`;
  find("book-now").textContent = `Book ${hours} h`;
  if (viewer.is_staff) {
    find("upkeep-keep").hidden = true;
    find("upkeep-answer").replaceChildren();
  }
  drawDay();
  judge();
}

const block = () => ({
  node: shown.pick.node,
  start: iso(shown.pick.start),
  hours: shown.pick.hours,
});
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
    if (!signal.aborted) say(find("verdict"), "bad", "It can't be booked", [error.message]);
  } finally {
    if (!signal.aborted) find("verdict").classList.remove("old");
  }
}

// The rules have changed: what was said of the chosen block may not hold any more.
export async function judgeAgain(way) {
  const { pick } = shown;
  if (!pick) return;
  const found = await verdictOf(way);
  if (shown.pick === pick) tell(found);
}

function tell(found) {
  const [node] = found.nodes;
  const { pick } = shown;
  const start = Date.parse(found.hold_start);
  if (found.ok) {
    const { quota, hours } = node.charge;
    const counts = quota
      ? `Counts ${hours} h of the quota \u201c${quota.replaceAll("_", " ")}\u201d.`
      : "It is charged to no quota.";
    say(find("verdict"), "good", "You may book this", [
      counts,
      ...node.warnings.map((one) => one.message),
    ]);
  } else {
    const [first, ...more] = node?.reasons ?? [];
    say(
      find("verdict"),
      "bad",
      first ? first.message : "It can't be booked",
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
    const joined = before ? `${before}${one.text.includes("node-hours") ? "; " : ", or "}` : "";
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
  find("next-about").textContent = `${pick.hours} h on ${pick.node}`;
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

// ---- acting -------------------------------------------------------------------------------------
// Do what a button says: `work` asks the API and keeps what it answered, `done` says it.
export async function act(button, work, done) {
  const place = find("lease-answer");
  button.setAttribute("aria-busy", "true");
  try {
    const answer = await asked(work);
    say(place, "good", done(answer), []);
    announce(done(answer));
    drawWeek();
    drawDay();
    drawOwn();
    ring(["own"], { after: TOLD_WITHIN_MS });
  } catch (error) {
    say(place, "bad", "Not done", [error.message]);
  } finally {
    button.removeAttribute("aria-busy");
  }
}

const booked = (lease) =>
  `Booked: ${lease.node}, ${blockWords(Date.parse(lease.hold_start), Date.parse(lease.usable_end))}`;

export function cleared() {
  judging?.abort();
  shown.pick = null;
  find("book-form").hidden = true;
  find("book-hint").hidden = false;
  find("book-title").textContent = "Book hours";
  for (const name of ["left-card", "next-card"]) find(name).hidden = true;
}

const post = (path, body, headers) => ask(path, { method: "POST", body, headers });

find("book-now").addEventListener("click", (event) =>
  act(
    event.target,
    async () => {
      const lease = await post("/v1/leases", block(), { "Idempotency-Key": key });
      cleared();
      keepLease(lease);
      return lease;
    },
    booked,
  ),
);

find("swap-now").addEventListener("click", (event) =>
  act(
    event.target,
    async () => {
      const gone = find("swap-with").value;
      const lease = await post(`/v1/leases/${gone}/swap`, block());
      cleared();
      keepLease(lease, gone);
      return lease;
    },
    (lease) => `Swapped. ${booked(lease)}`,
  ),
);

find("wait-now").addEventListener("click", (event) =>
  act(
    event.target,
    async () => {
      const made = await post("/v1/waitlist", {
        node: shown.pick.node,
        first_start: iso(shown.pick.start),
        last_start: iso(shown.pick.start),
        hours: shown.pick.hours,
      });
      cleared();
      keepWait(made);
      return made;
    },
    (made) =>
      `You wait for ${made.node}: when its hours become free, they are held for you and you are told.`,
  ),
);

find("book-hours").addEventListener("change", (event) => {
  shown.wanted = Number(event.target.value);
  choose(shown.pick.node, shown.pick.start, shown.wanted);
});

async function changeLease(path, body) {
  const lease = await post(path, body);
  keepLease(lease);
  return lease;
}

document.addEventListener("click", (event) => {
  const at = (name) => event.target.closest(`[data-${name}]`);
  if (at("extend"))
    act(
      at("extend"),
      () => changeLease(`/v1/leases/${at("extend").dataset.extend}/extend`, { hours: 1 }),
      (lease) => `Longer: until ${clock(new Date(lease.usable_end))}.`,
    );
  if (at("release")) {
    const button = at("release");
    button.closest("details").open = false;
    act(
      button,
      () => changeLease(`/v1/leases/${button.dataset.release}/release`),
      () => "Given back.",
    );
  }
  if (at("accept")) {
    const { accept: id } = at("accept").dataset;
    act(
      at("accept"),
      async () => {
        keepLease(await post(`/v1/waitlist/${id}/accept`));
        dropWait(id);
      },
      () => "It is yours.",
    );
  }
  if (at("leave")) {
    const { leave: id } = at("leave").dataset;
    act(
      at("leave"),
      async () => {
        await ask(`/v1/waitlist/${id}`, { method: "DELETE" });
        dropWait(id);
      },
      () => "You wait no longer.",
    );
  }
  if (at("lease")) document.querySelector(`[data-own="${at("lease").dataset.lease}"]`)?.focus();
});

// A calendar program subscribes to the link; whoever has it can read it, and it is shown this once.
find("feed").addEventListener("click", async (event) => {
  const place = find("feed-answer");
  event.target.setAttribute("aria-busy", "true");
  try {
    const { url } = await asked(() => post("/v1/calendars", {}));
    say(place, "good", "Subscribe to this address; it is shown this once", [
      "It has your leases. Whoever has it can read them.",
    ]);
    place.firstElementChild.lastElementChild.append(
      make("input", {
        class: "input mono",
        readonly: "",
        "aria-label": "Calendar address",
        value: url,
      }),
    );
  } catch (error) {
    say(place, "bad", "No link was made", [error.message]);
  } finally {
    event.target.removeAttribute("aria-busy");
  }
});
