// A look at one job beside the list: how it stands, why, its steps as a graph, the last lines of its log.
import { place } from "../api.js";
import { html } from "../html.js";
import { ENDED } from "../job_words.js";
import { useLoaded } from "../load.js";
import { Said } from "../log/lines.js";
import { go } from "../router.js";
import { duration } from "../time.js";
import { Facts, JobLink, Meter, Nothing, State, Trouble, When } from "../ui/parts.js";
import { Blockers } from "../ui/remedies.js";
import { Graph } from "./job_graph.js";

const LINES = 12;
const FEW = 300; // tasks of a job that is read anew at every change

export function Look({ id, close }) {
  const { data: job, problem, again } = useLoaded(`/jobs/${id}`, { topics: [`job:${id}`], concerns: (kind) => kind === "task" || kind === "job", gather: 1_000, polls: false });
  const isOpen = job && !ENDED.includes(job.status);
  const live = { topics: [`job:${id}`], concerns: (kind) => kind === "task" || kind === "job", gather: job?.task_count > FEW ? 5_000 : 1_000 };
  const why = useLoaded(isOpen ? `/jobs/${id}/why` : null, live);
  const tasks = job?.tasks.items ?? [];
  const waits = (why.data?.items ?? []).filter((each) => each.blocker !== "running");
  return html`<aside class="panel step look" aria-label=${`Job ${id.slice(-8)}`}>
    <header class="step-head"><h2 class="name">${job?.workflow ?? "A job"}</h2><${JobLink} id=${id} />${job && html`<${State} of=${job.status} />`}<span class="grow"></span>
      <a class="button" href=${place(`/jobs/${id}`)}>Open</a><button class="plain" onClick=${close} aria-label="Close the look">✕</button></header>
    <${Trouble} problem=${problem} again=${again} />
    ${job && html`<${Facts} of=${[["submitted", html`<${When} at=${job.created_at} />`], ["by", job.created_by], ["took", duration(job.took_seconds)], ["steps", `${(job.task_count - job.open_tasks).toLocaleString()} of ${job.task_count.toLocaleString()} ended`]]} />
      ${isOpen && html`<${Meter} part=${job.progress} label=${`progress of job ${id.slice(-8)}`} />`}
      ${job.status === "error" && html`<div class="hint failed"><strong>${job.error_message ?? job.error_code}</strong> <span class="muted mono">${job.error_code}</span></div>`}
      ${isOpen && waits.length > 0 && html`<div class="hint waits"><${Blockers} of=${waits} /></div>`}
      ${tasks.length > 0 && html`<${Graph} tasks=${tasks} structure=${`${id} ${tasks.length} ${job.generation}`} select=${(key) => go(`/jobs/${id}?${new URLSearchParams({ tab: "steps", step: key })}`)} label="Its steps, and what they wait for" />`}
      ${job.tasks.next !== null && html`<p class="muted small">The first ${tasks.length.toLocaleString()} of ${job.task_count.toLocaleString()} steps.</p>`}
      <${LastLines} task=${telling(tasks)} id=${id} />`}</aside>`;
}

/** The task whose log tells most: the failure, what runs, or what ended last. */
function telling(tasks) {
  const first = (status) => tasks.find((task) => task.status === status && task.attempt_id);
  return first("error") ?? first("running") ?? tasks.filter((task) => task.attempt_id && task.node).sort((a, b) => Date.parse(b.finished_at ?? 0) - Date.parse(a.finished_at ?? 0))[0];
}

function LastLines({ task, id }) {
  const live = task?.status === "running";
  const { data } = useLoaded(task ? `/tasks/${task.id}/attempts/${task.attempt_id}/log?tail=${LINES}` : null, { topics: live ? [`log:${task.id}:${task.attempt_id}`] : [], gather: 1_000, polls: live });
  if (!task) return html`<${Nothing}>Nothing of it has begun.<//>`;
  const whole = place(`/jobs/${id}/log?${new URLSearchParams({ step: task.task_key, attempt: task.attempt_id })}`);
  return html`<h3>The end of <a href=${whole}>the log of ${task.task_key}</a></h3>
    ${data && (data.lines.length ? html`<div class="last-lines">${data.lines.map((line) => html`<div class="line" key=${line.n} data-level=${line.level}><span class="text" dir="ltr"><${Said} line=${line} /></span></div>`)}</div>` : html`<${Nothing}>Nothing was written.<//>`)}`;
}
