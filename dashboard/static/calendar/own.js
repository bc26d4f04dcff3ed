// The viewer's open leases and places in the waitlist, with their buttons.

import { find, make } from "../elements.js";
import { clock, day, distance } from "../times.js";
import { gpusWords } from "./fill.js";
import { blockWords } from "./hours.js";
import { board, GRACE_MS, shown, viewer } from "./shown.js";

/** @import { LeaseView, OfferView, WaitView } from "trainyard-api" */
/** @import { OwnLease } from "./shown.js" */

const OPEN = ["booked", "active", "ending"];
const WAITING = ["waiting", "offered"];

/**
 * @param {LeaseView} lease
 * @returns {OwnLease}
 */
const leaseOf = (lease) => ({
  ...lease,
  from: Date.parse(lease.hold_start),
  to: Date.parse(lease.hold_end),
  stop: Date.parse(lease.usable_end),
  mine: true,
});

/**
 * `1 of 4 GPUs of east-01`; a whole node by its name alone.
 * @param {LeaseView} lease
 */
export const shareOf = ({ node, whole = true, gpus, of_gpus: of }) =>
  whole ? node : `${of ? `${gpus} of ${gpusWords(of)}` : gpusWords(gpus)} of ${node}`;

/** @param {LeaseView[]} found */
export function takeLeases(found) {
  shown.leases = found.map(leaseOf);
}

/** @param {WaitView[]} found */
export function takeWaits(found) {
  shown.waits = found.filter((one) => one.user === viewer.name && WAITING.includes(one.state));
}

/**
 * Keep an answered lease until the list is read again. `gone` is the id of the lease it replaces.
 * @param {LeaseView} lease
 * @param {string} [gone]
 */
export function keepLease(lease, gone = lease.id) {
  shown.leases = shown.leases.filter((one) => one.id !== lease.id && one.id !== gone);
  if (lease.user === viewer.name && OPEN.includes(lease.state)) shown.leases.push(leaseOf(lease));
}

/** @param {WaitView} wait */
export function keepWait(wait) {
  takeWaits([...shown.waits.filter((one) => one.id !== wait.id), wait]);
}

/** @param {string} id */
export function dropWait(id) {
  shown.waits = shown.waits.filter((one) => one.id !== id);
}

export function drawOwn() {
  drawLeases();
  drawWaits();
}

function drawLeases() {
  const mine = [...shown.leases].sort((a, b) => a.from - b.from);
  const list = find("mine");
  const isOpen = list.querySelector("details[open]") || list.contains(document.activeElement);
  if (!isOpen)
    list.replaceChildren(
      ...(mine.length
        ? mine.map(leaseRow)
        : [make("li", { class: "sub", text: "You have no open leases." })]),
    );
  const swappable = mine.filter((lease) => lease.kind === "booked" && lease.state === "booked");
  const chosen = find("swap-with").value;
  find("swap-with").replaceChildren(
    ...swappable.map(
      (lease) =>
        new Option(`for ${shareOf(lease)}, ${blockWords(lease.from, lease.stop)}`, lease.id),
    ),
  );
  if (swappable.some((lease) => lease.id === chosen)) find("swap-with").value = chosen;
  find("swap-box").hidden = find("swap-now").hidden = !swappable.length;
}

/**
 * What one does next with a lease that has been booked.
 * @param {{ id: string }} lease
 */
export const workLinks = ({ id }) => [
  make("a", { class: "btn small", href: `/leases/${id}`, text: "Open this lease" }),
  make("a", { class: "btn small", href: `/jobs/new?lease=${id}`, text: "Run a job in it" }),
  make("a", {
    class: "btn small",
    href: `/v1/leases/${id}/calendar`,
    download: "",
    text: "Add to my calendar",
  }),
];

