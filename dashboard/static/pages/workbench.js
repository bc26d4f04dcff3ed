// A terminal of a workbench: bytes to and from the API by a WebSocket, which is opened again
// whenever it is lost. The terminal itself is in the sandbox and goes on meanwhile. The title has
// the minutes to its end, and the page says so 15 and 5 minutes before.
import { announce } from "../page.js";
import { clock } from "../times.js";

const OVER = 1000; // codes of the WebSocket's end, after which it is not opened again
const REFUSED = 1008;
const SHORTEST_PAUSE_MS = 200;
const LONGEST_PAUSE_MS = 5000;
const NOTICES_MIN = [15, 5];
const MINUTE_MS = 60_000;

/** @param {HTMLElement} place */
function sit(place) {
  const terminal = new Terminal({
    fontSize: 14,
    scrollback: 5000,
    theme: { background: "#0d1117" },
  });
  const fit = new FitAddon.FitAddon();
  terminal.loadAddon(fit);
  terminal.open(place);
  fit.fit();
  const line = document.getElementById("bench-line");
  const bench = place.dataset.workbench;
  const encoder = new TextEncoder();
  /** @type {WebSocket} */
  let socket;
  let offset = -1; // place in the terminal's output after what was shown
  let pause = SHORTEST_PAUSE_MS;
  let endsAt = Number.NaN;
  const told = new Set();

  function connect() {
    const size = `rows=${terminal.rows}&columns=${terminal.cols}`;
    const since = offset < 0 ? "" : `&offset=${offset}`;
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const path = `/v1/workbenches/${bench}/terminals/1?${size}${since}`;
    socket = new WebSocket(`${scheme}://${location.host}${path}`);
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => {
      if (typeof data === "string") {
        begin(JSON.parse(data));
        return;
      }
      offset += data.byteLength;
      terminal.write(new Uint8Array(data));
    };
    socket.onclose = ({ code, reason }) => {
      if (code === OVER || code === REFUSED) {
        line.textContent = reason ? `Over: ${reason}.` : "Over.";
        return;
      }
      line.textContent = "The line is lost; what runs goes on. Trying again.";
      setTimeout(connect, pause * (0.5 + Math.random() / 2));
      pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
    };
  }

  /** @param {{ offset: number, is_new: boolean, ends_at: string | null }} facts */
  function begin(facts) {
    if (facts.is_new && offset >= 0) terminal.reset();
    offset = facts.offset;
    endsAt = facts.ends_at ? Date.parse(facts.ends_at) : Number.NaN;
    pause = SHORTEST_PAUSE_MS;
    line.textContent = "";
    resize();
    tellTime();
  }

  function resize() {
    fit.fit();
    if (socket.readyState === WebSocket.OPEN) {
      socket.send(JSON.stringify({ rows: terminal.rows, columns: terminal.cols }));
    }
  }

  function tellTime() {
    if (Number.isNaN(endsAt)) return;
    const left = Math.max(0, Math.ceil((endsAt - Date.now()) / MINUTE_MS));
    const words = `ends ${clock(new Date(endsAt))}, ${left} min left`;
    document.title = `${left <= NOTICES_MIN[0] ? "! " : ""}${words} · ${place.dataset.name}`;
    document.getElementById("bench-clock").textContent = `It ${words}.`;
    for (const notice of NOTICES_MIN) {
      if (left <= notice && !told.has(notice)) {
        told.add(notice);
        announce(`The workbench ${words}.`);
      }
    }
  }

  terminal.onData((text) => {
    if (socket.readyState === WebSocket.OPEN) socket.send(encoder.encode(text));
  });
  terminal.attachCustomKeyEventHandler((event) => {
    if (!(event.ctrlKey && event.shiftKey && event.key === "Escape")) return true;
    terminal.blur();
    return false;
  });
  new ResizeObserver(resize).observe(place);
  setInterval(tellTime, MINUTE_MS / 6);
  connect();
  terminal.focus();
}

const place = document.getElementById("terminal");
if (place) sit(place);
