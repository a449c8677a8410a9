// A search through the whole of a log: hits as they are found, and how far it is.
import { place, Problem, query } from "../api.js";

/** Calls `found({hits, share, isDone})` again and again; `hits` are numbers of lines, in order. Ends by `signal`. */
export async function searched(path, { text, matchCase = false, level }, found, signal) {
  const answer = await fetch(place(`/api/v1${path}/search${query({ q: text, case: matchCase || undefined, level, progress: true })}`), { signal, credentials: "same-origin", headers: { "X-Accsd": "1" } });
  if (!answer.ok) throw new Problem(await answer.json().catch(() => ({})), answer.status);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  const hits = [];
  let rest = "", share = 0, isDone = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const said = JSON.parse(line);
      if (said.done) isDone = true;
      else if (said.n === undefined) share = said.of ? said.looked_at / said.of : 1;
      else hits.push(said.n);
    }
    found({ hits, share: isDone ? 1 : share, isDone });
  }
  if (!isDone) throw new Problem({ detail: "the search broke off", hint: "ask again" }, 0);
}

/** The place in `hits` of the first one from line `n` on (`step` 1) or before it (-1), around the end; -1: there is none. */
export function nextOf(hits, n, step) {
  if (!hits.length) return -1;
  let low = 0, high = hits.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (step > 0 ? hits[middle] <= n : hits[middle] < n) low = middle + 1;
    else high = middle;
  }
  return step > 0 ? low % hits.length : (low - 1 + hits.length) % hits.length;
}
