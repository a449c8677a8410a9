// What a component shows: loaded by REST, loaded again when the stream says that it may have changed.
import { call } from "./api.js";
import { useEffect, useRef, useState } from "./html.js";
import { light, subscribe } from "./live.js";

const GATHER_MS = 250;
const POLL_MS = 10_000; // under everything, should a message ever not come

/**
 * {data, problem, again}. `path` null: nothing to load. `topics` and `concerns(kind, said)` say which messages of the
 * stream make it load again, `gather` how long it waits for more of them, `polls` whether it looks without any.
 */
export function useLoaded(path, { topics = [], concerns = () => true, gather = GATHER_MS, polls = true } = {}) {
  const [state, set] = useState({ path: null, data: null, problem: null });
  const loader = useRef(null);
  useEffect(() => {
    if (path === null) return undefined;
    const abort = new AbortController();
    let planned = null, busy = false, late = false;
    const load = async () => {
      if (busy) { late = true; return; }
      busy = true;
      clearTimeout(planned);
      planned = null;
      try {
        const data = await call(path, { signal: abort.signal });
        set({ path, data, problem: null });
      } catch (problem) {
        if (problem.name === "AbortError") return;
        set((before) => ({ path, data: before.path === path ? before.data : null, problem }));
      } finally {
        busy = false;
        if (late) { late = false; soon(); }
      }
    };
    const soon = () => { planned ??= setTimeout(() => { planned = null; load(); }, gather); };
    loader.current = load;
    const leave = subscribe(topics, (kind, said) => {
      if (kind === "back") { set((before) => ({ ...before, problem: null })); soon(); }
      else if (kind === "hello" || kind === "reset" || kind === "mode") { if (topics.length) soon(); }
      else if (kind !== "hearing" && concerns(kind, said)) soon();
    });
    load();
    const poll = polls && setInterval(() => { if (!document.hidden && light.value.state !== "lost") soon(); }, POLL_MS);
    return () => { abort.abort(); leave(); clearTimeout(planned); clearInterval(poll); };
  }, [path, topics.join(","), polls]);
  const fresh = state.path === path ? state : { data: null, problem: null };
  const isTold = fresh.data && light.value.state === "lost"; // the banner says it, and what was there stays
  return { data: fresh.data, problem: isTold ? null : fresh.problem, again: () => loader.current?.() };
}

/** Whether each of these was there once, or could not be had: shown one after the other they would push each other down. */
export function useSettled(...loads) {
  const was = useRef(false);
  was.current ||= loads.every(({ data, problem }) => data || problem);
  return was.current;
}
