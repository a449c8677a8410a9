// A job with all of its tasks: read once, changed by what the stream tells, read again a little later.
import { call } from "../api.js";
import { useEffect, useRef, useState } from "../html.js";
import { subscribe } from "../live.js";
import { useLoaded } from "../load.js";

const PAGE = 5_000;
const MOST = 20_000; // of a larger job the gateway tells only what a graph shows, and the first ones whole
const GATHER_MS = 40;
const CHANGES = ["status", "progress", "attempt_id", "node", "hold", "next_attempt_at", "error_code"]; // what a message tells of a task

/** {job, tasks, structure, problem, again}: `structure` changes when the tasks are others than before. */
export function useJob(id) {
  const [state, set] = useState({ job: null, tasks: [], structure: "", folded: null, problem: null });
  const loader = useRef(null);
  useEffect(() => {
    const abort = new AbortController();
    const told = { job: null, tasks: new Map() };
    let planned = null, applied = null, busy = false, late = false, size = 0;
    const load = async () => {
      if (busy) { late = true; return; }
      busy = true;
      planned = null;
      try {
        const found = await read(id, abort.signal);
        size = found.tasks.length;
        set(found);
      } catch (problem) {
        if (problem.name !== "AbortError") set((before) => ({ ...before, problem }));
      } finally {
        busy = false;
        if (late) { late = false; soon(); }
      }
    };
    const soon = () => { planned ??= setTimeout(load, size > 500 ? 5_000 : 300); };
    const apply = () => {
      applied = null;
      set((before) => patched(before, told));
      told.job = null;
      told.tasks = new Map();
    };
    loader.current = load;
    const leave = subscribe([`job:${id}`], (kind, said) => {
      if (["hello", "reset", "mode", "back"].includes(kind)) return soon();
      if (kind === "job" && said.id === id) told.job = said;
      else if (kind === "task" && said.job_id === id) told.tasks.set(said.id, said);
      else return undefined;
      applied ??= setTimeout(apply, GATHER_MS);
      return soon();
    });
    load();
    return () => { abort.abort(); leave(); clearTimeout(planned); clearTimeout(applied); };
  }, [id]);
  return { ...state, again: () => loader.current?.() };
}

/** {job, tasks, structure}: with all tasks; `folded`: as the gateway has folded them, where they are too many. */
export async function read(id, signal) {
  const job = await call(`/jobs/${id}`, { signal });
  if (job.task_count > MOST) return large(job, signal);
  const tasks = job.tasks.items;
  for (let next = job.tasks.next; next !== null;) {
    const page = await call(`/jobs/${id}/tasks?after=${next}&limit=${PAGE}`, { signal });
    tasks.push(...page.items);
    next = page.next;
  }
  return { job, tasks, structure: structureOf(job, tasks), folded: null, problem: null };
}

async function large(job, signal) {
  const [found, { nodesOf, split }] = await Promise.all([call(`/jobs/${job.id}/fold`, { signal }), import("../graph/folded.js")]);
  const nodes = nodesOf(found), known = new Set(job.tasks.items.map((task) => task.task_key));
  const tasks = [...job.tasks.items, ...nodes.flatMap((node) => node.tasks).filter((task) => !known.has(task.task_key))];
  return { job, tasks, structure: structureOf(job, tasks), folded: { nodes, split }, problem: null };
}

const structureOf = (job, tasks) => `${tasks.length} ${job.generation} ${tasks.at(-1)?.task_key}`;

/** The whole of a task of which only a sketch is known; undefined while it is read. */
export function useTask(id, task) {
  const { data } = useLoaded(task?.isSketch ? `/jobs/${id}/tasks?key=${encodeURIComponent(task.task_key)}` : null, { topics: [`job:${id}`], concerns: (kind) => kind === "task", gather: 1_000 });
  return task?.isSketch ? data?.items[0] : task;
}

function patched(before, { job, tasks }) {
  if (!before.job) return before;
  const changed = job ? { ...before.job, status: job.status, progress: job.progress, current_task_key: job.current_task_key, open_tasks: job.open_tasks, error_code: job.error_code } : before.job;
  if (!tasks.size) return { ...before, job: changed };
  const patch = (task, said) => Object.assign({ ...task }, Object.fromEntries(CHANGES.map((name) => [name, said[name]])));
  return { ...before, job: changed, tasks: before.tasks.map((task) => (tasks.has(task.id) ? patch(task, tasks.get(task.id)) : task)) };
}
