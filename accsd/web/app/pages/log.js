// A log in the whole window, with an address for each of its lines.
import { place } from "../api.js";
import { html } from "../html.js";
import { shownState } from "../graph/states.js";
import { LogViewer } from "../log/viewer.js";
import { ask, params } from "../router.js";
import { Nothing, State, Trouble } from "../ui/parts.js";
import { useJob } from "./job_data.js";

const MOST_LISTED = 1_000;

export function Log({ subject: id }) {
  const { job, tasks, problem, again } = useJob(id);
  if (!job) return html`<h1 class="visually-hidden">Log</h1><${Trouble} problem=${problem} again=${again} />`;
  const { step } = params.value;
  const task = (step && tasks.find((each) => each.task_key === step)) || (!step && (tasks.find((each) => each.status === "error") ?? tasks.find((each) => each.status === "running") ?? tasks.find((each) => each.attempt_id) ?? tasks[0]));
  if (!task) return html`<div class="head"><h1>Log</h1></div><${Nothing}>${step ? `This job has no step ${step}.` : "This job has no steps yet."} <a href=${place(`/jobs/${id}`)}>The job</a><//>`;
  const attempt = Math.min(Number(params.value.attempt) || task.attempt_id, task.attempt_id);
  const begun = tasks.filter((each) => each.attempt_id || each === task).slice(0, MOST_LISTED);
  return html`<div class="head log-head"><h1>${job.workflow} <a class="mono" href=${place(`/jobs/${id}?tab=steps&step=${encodeURIComponent(task.task_key)}`)}>${id.slice(-8)}</a></h1>
      <label>Step <select value=${task.task_key} onChange=${(event) => ask({ step: event.target.value, attempt: null }, { replace: false })}>${begun.map((each) => html`<option key=${each.task_key} value=${each.task_key}>${each.task_key}</option>`)}</select></label>
      <label>Attempt <select value=${attempt} onChange=${(event) => ask({ step: task.task_key, attempt: event.target.value }, { replace: false })}>${Array.from({ length: task.attempt_id }, (_, n) => task.attempt_id - n).slice(0, 100).map((n) => html`<option key=${n} value=${n}>${n}</option>`)}</select></label>
      <${State} of=${shownState(task)} /><span class="muted">${task.node ? `on ${task.node}` : ""}</span></div>
    ${attempt ? html`<${LogViewer} key=${`${task.id} ${attempt}`} job=${job} task=${task} attempt=${attempt} isFull=${true} />` : html`<${Nothing}>This step has not begun.<//>`}`;
}
