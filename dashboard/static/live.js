// The one event stream of a page, closed while the tab is hidden: browsers allow six connections
// per host over all tabs. The browser reconnects by itself and sends its position
// (Last-Event-ID). After it gave up, or after the tab was hidden, a new stream is opened, and
// `onBack` fills the gap. A live page has the badge #line and the banners of line.html.
import { ask } from "./api.js";
import { span } from "./formats.js";
import { CAN_WAIT } from "./looks.js";
import { announce } from "./page.js";
import { clock } from "./times.js";

const LOST_AFTER_MS = 3000;
const AGAIN_MS = 2000; // doubled by each try that fails
const LONGEST_AGAIN_MS = 15_000;

let agingTimer = 0; // of the words that say for how long the line has been lost

/**
 * "live", "lost", "signed-out" or "over", and the time of the last known value.
 * @param {"live" | "lost" | "signed-out" | "over"} line
 * @param {Date} lastHeard
 */
function tellLine(line, lastHeard) {
  const badge = document.getElementById("line");
  badge.dataset.line = line;
  badge.textContent = {
    live: "live",
    lost: "line lost",
    over: "ended",
    "signed-out": "signed out",
  }[line];
  const banner = document.getElementById("line-lost");
  clearInterval(agingTimer);
  if (line === "lost") {
    banner.querySelector("[data-lost-at]").textContent = clock(lastHeard, { seconds: true });
    const tellAge = () => {
      banner.querySelector("[data-lost-for]").textContent =
        `${span((Date.now() - lastHeard.getTime()) / 1000)} ago`;
    };
    tellAge();
    agingTimer = setInterval(tellAge, 1000);
    if (banner.hidden) announce("Connection lost. The page shows the last known values.");
  } else if (!banner.hidden) {
    announce("Connected again.");
  }
  banner.hidden = line !== "lost";
  document.getElementById("signed-out").hidden = line !== "signed-out";
}

export class Live {
  /**
   * @param {string} address
   * @param {object} handlers
   * @param {Record<string, (told: any) => void>} handlers.on by the name of the event
   * @param {(isResumed: boolean) => void} [handlers.onBack]
   */
  constructor(address, { on, onBack = () => {} }) {
    this.address = address;
    this.on = on; // event name -> function(data)
    this.onBack = onBack; // called after every connection but the first; true: it misses nothing
    this.lastHeard = new Date();
    this.resumable = null; // the stream that the browser reopens by itself, with Last-Event-ID
    this.isOver = false;
    this.lostTimer = null;
    this.againTimer = null;
    this.failures = 0;
    document.addEventListener("visibilitychange", () => this.seenOrNot());
    document.querySelector("[data-try-now]").addEventListener("click", () => this.open());
    // A page that opens in the background has missed what came since.
    this.wasHidden = document.hidden;
    if (!document.hidden) this.open();
  }

  seenOrNot() {
    if (this.isOver) return;
    if (!document.hidden) {
      this.open();
      return;
    }
    clearTimeout(this.lostTimer);
    clearTimeout(this.againTimer);
    this.lostTimer = null;
    this.source?.close();
  }

  open() {
    clearTimeout(this.againTimer);
    this.source?.close();
    const source = new EventSource(this.address);
    this.source = source;
    source.onopen = () => this.opened(source);
    source.onerror = () => this.failed(source);
    for (const [name, handle] of Object.entries(this.on)) {
      source.addEventListener(name, (event) => {
        this.lastHeard = new Date();
        handle(JSON.parse(event.data));
      });
    }
    source.addEventListener("end", () => this.over());
  }

  /** @param {EventSource} source */
  opened(source) {
    clearTimeout(this.lostTimer);
    this.lostTimer = null;
    this.failures = 0;
    this.lastHeard = new Date();
    tellLine("live", this.lastHeard);
    if (this.resumable || this.wasHidden) this.onBack(this.resumable === source);
    this.resumable = source;
    this.wasHidden = false;
  }

  /** @param {EventSource} source */
  failed(source) {
    if (this.isOver) return;
    this.lostTimer ??= setTimeout(() => tellLine("lost", this.lastHeard), LOST_AFTER_MS);
    if (source.readyState === EventSource.CLOSED) this.openLater(0);
  }

  /**
   * Wait a random time, so that not all pages return to a restarted server at one moment.
   * @param {number} waitMs
   */
  openLater(waitMs) {
    const again = Math.min(AGAIN_MS * 2 ** this.failures, LONGEST_AGAIN_MS);
    this.failures += 1;
    clearTimeout(this.againTimer);
    this.againTimer = setTimeout(
      () => this.openIfAllowed(),
      Math.max(waitMs, again) * (0.5 + Math.random()),
    );
  }

  // The browser does not say why it gave up: ask whether the session still holds.
  async openIfAllowed() {
    try {
      await ask("/v1/me", { headers: CAN_WAIT });
    } catch (refused) {
      if (refused.status === 401) {
        clearTimeout(this.lostTimer);
        tellLine("signed-out", this.lastHeard);
        return;
      }
      if (refused.isForNow) {
        this.openLater(refused.waitMs ?? 0);
        return;
      }
    }
    if (!document.hidden) this.open();
  }

  over() {
    this.isOver = true;
    clearTimeout(this.lostTimer);
    this.source.close();
    tellLine("over", this.lastHeard);
  }
}
