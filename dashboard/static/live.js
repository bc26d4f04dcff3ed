// One stream per page, and none while nobody looks at it: browsers allow six connections a host, over
// all tabs. The browser reconnects by itself and says where it was (Last-Event-ID); after it gave up,
// or after the tab was hidden, a new stream is opened, and `onBack` fills the gap.
const LOST_AFTER_MS = 3000;
const AGAIN_MS = 2000;

export class Live {
  constructor(address, { on, onBack, onLine }) {
    this.address = address;
    this.on = on; // event name -> function(data)
    this.onBack = onBack; // called after every connection but the first; true: it misses nothing
    this.onLine = onLine; // "live", "lost", "signed-out" or "over", and the time of the last known value
    this.lastHeard = new Date();
    this.resumable = null; // the stream that the browser reopens by itself, with Last-Event-ID
    this.isOver = false;
    this.lostTimer = null;
    this.againTimer = null;
    document.addEventListener("visibilitychange", () => this.seenOrNot());
    this.wasHidden = document.hidden; // a page that opens in the background has missed what came since
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

  opened(source) {
    clearTimeout(this.lostTimer);
    this.lostTimer = null;
    this.lastHeard = new Date();
    this.onLine("live", this.lastHeard);
    if (this.resumable || this.wasHidden) this.onBack(this.resumable === source);
    this.resumable = source;
    this.wasHidden = false;
  }

  failed(source) {
    if (this.isOver) return;
    this.lostTimer ??= setTimeout(() => this.onLine("lost", this.lastHeard), LOST_AFTER_MS);
    if (source.readyState === EventSource.CLOSED) {
      clearTimeout(this.againTimer);
      this.againTimer = setTimeout(() => this.openIfAllowed(), AGAIN_MS);
    }
  }

  // The browser does not say why it gave up: ask whether the session still holds.
  async openIfAllowed() {
    let status = 0;
    try {
      status = (await fetch("/v1/me")).status;
    } catch {
      // away; a new stream will say so again
    }
    if (status !== 401) {
      this.open();
      return;
    }
    clearTimeout(this.lostTimer);
    this.onLine("signed-out", this.lastHeard);
  }

  over() {
    this.isOver = true;
    clearTimeout(this.lostTimer);
    this.source.close();
    this.onLine("over", this.lastHeard);
  }
}
