// The steps of a job over its time, in the colours of where the time went. The whole row is the target of a click.
import { place } from "../api.js";
import { html } from "../html.js";
import { go } from "../router.js";
import { duration, now } from "../time.js";
import { WORDS } from "../ui/explain.js";
import { State, Table } from "../ui/parts.js";

export const shownState = (task) => (task.status === "queued" && task.hold === "backoff" ? "backoff" : task.status);

export function Gantt({ job, tasks, explain }) {
  const began = Date.parse(job.started_at ?? job.created_at);
  const ended = job.finished_at ? Date.parse(job.finished_at) : now();
  const whole = Math.max(1, ended - began);
  const bar = (task) => html`<div class="track">${(explain?.tasks?.[task.task_key] ?? []).map((each, n) => {
    const from = Math.max(began, Date.parse(each.from)), to = Math.min(ended, Date.parse(each.to));
    return html`<div key=${n} data-kind=${each.kind} title=${`${WORDS[each.kind] ?? each.kind} ${duration((to - from) / 1000)}${each.subject?.name ? ` (${each.subject.name})` : ""}`}
      style=${{ left: `${((from - began) / whole) * 100}%`, width: `${(Math.max(0, to - from) / whole) * 100}%` }}></div>`;
  })}</div>`;
  return html`<div class="gantt"><${Table} label="Steps" rows=${tasks} keyOf=${(task) => task.id}
    opens=${(task) => go(`/jobs/${job.id}?tab=log&step=${encodeURIComponent(task.task_key)}`)} columns=${[
    ["Step", (task) => html`<a href=${place(`/jobs/${job.id}?tab=log&step=${encodeURIComponent(task.task_key)}`)}>${task.task_key}</a>`],
    ["Status", (task) => html`<${State} of=${shownState(task)} />`],
    ["Machine", (task) => task.node ?? ""],
    ["Time", bar, "bar"],
    ["Attempt", (task) => (task.attempt_id > 1 ? task.attempt_id : ""), "right"],
    ["Took", (task) => duration(task.took_seconds), "right"],
    ["Error", (task) => task.error_message ?? "", "cut"],
  ]} /></div>`;
}
