// A file that arrives in parts and goes on after a break, also after the page was loaded anew: the
// server finds the same file by its mark. docs/data.md has the protocol.
import { ask, Refused, reach, sendBytes } from "./api.js";

/** @typedef {{ sent: number, waiting: Refused | null }} Stand */

const PART = 8 << 20; // bytes; what is lost with a connection is sent again
const SAMPLES = 64;
const SAMPLE = 1 << 16; // bytes
const MOST_BREAKS = 24; // without a byte in between: some five minutes
const LONGEST_PAUSE_MS = 15_000;
const BUSY = ["wrong_offset", "upload_busy"];
const TYPE = { "Content-Type": "application/partial-upload" };

/**
 * Send a file, or the rest of it: the id of the whole upload. `tell` hears how far it is, and why it
 * waits if it does. Throws Refused.
 * @param {File} file
 * @param {"text" | "jsonl" | "npz" | "parquet" | "arrow" | "file"} format
 * @param {(stand: Stand) => void} tell
 * @returns {Promise<string>}
 */
export async function sendFile(file, format, tell) {
  const about = { path: plainName(file.name), size: file.size, format };
  const fingerprint = await markOf(file, about);
  const { id, received } = await ask("/v1/uploads", {
    method: "POST",
    body: { ...about, fingerprint },
  });
  let offset = received;
  let breaks = 0;
  let isWhole = false;
  while (!isWhole) {
    try {
      tell({ sent: offset, waiting: null });
      isWhole = offset === file.size;
      offset = await sendPart(id, file, offset, tell);
      breaks = 0;
    } catch (error) {
      isWhole = false;
      const reached = await afterBreak(id, error, breaks, (waiting) =>
        tell({ sent: offset, waiting }),
      );
      breaks = reached > offset ? 0 : breaks + 1;
      offset = reached;
    }
  }
  return id;
}

/**
 * A file's name as the API takes it: any other character becomes a dash.
 * @param {string} name
 */
export const plainName = (name) =>
  name.replace(/[^A-Za-z0-9_.=+@,-]+/g, "-").replace(/^\.?[^A-Za-z0-9_.-]|^\.{2}/, "_");

/**
 * Send the next part, or behind the last one the end: how much is there then.
 * @param {string} id
 * @param {File} file
 * @param {number} offset
 * @param {(stand: Stand) => void} tell
 */
async function sendPart(id, file, offset, tell) {
  const headers = {
    ...TYPE,
    "Upload-Offset": String(offset),
    "Upload-Complete": offset === file.size ? "?1" : "?0",
  };
  const part = file.slice(offset, offset + PART);
  const answer = await sendBytes(`/v1/uploads/${id}`, part, { method: "PATCH", headers }, (bytes) =>
    tell({ sent: offset + bytes, waiting: null }),
  );
  return Number(answer.getResponseHeader("Upload-Offset"));
}

/**
 * How much has arrived, asked until the server answers. Throws the error at last, or if it is final.
 * @param {string} id
 * @param {Refused} error
 * @param {number} breaks
 * @param {(error: Refused) => void} tell
 */
async function afterBreak(id, error, breaks, tell) {
  if (!(error.isForNow || BUSY.includes(error.code))) throw error;
  for (let count = breaks; count < MOST_BREAKS; count++) {
    tell(error);
    const pause = Math.min(LONGEST_PAUSE_MS, 500 * 2 ** count);
    await new Promise((resolve) => setTimeout(resolve, error.waitMs ?? pause));
    try {
      const answer = await reach(`/v1/uploads/${id}`, { method: "HEAD" });
      if (!answer.ok) throw error;
      return Number(answer.headers.get("Upload-Offset"));
    } catch (again) {
      if (!(again instanceof Refused && again.isForNow)) throw again;
    }
  }
  throw error;
}

/**
 * A mark of a file, by its name, size, time and samples of its bytes. No secret: `crypto.subtle` is
 * missing where a page comes without TLS.
 * @param {File} file
 * @param {object} about
 */
async function markOf(file, about) {
  const text = new TextEncoder().encode(JSON.stringify([about, file.lastModified]));
  let lanes = [0x9e3779b1, 0x85ebca77, 0xc2b2ae3d, 0x27d4eb2f];
  lanes = mixed(lanes, text);
  for (let number = 0; number < SAMPLES; number++) {
    const last = Math.max(0, file.size - SAMPLE);
    const at = Math.floor((last * number) / (SAMPLES - 1));
    try {
      lanes = mixed(lanes, new Uint8Array(await file.slice(at, at + SAMPLE).arrayBuffer()));
    } catch {
      throw new Refused("The file can't be read. Choose it again.", { status: 400 });
    }
  }
  return `browser-${lanes.map((lane) => (lane >>> 0).toString(16).padStart(8, "0")).join("")}`;
}

/**
 * FNV-1a, in four lanes that begin and multiply differently.
 * @param {number[]} lanes
 * @param {Uint8Array} bytes
 */
function mixed([a, b, c, d], bytes) {
  for (const byte of bytes) {
    a = Math.imul(a ^ byte, 0x01000193);
    b = Math.imul(b ^ byte ^ (a >>> 15), 0x85ebca6b);
    c = Math.imul(c ^ byte ^ (b >>> 13), 0xc2b2ae35);
    d = Math.imul(d ^ byte ^ (c >>> 16), 0x9e3779b1);
  }
  return [a, b, c, d];
}
