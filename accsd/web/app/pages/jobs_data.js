// The rows of the list of jobs. They keep their place: what is told of one is changed where it stands, and new ones wait
// until somebody wants them.
import { call, query } from "../api.js";
import { useEffect, useRef, useState } from "../html.js";
import { subscribe } from "../live.js";

const LIMIT = 50;
const GATHER_MS = 500;
const PATCHED = ["status", "progress", "current_task_key", "open_tasks", "task_count", "error_code"];

/** {rows, fresh, next, scan, filter, problem, loading, more(), takeFresh(), again()} */
export function useJobs(asked) {
  const begun = { rows: null, fresh: [], next: null, scan: null, filter: null, problem: null, asOf: null };
  const [state, set] = useState(begun);
  const [loading, setLoading] = useState(false);
  const is = useRef(state);
  is.current = state;
  const path = `/jobs${query({ ...asked, limit: LIMIT })}`;
  const first = useRef(null);
  useEffect(() => {
    const abort = new AbortController();
    let planned = null;
    set((before) => ({ ...begun, rows: before.rows && before.path === path ? before.rows : null, path }));
    const page = () => call(path, { signal: abort.signal });
    const load = () => page().then((found) => set({ ...begun, path, rows: found.items, next: found.next, scan: found.scan, filter: found.filter, asOf: found.as_of }), (problem) => problem.name !== "AbortError" && set((before) => ({ ...before, problem })));
    const look = () => page().then(({ items }) => set((before) => looked(before, items)), () => {});
    const told = new Map();
    const soon = () => { planned ??= setTimeout(() => { planned = null; set((before) => patched(before, told)); const isNew = [...told.keys()].some((id) => !is.current.rows?.some((row) => row.id === id)); told.clear(); if (isNew || [...is.current.rows ?? []].some((row) => row.isStale)) look(); }, GATHER_MS); };
    const leave = subscribe(["jobs"], (kind, said) => {
      if (kind === "job") { told.set(said.id, said); soon(); }
      else if (["hello", "reset", "mode", "back"].includes(kind)) look();
    });
    first.current = load;
    load();
    return () => { abort.abort(); leave(); clearTimeout(planned); };
  }, [path]);
  const more = async () => {
    setLoading(true);
    try {
      const found = await call(`/jobs${query({ ...asked, limit: LIMIT, cursor: is.current.next })}`);
      set((before) => ({ ...before, rows: joined(before.rows, found.items), next: found.next, scan: found.scan, problem: null }));
    } catch (problem) {
      set((before) => ({ ...before, problem }));
    }
    setLoading(false);
  };
  const takeFresh = () => set((before) => ({ ...before, rows: joined(before.fresh, before.rows), fresh: [] }));
  return { ...state, loading, more, takeFresh, again: () => first.current?.() };
}

function joined(one, other) {
  const known = new Set();
  return [...one, ...other].filter((job) => !known.has(job.id) && known.add(job.id));
}

/** What is there now is written into the rows; jobs that no row shows wait. */
function looked(before, items) {
  if (!before.rows) return before;
  const found = new Map(items.map((job) => [job.id, job]));
  const known = new Set(before.rows.map((job) => job.id));
  const newest = before.rows[0]?.created_at ?? "";
  return { ...before, rows: before.rows.map((job) => found.get(job.id) ?? job), fresh: items.filter((job) => !known.has(job.id) && job.created_at >= newest) };
}

function patched(before, told) {
  if (!before.rows?.some((job) => told.has(job.id))) return before;
  const patch = (job, said) => ({ ...job, ...Object.fromEntries(PATCHED.map((name) => [name, said[name]])), isStale: said.status !== job.status });
  return { ...before, rows: before.rows.map((job) => (told.has(job.id) ? patch(job, told.get(job.id)) : job)) };
}
