// Requests to the API: JSON in, JSON out, and one error for every refusal.

/** @import { ProblemDocument } from "trainyard-api" */
/** @import { Answer, Body, Method } from "../types/answers" */

// `status` 0: nobody answered. `code`: of the refusal, or "". `title`: what is wrong, in few words, or
// "". `waitMs`: how long the server asks to wait, or null.
export class Refused extends Error {
  /**
   * @param {string} message
   * @param {{ status?: number, code?: string, title?: string, waitMs?: number | null }} [about]
   */
  constructor(message, { status = 0, code = "", title = "", waitMs = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.title = title;
    this.waitMs = waitMs;
  }

  // True if the same request may succeed later.
  get isForNow() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/**
 * @param {number} status
 * @param {string | null} retryAfter
 * @param {Partial<ProblemDocument>} [found]
 */
function refusalOf(status, retryAfter, { errors, detail, title, code } = {}) {
  const seconds = Number(retryAfter ?? NaN);
  return new Refused(
    errors?.map((one) => one.message).join(" ") || detail || `The API answered ${status}.`,
    { status, code, title, waitMs: seconds >= 0 ? seconds * 1000 : null },
  );
}

/**
 * @template Result
 * @param {() => Promise<Result>} work
 */
async function reached(work) {
  try {
    return await work();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server can't be reached.");
  }
}

/**
 * Like `fetch`, but throws Refused if the server can't answer now.
 * @param {string} path
 * @param {RequestInit} [options]
 */
export async function reach(path, options) {
  const answer = await reached(() => fetch(path, options));
  const refused = refusalOf(answer.status, answer.headers.get("Retry-After"));
  if (!answer.ok && refused.isForNow) throw refused;
  return answer;
}

/**
 * The document that the API answers with. A body that is text is sent as it is. Throws Refused.
 * @template {string} Address
 * @template {Method} [Kind="GET"]
 * @param {Address} path
 * @param {Way & { method?: Kind, body?: Body<Kind, Address> | string }} [way]
 * @returns {Promise<Answer<Kind, Address>>}
 */
export async function ask(path, { method, body, headers = {}, signal } = {}) {
  const typed = body ? { "Content-Type": "application/json" } : {};
  const answer = await reached(() =>
    fetch(path, {
      method: method ?? "GET",
      headers: { ...typed, ...headers },
      body: body && (typeof body === "string" ? body : JSON.stringify(body)),
      signal,
    }),
  );
  const isJson = answer.status !== 204 && answer.headers.get("content-type")?.includes("json");
  const found = isJson ? await reached(() => answer.json()) : {};
  if (!answer.ok) throw refusalOf(answer.status, answer.headers.get("Retry-After"), found);
  return found;
}

/**
 * The answer to a GET, or null if it is refused for good: it is gone, or not for this viewer.
 * @template {string} Address
 * @param {Address} path
 * @param {Way} [way]
 * @returns {Promise<Answer<"GET", Address> | null>}
 */
export async function askIfThere(path, way) {
  try {
    return await ask(path, way);
  } catch (error) {
    if (error.isForNow === false) return null;
    throw error;
  }
}

/**
 * Send bytes; `onSent` is told how many have left. The answered request, for its headers. Throws
 * Refused.
 * @param {string} path
 * @param {Blob} content
 * @param {{ method?: "POST" | "PATCH", headers?: Record<string, string> }} way
 * @param {(bytes: number) => void} onSent
 * @returns {Promise<XMLHttpRequest>}
 */
export function sendBytes(path, content, { method = "POST", headers = {} }, onSent) {
  const request = new XMLHttpRequest(); // fetch tells nothing about how far an upload is
  request.open(method, path);
  for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
  request.upload.onprogress = ({ loaded }) => onSent(loaded);
  return new Promise((resolve, reject) => {
    request.onloadend = () => {
      const { status } = request;
      const isJson = request.getResponseHeader("content-type")?.includes("json");
      const found = isJson ? JSON.parse(request.responseText) : {};
      if (status >= 200 && status < 300) resolve(request);
      else if (!status) reject(new Refused("The server can't be reached."));
      else reject(refusalOf(status, request.getResponseHeader("Retry-After"), found));
    };
    request.send(content);
  });
}
