// One job: how it stands and why, where its time went, its steps, attempts, events, logs and artifacts.
import { place } from "../api.js";
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { params } from "../router.js";
import { duration } from "../time.js";
import { ExplainBar, Legend } from "../ui/explain.js";
import { Action } from "../ui/sheet.js";
import { At, Copy, Facts, Json, Meter, Nothing, State, Table, Tabs, Trouble, When } from "../ui/parts.js";
import { Gantt } from "./job_gantt.js";
import { Graph } from "./job_graph.js";
import { JobLog } from "./job_log.js";

const ENDED = ["done", "error", "cancelled"];
const TABS = [["steps", "Steps"], ["graph", "Graph"], ["attempts", "Attempts"], ["events", "Events"], ["log", "Log"], ["artifacts", "Artifacts"], ["details", "Details"]];

export function Job({ subject: id }) {
  const { tab = "steps", step } = params.value;
  const concerns = (kind, said) => (kind === "job" && said.id === id) || kind === "task" || kind === "event";
  const live = { topics: [`job:${id}`], concerns };
  const { data: job, problem, again } = useLoaded(`/jobs/${id}`, live);
  const explain = useLoaded(`/jobs/${id}/explain`, live);
  const isOpen = job && !ENDED.includes(job.status);
  const why = useLoaded(isOpen ? `/jobs/${id}/why` : null, live);
  if (!job) return html`<${Trouble} problem=${problem} again=${again} />`;
  const tasks = job.tasks.items;
  const href = (to) => place(`/jobs/${id}?tab=${to}${step ? `&step=${encodeURIComponent(step)}` : ""}`);
  return html`<div class="head"><h1>${job.workflow}</h1><span class="mono" title=${job.id}>${id.slice(-8)}</span><${Copy} text=${id} label="Copy id" />
      <${State} of=${job.status} /><span class="grow"></span><${Actions} job=${job} /></div>
    <${Trouble} problem=${problem} again=${again} />
    <${Headline} job=${job} tasks=${tasks} why=${why.data} />
    <${Facts} of=${[
      ["submitted", html`<${When} at=${job.created_at} />`], ["by", job.created_by], ["took", duration(job.took_seconds)],
      ["steps", `${job.task_count - job.open_tasks} of ${job.task_count} ended`], ["usually ends", explain.data?.eta?.text], ["version", job.version], ["priority", job.priority || null],
    ]} />
    ${isOpen && html`<${Meter} part=${job.progress} label="progress of the job" />`}
    ${explain.data?.segments.length ? html`<section class="went" aria-label="Where the time went"><${ExplainBar} segments=${explain.data.segments} /><${Legend} segments=${explain.data.segments} /></section>` : null}
    <${Tabs} of=${TABS} now=${tab} href=${href} />
    <${Tab} tab=${tab} job=${job} tasks=${tasks} step=${step} explain=${explain.data} />`;
}

function Headline({ job, tasks, why }) {
  if (job.status === "error") {
    const failed = tasks.find((task) => task.status === "error");
    return html`<div class="hint failed"><strong>${failed ? `${failed.task_key}: ` : ""}${job.error_message ?? job.error_code}</strong> <span class="muted mono">${job.error_code}</span>
      ${failed && html` <a href=${place(`/jobs/${job.id}?tab=log&step=${encodeURIComponent(failed.task_key)}`)}>Open its log</a>`}</div>`;
  }
  const blockers = (why?.items ?? []).filter((each) => each.blocker !== "running" || !each.task_id);
  const waits = blockers.filter((each) => each.task_id && each.blocker !== "running");
  if (!waits.length) return null;
  return html`<div class="hint waits" id="why">${waits.slice(0, 5).map((each) => html`<div key=${each.task_id + each.blocker}>
    <strong>${each.task_key}: ${each.text}</strong>${each.next && html`<div class="muted">${each.next}</div>`}</div>`)}
    ${waits.length > 5 && html`<div class="muted">and ${waits.length - 5} more</div>`}</div>`;
}

