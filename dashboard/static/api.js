// The API as a page asks it: JSON in, JSON out, and one error for every refusal.

// `status` 0: nobody answered. `waitMs`: how long the server asks to wait, or null.
export class Refused extends Error {
  constructor(message, { status = 0, waitMs = null } = {}) {
    super(message);
    this.status = status;
    this.waitMs = waitMs;
  }

  // Whether the same question may be answered later.
  get isForNow() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

function refusalOf(answer, { errors, detail } = {}) {
  const seconds = Number(answer.headers.get("Retry-After") ?? NaN);
  return new Refused(
    errors?.map((one) => one.message).join(" ") || detail || `The API answered ${answer.status}.`,
    { status: answer.status, waitMs: seconds >= 0 ? seconds * 1000 : null },
  );
}

async function reached(work) {
  try {
    return await work();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server can't be reached.");
  }
}

// As `fetch`, but throws Refused where the server can't answer now.
export async function reach(path, options) {
  const answer = await reached(() => fetch(path, options));
  const refused = refusalOf(answer);
  if (!answer.ok && refused.isForNow) throw refused;
  return answer;
}

// The document that the API answers with. Throws Refused.
export async function ask(path, { method = "GET", body, headers = {}, signal } = {}) {
  const typed = body ? { "Content-Type": "application/json" } : {};
  const answer = await reached(() =>
    fetch(path, {
      method,
      headers: { ...typed, ...headers },
      body: body && JSON.stringify(body),
      signal,
    }),
  );
  const isJson = answer.status !== 204 && answer.headers.get("content-type")?.includes("json");
  const found = isJson ? await reached(() => answer.json()) : {};
  if (!answer.ok) throw refusalOf(answer, found);
  return found;
}

// The same, or null where it is refused for good: it is gone, or not for this viewer.
export async function askIfThere(path, way) {
  try {
    return await ask(path, way);
  } catch (error) {
    if (error.isForNow === false) return null;
    throw error;
  }
}
