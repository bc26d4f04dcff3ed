// The clock of a workbench in JupyterLab: minutes to its end in the title and above, and notices 15
// and 5 minutes before. An extension as JupyterLab loads those that are built beforehand, written by
// hand, because it needs nothing of JupyterLab but a command.
(() => {
  const NOTICES_MIN = [15, 5];
  const MINUTE_MS = 60_000;
  const ASK_EVERY_MS = MINUTE_MS / 2; // an extended lease moves the end
  const STIR_EVERY_MS = 20_000; // shorter than the shortest time after which a workbench is idle

  /** @param {Date} moment */
  const clock = (moment) => moment.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

  /** @param {number} endsAt */
  const minutesTo = (endsAt) => Math.max(0, Math.ceil((endsAt - Date.now()) / MINUTE_MS));

  /** The end, in milliseconds; NaN if it is not known now. */
  async function askEnd() {
    try {
      const answer = await fetch("/.trainyard/clock");
      return answer.ok ? Date.parse((await answer.json()).ends_at) : Number.NaN;
    } catch {
      return Number.NaN;
    }
  }

  /** Say that somebody is here, at the first key and now and then after it: the page's own requests
   * do not show it. */
  function tellOfKeys() {
    let toldAt = Number.NEGATIVE_INFINITY;
    const stir = () => {
      if (performance.now() - toldAt < STIR_EVERY_MS) return;
      toldAt = performance.now();
      fetch("/.trainyard/clock", { method: "POST" }).catch(() => {
        toldAt = Number.NEGATIVE_INFINITY;
      });
    };
    for (const kind of ["keydown", "pointerdown", "wheel"]) {
      window.addEventListener(kind, stir, { capture: true, passive: true });
    }
  }

  const plugin = {
    id: "trainyard-clock:clock",
    autoStart: true,
    /** @param {{ restored: Promise<void>, commands: { execute: Function } }} app */
    activate(app) {
      const place = document.createElement("div");
      place.id = "trainyard-clock";
      place.setAttribute("role", "timer");
      place.style.cssText = "margin-left: auto; padding: 0 8px; align-self: center;";
      const told = new Set();
      let endsAt = Number.NaN;

      function tell() {
        if (Number.isNaN(endsAt)) return;
        const left = minutesTo(endsAt);
        const words = `ends ${clock(new Date(endsAt))}, ${left} min left`;
        place.textContent = `The workbench ${words}`;
        const title = document.title.replace(/^!? ?ends [^·]* · /, "");
        const wanted = `${left <= NOTICES_MIN[0] ? "! " : ""}${words} · ${title}`;
        if (document.title !== wanted) document.title = wanted;
        const due = NOTICES_MIN.filter((notice) => left <= notice && !told.has(notice));
        for (const notice of due) told.add(notice);
        if (due.length) {
          app.commands.execute("apputils:notify", {
            message: `The workbench ${words}. Notebooks and your workspace are saved.`,
            type: "warning",
            options: { autoClose: false },
          });
        }
      }

      async function ask() {
        const found = await askEnd();
        if (Number.isNaN(found)) return;
        if (found > endsAt) told.clear(); // extended: both notices come again
        endsAt = found;
        tell();
      }

      app.restored.then(() => {
        document.getElementById("jp-top-panel")?.append(place);
        ask();
        tellOfKeys();
        setInterval(ask, ASK_EVERY_MS);
        setInterval(tell, MINUTE_MS / 6);
        const title = document.querySelector("title");
        if (title) new MutationObserver(tell).observe(title, { childList: true }); // it is rewritten
      });
    },
  };

  window._JUPYTERLAB ??= {};
  window._JUPYTERLAB["trainyard-clock"] = {
    init() {},
    async get() {
      return () => ({ __esModule: true, default: plugin });
    },
  };
})();
