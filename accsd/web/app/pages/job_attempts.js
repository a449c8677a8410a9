// The attempts of a job, a lane for each step: who had it, how it ended, and writes that were refused afterwards.
import { place } from "../api.js";
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { sharedJob } from "../session.js";
import { duration } from "../time.js";
import { At, Json, Nothing, State, Trouble } from "../ui/parts.js";
import { Rows } from "../ui/rows.js";

const STATES = { done: "done", error: "error", lost: "error", released: "backoff", cancelled: "cancelled" };
const WORDS = { lost: "lost", released: "given back", cancelled: "cancelled", error: "error", done: "done" };

export function Attempts({ job, step }) {
  const live = { topics: [`job:${job.id}`], concerns: (kind) => kind === "event" || kind === "task", gather: 1000 };
  const { data, problem, again } = useLoaded(`/jobs/${job.id}/attempts?limit=5000`, live);
  const events = useLoaded(`/jobs/${job.id}/events?limit=5000`, live);
  if (!data) return html`<${Trouble} problem=${problem} again=${again} />`;
  const rows = data.items.filter((each) => !step || each.task_key === step);
  const refused = (events.data?.items ?? []).filter((each) => each.type === "refused" && (!step || each.task_key === step));
  if (!rows.length) return html`<${Nothing}>Nobody has begun ${step ? "this step" : "a step of this job"} yet.<//>`;
  const isShared = sharedJob() !== null;
  return html`<${Rows} label="Attempts" rows=${rows} keyOf=${(each) => `${each.task_key} ${each.attempt_id} ${each.claimed_at}`} columns=${[
      ...(step ? [] : [["Step", (each) => html`<a href=${place(`/jobs/${job.id}?tab=steps&step=${encodeURIComponent(each.task_key)}&attempt=${each.attempt_id}`)}>${each.task_key}</a>`]]),
      ["Attempt", (each) => html`<span title="Its fence: only this number may write">${each.attempt_id}</span>`, "right"],
      ["Machine", (each) => (isShared ? each.node ?? "" : html`<a href=${place(`/fleet/${encodeURIComponent(each.node ?? "")}`)}>${each.node ?? ""}</a>`)],
      ["Outcome", (each) => html`<${State} of=${each.outcome ? STATES[each.outcome] ?? "error" : "running"} word=${each.outcome ? WORDS[each.outcome] ?? each.outcome : "running"} />`],
      ["What was said", (each) => `${each.message ?? ""}${each.error_code && each.error_code !== each.message ? ` (${each.error_code})` : ""}`, "cut"],
      ["Claimed", (each) => html`<${At} at=${each.claimed_at} />`, "wide-only"], ["Took", (each) => duration(each.took_seconds), "right"],
      ...(isShared ? [] : [["", (each) => html`<a href=${place(`/jobs/${job.id}/log?step=${encodeURIComponent(each.task_key)}&attempt=${each.attempt_id}`)}>Log</a>`]]),
    ]} />
    ${refused.length > 0 && html`<section class="panel refused"><h2>Writes that were refused <span class="note">of attempts that no longer had the task</span></h2>
      ${refused.map((each) => html`<details key=${each.id}><summary><strong>${each.task_key}</strong> attempt ${each.attempt_id}: ${each.message} <span class="muted">from ${each.source}, <${At} at=${each.ts} /></span></summary><${Json} value=${each.data} /></details>`)}</section>`}`;
}
