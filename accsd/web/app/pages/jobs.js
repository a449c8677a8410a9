// Jobs, newest first, by what is asked for in the bar.
import { call, place, query } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { useLoaded } from "../load.js";
import { ask, go, params } from "../router.js";
import { duration, exact } from "../time.js";
import { JobLink, Meter, Nothing, State, Table, Trouble, When } from "../ui/parts.js";

const SHORTCUTS = [["", "All"], ["status:queued,running", "In motion"], ["status:error", "Failed"], ["status:done", "Done"]];

export function Jobs() {
  const { q = "" } = params.value;
  const [typed, type] = useState(q);
  const [more, setMore] = useState([]);
  const [next, setNext] = useState(undefined);
  const path = `/jobs${query({ q, limit: 50 })}`;
  const { data, problem, again } = useLoaded(path, { topics: ["jobs"], concerns: (kind) => kind === "job" });
  useEffect(() => { type(q); setMore([]); setNext(undefined); }, [q]);
  const known = new Set();
  const rows = [...(data?.items ?? []), ...more].filter((job) => !known.has(job.id) && known.add(job.id));
  const cursor = next === undefined ? data?.next : next;
  const load = async () => {
    const page = await call(`/jobs${query({ q, limit: 50, cursor })}`);
    setMore([...more, ...page.items]);
    setNext(page.next);
  };
  return html`<div class="head"><h1>Jobs</h1>
      <form class="grow" role="search" onSubmit=${(event) => { event.preventDefault(); ask({ q: typed }, { replace: false }); }}>
        <input class="wide" id="filter" type="search" aria-label="Filter jobs" placeholder="status:error workflow:media since:2d" value=${typed} onInput=${(event) => type(event.target.value)} /></form>
      <nav aria-label="Usual filters">${SHORTCUTS.map(([to, word]) => html`<a class="button" key=${to} href=${place(`/jobs${query({ q: to })}`)} aria-current=${to === q ? "true" : undefined}>${word}</a> `)}</nav></div>
    <${Trouble} problem=${problem} again=${again} />
    ${data && (rows.length ? html`<${Table} label="Jobs" rows=${rows} keyOf=${(job) => job.id} opens=${(job) => go(`/jobs/${job.id}`)} columns=${[
      ["Job", (job) => html`<${JobLink} id=${job.id} />`],
      ["Workflow", (job) => job.workflow],
      ["Status", (job) => html`<${State} of=${job.status} />`],
      ["Step", (job) => (job.status === "running" ? job.current_task_key : "")],
      ["Progress", (job) => (job.status === "running" ? html`<${Meter} part=${job.progress} label=${`progress of ${job.workflow}`} />` : "")],
      ["Options and errors", (job) => job.error_message ?? told(job.options), "cut"],
      ["Submitted", (job) => html`<${When} at=${job.created_at} />`, "right"],
      ["Took", (job) => duration(job.took_seconds), "right"],
    ]} />` : html`<${Nothing}>${q ? "No job matches." : html`There is no job yet. <code>accsd submit WORKFLOW</code> makes the first.`}<//>`)}
    ${data?.scan && !data.scan.complete && html`<p class="muted">Looked at ${data.scan.looked_at.toLocaleString()} jobs, back to ${exact(data.scan.back_to)}.</p>`}
    ${cursor && html`<p><button onClick=${load}>Show more</button></p>`}`;
}

const told = (options) => Object.entries(options ?? {}).map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" ");
