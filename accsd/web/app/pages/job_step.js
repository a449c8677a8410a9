// One step beside the others: its log first, and everything else that is known of it.
import { place } from "../api.js";
import { html } from "../html.js";
import { shownState } from "../graph/states.js";
import { ENDED } from "../job_words.js";
import { useLoaded } from "../load.js";
import { LogViewer } from "../log/viewer.js";
import { ask, params } from "../router.js";
import { sharedJob, showsFiles } from "../session.js";
import { ago, duration } from "../time.js";
import { Facts, Json, Nothing, State, Trouble } from "../ui/parts.js";
import { Blockers } from "../ui/remedies.js";
import { Action } from "../ui/sheet.js";
import { retryOf } from "./job_actions.js";
import { Artifacts } from "./job_artifacts.js";
import { Attempts } from "./job_attempts.js";
import { Events } from "./job_events.js";

const PARTS = [["log", "Log"], ["why", "Why"], ["params", "Params"], ["results", "Results"], ["artifacts", "Artifacts"], ["attempts", "Attempts"], ["events", "Events"]];
const NOT_SHARED = new Set(["log", "why"]);

export function Step({ job, task, close }) {
  const state = shownState(task);
  const waits = state === "queued" || state === "backoff";
  const isShared = sharedJob() !== null;
  const part = params.value.part ?? (isShared ? "events" : task.attempt_id ? "log" : waits ? "why" : "params");
  const attempt = Math.min(Number(params.value.attempt) || task.attempt_id, task.attempt_id);
  const shown = PARTS.filter(([key]) => (key !== "why" || waits) && !(isShared && NOT_SHARED.has(key)) && (key !== "artifacts" || showsFiles()));
  const query = new URLSearchParams({ step: task.task_key, ...(attempt ? { attempt } : {}) });
  return html`<aside class="panel step" aria-label=${`Step ${task.task_key}`}>
    <header class="step-head"><h2 class="name">${task.task_key}</h2><${State} of=${state} /><span class="muted">${task.service}${task.node ? ` on ${task.node}` : ""}</span><span class="grow"></span>
      ${ENDED.includes(job.status) && !isShared && html`<${Action} label="Retry from here" action=${retryOf(job, task.task_key.replace(/\[.*$/, ""))} />`}
      <button class="plain" onClick=${close} aria-label="Close the step">✕</button></header>
    ${task.error_message && html`<div class="hint failed"><strong>${task.error_message}</strong> <span class="mono muted">${task.error_code}</span></div>`}
    <${Facts} of=${[["attempt", task.attempt_id ? `${task.attempt_id}${task.attempt_id > 1 || task.max_attempts > 1 ? ` (${task.attempt} of ${task.max_attempts} failures used)` : ""}` : null], ["lost", task.lost || null],
      ["took", duration(task.took_seconds)], ["began", ago(task.started_at)], ["again", task.hold === "backoff" ? ago(task.next_attempt_at) : null], ["after", task.depends_on.slice(0, 6).join(", ")],
      ["cached from", task.cached && !isShared && html`<a class="mono" href=${place(`/jobs/${task.cached.job_id}`)}>${task.cached.job_id.slice(-8)}</a>`], ["fails everywhere", task.fails_everywhere]]} />
    <div class="tabs-row"><nav class="tabs" aria-label="Parts of this step">${shown.map(([key, word]) => html`<button key=${key} class="plain" aria-current=${key === part ? "true" : undefined} onClick=${() => ask({ step: task.task_key, part: key })}>${word}</button>`)}</nav>
      ${task.attempt_id > 1 && part === "log" && html`<label>Attempt <select value=${attempt} onChange=${(event) => ask({ step: task.task_key, attempt: event.target.value })}>${Array.from({ length: task.attempt_id }, (_, n) => task.attempt_id - n).slice(0, 50).map((n) => html`<option key=${n} value=${n}>${n}</option>`)}</select></label>`}
      ${attempt > 0 && part === "log" && html`<a href=${place(`/jobs/${job.id}/log?${query}`)}>Full screen</a>`}</div>
    <${Part} part=${part} job=${job} task=${task} attempt=${attempt} /></aside>`;
}

function Part({ part, job, task, attempt }) {
  switch (part) {
    case "why": return html`<${Why} task=${task} />`;
    case "params": return html`<${Json} value=${task.params} />`;
    case "results": return task.results ? html`<${Json} value=${task.results} />` : html`<${Nothing}>It has no results.<//>`;
    case "artifacts": return html`<${Artifacts} job=${job} step=${task.task_key} />`;
    case "attempts": return html`<${Attempts} job=${job} step=${task.task_key} />`;
    case "events": return html`<${Events} job=${job} step=${task.task_key} />`;
    default: return attempt ? html`<${LogViewer} key=${`${task.id} ${attempt}`} job=${job} task=${task} attempt=${attempt} />` : html`<${Nothing}>This step has not begun.<//>`;
  }
}

function Why({ task }) {
  const { data, problem, again } = useLoaded(`/tasks/${task.id}/why`, { topics: [`job:${task.job_id ?? ""}`].filter((topic) => topic !== "job:") });
  if (!data) return html`<${Trouble} problem=${problem} again=${again} />`;
  return data.items.length ? html`<${Blockers} of=${data.items.map((each) => ({ ...each, task_key: null }))} />` : html`<${Nothing}>Nothing keeps it.<//>`;
}
