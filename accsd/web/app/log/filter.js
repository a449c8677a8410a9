// Which lines of a log a person wants to see: those of some levels, or of one stream, and some lines around each.
import { useEffect, useMemo, useRef, useState } from "../html.js";
import { placeOf, searched } from "./search.js";

export const LEVELS = { all: ["all levels", []], warn: ["warnings and errors", ["warn", "error"]], error: ["errors", ["error"]] };
export const STREAMS = { all: "both outputs", stdout: "stdout", stderr: "stderr" };
export const AROUND = [0, 2, 5, 20];
const NONE = { level: "all", stream: "all", around: 2 };
const AGAIN_MS = 2_000;

/** The numbers of these lines with so many around each, in order. */
export function withAround(hits, around, total) {
  const found = [];
  let last = 0;
  for (const hit of hits)
    for (let n = Math.max(last + 1, hit - around); n <= Math.min(total, hit + around); n++) { found.push(n); last = n; }
  return found;
}

/**
 * {chosen, choose, only, query, share, problem}. `only`: the numbers of the lines that are shown, null: all are. What is
 * added to the log is looked for again, a little later. `total` is how many lines there are now.
 */
export function useFilter(path, total) {
  const [chosen, set] = useState(NONE);
  const [found, setFound] = useState({ hits: [], share: 0, problem: null, upTo: 0 });
  const latest = useRef(0);
  latest.current = total;
  const levels = LEVELS[chosen.level][1], stream = chosen.stream === "all" ? undefined : chosen.stream;
  const isOn = levels.length > 0 || stream !== undefined;
  const isBehind = isOn && found.share === 1 && total > found.upTo;
  const look = (signal, isFirst) => {
    const upTo = latest.current;
    return searched(path, { level: levels, stream }, ({ hits, share, isDone }) => { if (isDone || isFirst) setFound({ hits: [...hits], share: isDone ? 1 : Math.min(share, 0.99), problem: null, upTo }); }, signal)
      .catch((problem) => problem.name === "AbortError" || setFound((before) => ({ ...before, share: 1, problem, upTo })));
  };
  useEffect(() => {
    if (!isOn) return undefined;
    const abort = new AbortController();
    setFound({ hits: [], share: 0, problem: null, upTo: 0 });
    look(abort.signal, true);
    return () => abort.abort();
  }, [chosen.level, chosen.stream]);
  useEffect(() => {
    if (!isBehind) return undefined;
    const abort = new AbortController();
    const planned = setTimeout(() => look(abort.signal, false), AGAIN_MS);
    return () => { clearTimeout(planned); abort.abort(); };
  }, [isBehind, found.upTo, chosen.level, chosen.stream]);
  const only = useMemo(() => (isOn ? withAround(found.hits, chosen.around, total) : null), [isOn, found.hits, chosen.around, total]);
  return {
    chosen, choose: (changes) => set({ ...chosen, ...changes }), isOn, only, ...(isOn ? found : { hits: [], share: 1, problem: null }),
    query: [...levels.map((level) => ["level", level]), ...(stream ? [["stream", stream]] : [])],
    /** The row, from 1, that a line has or would have. */
    rowOf: (line) => (only ? placeOf(only, line) + 1 : line),
  };
}
