// A search through the whole of a log: hits as they are found, and how far it is.
import { place, Problem } from "../api.js";

const BUSY = 429;

/**
 * Calls `found({hits, share, isDone})` again and again; `hits` are numbers of lines, in order. Ends by `signal`.
 * `wanted`: {q, case, level (a list), stream}. A gateway that is busy with other searches is asked again.
 */
export async function searched(path, wanted, found, signal) {
  const { level = [], ...given } = wanted;
  const asked = new URLSearchParams([...Object.entries(given).filter(([, value]) => value), ...level.map((each) => ["level", each]), ["numbers", true], ["progress", true]]);
  const ask = () => fetch(place(`/api/v1${path}/search?${asked}`), { signal, credentials: "same-origin", headers: { "X-Accsd": "1" } });
  let answer = await ask();
  while (answer.status === BUSY) {
    await new Promise((done) => setTimeout(done, 1000));
    answer = await ask();
  }
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

/** The first place in an ordered list whose number is not below `n`. */
export function placeOf(numbers, n) {
  let low = 0, high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < n) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The place in `hits` of the first one from line `n` on (`step` 1) or before it (-1), around the end; -1: there is none. */
export function nextOf(hits, n, step) {
  if (!hits.length) return -1;
  const low = placeOf(hits, step > 0 ? n + 1 : n);
  return step > 0 ? low % hits.length : (low - 1 + hits.length) % hits.length;
}