/** @param {OwnLease} lease */
function leaseRow(lease) {
  const row = make("li", { class: "own-lease", "data-own": lease.id, tabindex: "-1" });
  const words = make("div");
  const hours = blockWords(lease.from, lease.stop);
  const state = make("span", { class: "badge", "data-state": lease.state, text: lease.state });
  words.append(
    make("strong", { text: shareOf(lease) }),
    " ",
    state,
    make("div", {
      class: "sub",
      text: lease.from > Date.now() ? `${hours}, ${distance(new Date(lease.from))}` : hours,
    }),
  );
  if (lease.whole === false && lease.slots) {
    const one = lease.slots.length === 1;
    words.append(
      make("div", { class: "sub", text: `${one ? "GPU" : "GPUs"} ${lease.slots.join(", ")}` }),
    );
  }
  if (board.isKnown && !board.isBookable(lease.node)) {
    const state = board.state(lease.node);
    words.append(
      make("div", {
        class: "glyph sub",
        "data-state": "warn",
        text: `${lease.node} is ${state}: jobs may not start in it`,
      }),
    );
  }
  row.append(words);
  if (lease.kind === "booked") {
    const buttons = make("div", { class: "row" });
    buttons.append(
      make("button", {
        type: "button",
        class: "btn small",
        "data-extend": lease.id,
        text: "1 h more",
      }),
      ...workLinks(lease),
    );
    const menu = make("details", { class: "menu confirm" });
    const inner = make("div");
    inner.append(
      make("p", {
        text:
          lease.state === "booked"
            ? "Its hours become free for others."
            : "Its running job stops with a checkpoint and goes back to the queue.",
      }),
      make("button", {
        type: "button",
        class: "btn danger sure",
        "data-release": lease.id,
        text: lease.state === "booked" ? "Release lease" : "End lease now",
      }),
    );
    menu.append(make("summary", { class: "btn small danger", text: "Release" }), inner);
    buttons.append(menu);
    const starts = make("div", { class: "row" });
    starts.append(...benchButtons(lease));
    row.append(buttons, starts);
  }
  return row;
}

/**
 * Start a workbench in a lease; in a booked one it waits for the lease to begin.
 * @param {{ id: string, state: string }} lease
 */
export const benchButtons = ({ id, state }) =>
  [
    ["terminal", "Start a terminal"],
    ["jupyter", "Start JupyterLab"],
  ].map(([kind, text]) =>
    make("button", {
      type: "button",
      class: "btn small",
      "data-bench": kind,
      "data-bench-lease": id,
      text: state === "booked" ? `${text} when it begins` : text,
    }),
  );

/** @param {OfferView} offer */
function offerWords(offer) {
  const hours = blockWords(Date.parse(offer.hold_start), Date.parse(offer.hold_end) - GRACE_MS);
  return `${offer.node}, ${hours}, held for you until ${clock(new Date(offer.expires_at))}`;
}

/** @param {WaitView} wait */
function waitWords(wait) {
  const first = new Date(wait.first_start);
  const place = wait.ahead ? `${wait.ahead} ahead of you` : "you are next";
  return `${wait.hours} h, from ${day(first)}, ${clock(first)}; ${place}`;
}

function drawWaits() {
  find("waits-card").hidden = !shown.waits.length;
  find("waits").replaceChildren(
    ...shown.waits.map((wait) => {
      const row = make("li", { class: "own-lease" });
      const words = make("div");
      const offer = wait.offer?.state === "open" ? wait.offer : null;
      words.append(
        make("strong", {
          text: `${wait.gpus ? `${gpusWords(wait.gpus)} of ` : ""}${wait.node ?? wait.node_class ?? "any node"}`,
        }),
        " ",
        make("span", {
          class: "badge",
          "data-state": offer ? "good" : "queued",
          text: offer ? "offered" : "waiting",
        }),
      );
      words.append(
        make("div", {
          class: "sub",
          text: offer ? offerWords(offer) : waitWords(wait),
        }),
      );
      const buttons = make("div", { class: "row" });
      if (offer)
        buttons.append(
          make("button", {
            type: "button",
            class: "btn small primary",
            "data-accept": wait.id,
            text: "Take it",
          }),
        );
      buttons.append(
        make("button", {
          type: "button",
          class: "btn small",
          "data-leave": wait.id,
          text: "Leave",
          "aria-label": "Leave the waitlist",
        }),
      );
      row.append(words, buttons);
      return row;
    }),
  );
}
