// Calls of the gateway's API. What it refuses is a Problem with the sentence that it said.
const ROOT = new URL(import.meta.url).pathname.replace(/static\/.*$/, "");

export const place = (path) => ROOT.replace(/\/$/, "") + path;

export class Problem extends Error {
  constructor(document, status) {
    super(document.detail ?? document.title ?? `the gateway answered ${status}`);
    this.status = status;
    this.code = document.code;
    this.hint = document.hint;
    this.requestId = document.request_id;
    this.errors = document.errors ?? [];
  }
}

let tell = () => {};
/** `does` is called when the gateway no longer knows who asks. */
export const whenUnknown = (does) => { tell = does; };

/** `whole`: {document, etag} instead of the document alone, for what is changed only if it is still the same. */
export async function call(path, { method = "GET", body, headers = {}, signal, whole = false } = {}) {
  let answer;
  try {
    answer = await fetch(place(`/api/v1${path}`), {
      method,
      signal,
      credentials: "same-origin",
      headers: { "X-Accsd": "1", ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ detail: "the gateway does not answer", code: "unreachable" }, 0);
  }
  const document = answer.status === 204 ? null : await answer.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    if (answer.ok) throw new Problem({ detail: "the answer of the gateway was cut off", code: "unreachable" }, 0);
    return {}; // a refusal without words
  });
  if (answer.status === 401 && path !== "/session") tell();
  if (!answer.ok) throw new Problem(document, answer.status);
  return whole ? { document, etag: answer.headers.get("etag") } : document;
}

export const query = (values) => {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
};

/** For what must not be done twice because its answer got lost. */
export const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (each) => each.toString(16)).join("");
