// The log of one attempt: its end first, more on demand, every line with its number as an address.
import { call, place, query } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { subscribe } from "../live.js";
import { ask } from "../router.js";
import { Nothing, State, Trouble } from "../ui/parts.js";
import { shownState } from "./job_gantt.js";

const WINDOW = 500;

export function JobLog({ job, tasks, step }) {
  const task = tasks.find((each) => each.task_key === step) ?? tasks.find((each) => each.status === "error") ?? tasks.find((each) => each.status === "running") ?? tasks.find((each) => each.attempt_id) ?? tasks[0];
  if (!task) return html`<${Nothing}>This job has no steps yet.<//>`;
  return html`<div class="head"><label>Step <select value=${task.task_key} onChange=${(event) => ask({ step: event.target.value })}>${tasks.map((each) => html`<option key=${each.task_key} value=${each.task_key}>${each.task_key}</option>`)}</select></label>
    <${State} of=${shownState(task)} /><span class="muted">attempt ${task.attempt_id}${task.node ? ` on ${task.node}` : ""}</span>
    ${task.attempt_id ? html`<a href=${place(`/api/v1/tasks/${task.id}/attempts/${task.attempt_id}/log/raw`)} download>Download</a>` : null}</div>
    ${task.attempt_id ? html`<${Lines} key=${`${task.id} ${task.attempt_id}`} task=${task} />` : html`<${Nothing}>This step has not begun.<//>`}`;
}

function Lines({ task }) {
  const path = `/tasks/${task.id}/attempts/${task.attempt_id}/log`;
  const [state, set] = useState({ lines: [], first: 1, total: 0 });
  const [problem, setProblem] = useState(null);
  const [sought, seek] = useState("");
  const [hits, setHits] = useState(null);
  const merge = (lines) => set((before) => {
    const all = new Map([...before.lines, ...lines].map((line) => [line.n, line]));
    return { lines: [...all.values()].sort((a, b) => a.n - b.n) };
  });
  const load = (asked) => call(`${path}${query(asked)}`).then((found) => merge(found.lines), setProblem);
  useEffect(() => {
    load({ tail: WINDOW });
    return subscribe([`log:${task.id}:${task.attempt_id}`], (kind, said) => {
      if (kind !== "log") return;
      if (said.skipped) load({ tail: WINDOW });
      else merge(said.lines ?? []);
    });
  }, []);
  const search = async (event) => {
    event.preventDefault();
    try {
      setHits(sought ? await call(`${path}/search${query({ q: sought })}`) : null);
    } catch (refusal) { setProblem(refusal); }
  };
  const first = state.lines[0]?.n ?? 1;
  return html`<${Trouble} problem=${problem} />
    <form role="search" onSubmit=${search}><input class="wide" type="search" aria-label="Search the whole log" placeholder="Search the whole log" value=${sought} onInput=${(event) => seek(event.target.value)} /></form>
    ${hits && html`<p class="muted">${(hits.items ?? hits.hits ?? []).length} lines have it.</p>`}
    ${first > 1 && html`<p><button onClick=${() => load({ from_line: Math.max(1, first - WINDOW), limit: WINDOW })}>Show earlier lines (${first - 1})</button></p>`}
    ${state.lines.length ? html`<div class="log" role="log" aria-label="Log">${state.lines.map((line) => html`<div key=${line.n} id=${`L${line.n}`} data-level=${line.level}>
      <a class="n" href=${`#L${line.n}`}>${line.n}</a><span class="text">${line.text}</span></div>`)}</div>` : html`<${Nothing}>Nothing was written.<//>`}`;
}
