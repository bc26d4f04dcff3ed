// Actions on leases and on places in the waitlist. The answer is shown at once.
import { ask } from "../api.js";
import { find, make, say } from "../elements.js";
import { asked, ring } from "../looks.js";
import { announce } from "../page.js";
import { clock } from "../times.js";
import { block, choose, cleared } from "./booking.js";
import { drawDay } from "./day.js";
import { blockWords } from "./hours.js";
import { benchButtons, drawOwn, dropWait, keepLease, keepWait, shareOf, workLinks } from "./own.js";
import { iso, shown } from "./shown.js";
import { drawWeek } from "./week.js";

/** @import { LeaseView } from "trainyard-api" */
/** @import { Body } from "../../types/answers" */

// The stream says what changed within a second; if not, it is read then.
const TOLD_WITHIN_MS = 3000;

/**
 * Do what a button says: `work` asks the API and keeps what it answered, `done` says it.
 * @template Result
 * @param {Element} button
 * @param {() => Promise<Result>} work
 * @param {(answer: Result) => string} done
 * @param {(answer: Result) => HTMLElement[]} [next] links to what one does then
 */
export async function act(button, work, done, next = () => []) {
  const place = find("lease-answer");
  // Beside what was pressed, so that it is seen.
  const card = button.closest("[data-book]") ?? find("mine").parentElement;
  card.querySelector("header").after(place);
  button.setAttribute("aria-busy", "true");
  try {
    const answer = await asked(work);
    say(place, "good", done(answer), []);
    const links = make("div", { class: "row" });
    links.append(...next(answer));
    place.querySelector(".verdict > div").append(links);
    announce(done(answer));
    find("any-found").replaceChildren(); // starts that may be gone now
    drawWeek();
    drawDay();
    drawOwn();
    ring(["own"], { after: TOLD_WITHIN_MS });
  } catch (error) {
    say(place, "bad", "Not done", [error.message]);
  } finally {
    button.removeAttribute("aria-busy");
    place.scrollIntoView({ block: "nearest" });
  }
}

/** @param {LeaseView} lease */
function booked(lease) {
  const hours = blockWords(Date.parse(lease.hold_start), Date.parse(lease.usable_end));
  return `Booked: ${shareOf(lease)}, ${hours}`;
}

/** @param {LeaseView} lease */
const nextSteps = (lease) => [...workLinks(lease), ...benchButtons(lease)];

/**
 * @template {string} Address
 * @param {Address} path
 * @param {Body<"POST", Address>} [body]
 * @param {Record<string, string>} [headers]
 */
const post = (path, body, headers) => ask(path, { method: "POST", body, headers });

find("book-now").addEventListener("click", (event) =>
  act(
    event.target,
    async () => {
      const lease = await post("/v1/leases", block(), { "Idempotency-Key": shown.key });
      cleared();
      keepLease(lease);
      return lease;
    },
    booked,
    nextSteps,
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
    nextSteps,
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
        gpus: shown.gpus,
      });
      cleared();
      keepWait(made);
      return made;
    },
    (made) =>
      `You are on the waitlist for ${made.node}: hours that become free are held for you, and you get a notice.`,
  ),
);

find("book-close").addEventListener("click", () => {
  cleared();
  drawDay();
});

find("book-hours").addEventListener("change", (event) => {
  shown.wanted = Number(event.target.value);
  choose(shown.pick.node, shown.pick.start, shown.wanted);
});

/** @param {Promise<LeaseView>} posted */
async function changeLease(posted) {
  const lease = await posted;
  keepLease(lease);
  return lease;
}

document.addEventListener("click", (event) => {
  /** @param {string} name */
  const at = (name) => event.target.closest(`[data-${name}]`);
  if (at("extend"))
    act(
      at("extend"),
      () => changeLease(post(`/v1/leases/${at("extend").dataset.extend}/extend`, { hours: 1 })),
      (lease) => `Extended until ${clock(new Date(lease.usable_end))}.`,
    );
  if (at("release")) {
    const button = at("release");
    button.closest("details").open = false;
    act(
      button,
      () => changeLease(post(`/v1/leases/${button.dataset.release}/release`)),
      () => "Lease released.",
    );
  }
  if (at("bench")) {
    const { bench, benchLease: lease } = at("bench").dataset;
    /** @type {"jupyter" | "terminal"} */
    const kind = bench === "jupyter" ? "jupyter" : "terminal";
    const spec = {
      name: kind,
      workbench: { kind },
      resources: { ranks_per_node: 1, wall_time: "24h" }, // as long as its lease
      lease,
    };
    act(
      at("bench"),
      () => post("/v1/jobs", spec, { "Idempotency-Key": crypto.randomUUID() }),
      () => "It starts when the lease begins. Open it from the page Workbenches.",
      () => workLinks({ id: lease }),
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
      () => "The hours are yours.",
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
      () => "You have left the waitlist.",
    );
  }
  if (at("lease")) document.querySelector(`[data-own="${at("lease").dataset.lease}"]`)?.focus();
});