function Actions({ job }) {
  const name = `${job.workflow} ${job.id.slice(-8)}`;
  if (ENDED.includes(job.status)) {
    return html`<${Action} label="Retry" kind="primary" action=${{
      title: `Retry ${name}`, path: `/jobs/${job.id}/retry`, scope: "submit", verb: "Retry", cli: `accsd retry ${job.id}`,
      effect: (preview) => [`Runs again: ${preview.runs_again?.join(", ") || "nothing"}`, `Keeps its result: ${preview.kept?.join(", ") || "nothing"}`],
      done: () => `${name} runs again`,
    }} />`;
  }
  return html`<${Action} label="Cancel" kind="danger" action=${{
    title: `Cancel ${name}`, path: `/jobs/${job.id}/cancel`, scope: "submit", verb: "Cancel the job", danger: true, cli: `accsd cancel ${job.id}`,
    effect: (preview) => [`Stops: ${preview.stops?.join(", ") || "nothing that runs"}`, `Never begins: ${preview.never_begins?.join(", ") || "nothing"}`, `Stays as it is: ${preview.stays?.join(", ") || "nothing"}`],
    done: () => `${name} is cancelled`,
  }} />`;
}

function Tab({ tab, job, tasks, step, explain }) {
  switch (tab) {
    case "graph": return html`<${Graph} job=${job} tasks=${tasks} />`;
    case "attempts": return html`<${Attempts} job=${job} />`;
    case "events": return html`<${Events} job=${job} />`;
    case "log": return html`<${JobLog} job=${job} tasks=${tasks} step=${step} />`;
    case "artifacts": return html`<${Artifacts} job=${job} />`;
    case "details": return html`<div class="grid"><section class="panel half"><h2>Options</h2><${Json} value=${job.options} /></section>
      <section class="panel half"><h2>What brought it about</h2><${Json} value=${job.trigger ?? "a plain submission"} /></section>
      <section class="panel"><h2>Results</h2><${Json} value=${Object.fromEntries(tasks.filter((task) => task.results).map((task) => [task.task_key, task.results]))} /></section></div>`;
    default: return html`<${Gantt} job=${job} tasks=${tasks} explain=${explain} />`;
  }
}

function Attempts({ job }) {
  const { data, problem, again } = useLoaded(`/jobs/${job.id}/attempts`, { topics: [`job:${job.id}`] });
  if (!data) return html`<${Trouble} problem=${problem} again=${again} />`;
  return html`<${Table} label="Attempts" rows=${data.items} keyOf=${(each) => `${each.task_key} ${each.attempt_id}`} columns=${[
    ["Step", (each) => each.task_key], ["Attempt", (each) => each.attempt_id], ["Machine", (each) => each.node],
    ["Outcome", (each) => html`<${State} of=${each.outcome === "done" ? "done" : each.outcome ? "error" : "running"} word=${each.outcome ?? "running"} />`],
    ["What was said", (each) => each.message, "cut"], ["Claimed", (each) => html`<${At} at=${each.claimed_at} />`], ["Took", (each) => duration(each.took_seconds), "right"],
  ]} />`;
}

function Events({ job }) {
  const { data, problem, again } = useLoaded(`/jobs/${job.id}/events?limit=500`, { topics: [`job:${job.id}`] });
  if (!data) return html`<${Trouble} problem=${problem} again=${again} />`;
  return html`<${Table} label="Events" rows=${data.items} keyOf=${(each) => each.id} columns=${[
    ["After", (each) => duration(each.since_seconds), "right"], ["Step", (each) => each.task_key ?? ""], ["From", (each) => each.source], ["Type", (each) => each.type],
    ["What happened", (each) => html`<span class="state" data-state=${each.level === "error" ? "error" : each.level === "warn" ? "backoff" : ""}>${each.message}</span>`, "cut"],
    ["At", (each) => html`<${At} at=${each.ts} />`],
  ]} />`;
}

function Artifacts({ job }) {
  const { data, problem, again } = useLoaded(`/jobs/${job.id}/artifacts`);
  if (!data) return html`<${Trouble} problem=${problem} again=${again} />`;
  if (!data.items.length) return html`<${Nothing}>This job has left no artifacts.<//>`;
  return html`<${Table} label="Artifacts" rows=${data.items} keyOf=${(each) => each.id} columns=${[
    ["Name", (each) => html`<a href=${place(`/api/v1/artifacts/${each.id}/content`)} target="_blank" rel="noopener">${each.name}</a>`],
    ["Step", (each) => each.task_key], ["Type", (each) => each.content_type], ["Size", (each) => each.size?.toLocaleString(), "right"],
  ]} />`;
}
