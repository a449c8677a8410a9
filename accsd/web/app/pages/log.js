// A log in the whole window, with an address for each of its lines; another one beside it.
import { place } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { shownState } from "../graph/states.js";
import { useLoaded } from "../load.js";
import { useTogether } from "../log/together.js";
import { LogViewer } from "../log/viewer.js";
import { ask, params } from "../router.js";
import { JobLink, Nothing, State, Trouble, When } from "../ui/parts.js";
import { read, useJob, useTask } from "./job_data.js";

const MOST_LISTED = 1_000;
const attemptsOf = (task) => Array.from({ length: task.attempt_id }, (_, n) => task.attempt_id - n).slice(0, 100);

/** The step that is named, or else the one whose log tells most. */
function wanted(tasks, step) {
  if (step) return tasks.find((each) => each.task_key === step);
  return tasks.find((each) => each.status === "error") ?? tasks.find((each) => each.status === "running") ?? tasks.find((each) => each.attempt_id) ?? tasks[0];
}

export function Log({ subject: id }) {
  const { job, tasks, problem, again } = useJob(id);
  const { step, beside } = params.value;
  const task = useTask(id, wanted(tasks, step));
  if (!job) return html`<h1 class="visually-hidden">Log</h1><${Trouble} problem=${problem} again=${again} />`;
  if (!task && wanted(tasks, step)) return null; // it is being read
  if (!task) return html`<div class="head"><h1>Log</h1></div><${Nothing}>${step ? `This job has no step ${step}.` : "This job has no steps yet."} <a href=${place(`/jobs/${id}`)}>The job</a><//>`;
  const attempt = Math.min(Number(params.value.attempt) || task.attempt_id, task.attempt_id);
  const begun = tasks.filter((each) => each.attempt_id || each === task).slice(0, MOST_LISTED);
  const others = begun.filter((each) => each !== task);
  return html`<div class="head log-head"><h1>${job.workflow} <a class="mono" href=${place(`/jobs/${id}?tab=steps&step=${encodeURIComponent(task.task_key)}`)}>${id.slice(-8)}</a></h1>
      <label>Step <select value=${task.task_key} onChange=${(event) => ask({ step: event.target.value, attempt: null }, { replace: false })}>${begun.map((each) => html`<option key=${each.task_key} value=${each.task_key}>${each.task_key}</option>`)}</select></label>
      <label>Attempt <select value=${attempt} onChange=${(event) => ask({ step: task.task_key, attempt: event.target.value }, { replace: false })}>${attemptsOf(task).map((n) => html`<option key=${n} value=${n}>${n}</option>`)}</select></label>
      <label>Beside it <select value=${beside ?? ""} onChange=${(event) => ask({ step: task.task_key, attempt, beside: event.target.value || null }, { replace: false })}><option value="">nothing</option><option value="good">the last good run</option>
        ${task.attempt_id > 1 && html`<optgroup label="Another attempt">${attemptsOf(task).map((n) => html`<option key=${n} value=${`attempt:${n}`}>attempt ${n}</option>`)}</optgroup>`}
        ${others.length > 0 && html`<optgroup label="Another step">${others.map((each) => html`<option key=${each.task_key} value=${`step:${each.task_key}`}>${each.task_key}</option>`)}</optgroup>`}</select></label>
      <${State} of=${shownState(task)} /><span class="muted">${task.node ? `on ${task.node}` : ""}</span></div>
    ${!attempt ? html`<${Nothing}>This step has not begun.<//>`
      : beside ? html`<${Pair} job=${job} task=${task} attempt=${attempt} tasks=${tasks} beside=${beside} />`
        : html`<${LogViewer} key=${`${task.id} ${attempt}`} job=${job} task=${task} attempt=${attempt} isFull=${true} />`}`;
}

function Pair({ job, task, attempt, tasks, beside }) {
  const [isTogether, set] = useState(true);
  const { left, right, leads } = useTogether(isTogether);
  const other = useOther(job, task, tasks, beside);
  return html`<label class="check"><input type="checkbox" checked=${isTogether} onChange=${(event) => set(event.target.checked)} />Scroll together, by the time since the first line</label>
    <div class="log-pair">
      <div ...${leads("left")}><h2>${task.task_key}, attempt ${attempt}</h2><${LogViewer} key=${`${task.id} ${attempt}`} job=${job} task=${task} attempt=${attempt} isFull=${true} handle=${left} /></div>
      <div ...${leads("right")}><${Trouble} problem=${other.problem} />
        ${other.missing && html`<${Nothing}>${other.missing}<//>`}
        ${other.task && html`<h2>${other.task.task_key}, attempt ${other.attempt}${other.job.id !== job.id && html` of <${JobLink} id=${other.job.id} /> <span class="muted small"><${When} at=${other.job.created_at} /></span>`}</h2>
          <${LogViewer} key=${`${other.task.id} ${other.attempt}`} job=${other.job} task=${other.task} attempt=${other.attempt} isFull=${true} isBeside=${true} handle=${right} />`}</div></div>`;
}

/** {job, task, attempt} of what stands beside, or what is wrong: `missing` (in words), `problem`. */
function useOther(job, task, tasks, beside) {
  const good = useLoaded(beside === "good" ? `/jobs/${job.id}/compare?with=last_good` : null, { polls: false });
  const goodId = beside === "good" ? good.data?.with.id : undefined;
  const [found, set] = useState({ id: null });
  useEffect(() => {
    if (!goodId) return undefined;
    const abort = new AbortController();
    read(goodId, abort.signal).then((whole) => set({ id: goodId, ...whole }), (problem) => problem.name === "AbortError" || set({ id: goodId, problem }));
    return () => abort.abort();
  }, [goodId]);
  const [kind, ...rest] = beside.split(":"), name = rest.join(":");
  const of = (of_, one, attempt) => (!one ? { missing: "It has no such step." } : !attempt ? { missing: `${one.task_key} has not begun there.` } : { job: of_, task: one, attempt });
  if (kind === "attempt") return of(job, task, Math.min(Number(name) || 0, task.attempt_id));
  if (kind === "step") { const one = tasks.find((each) => each.task_key === name); return of(job, one, one?.attempt_id); }
  if (kind !== "good") return { missing: "There is nothing like that." };
  if (good.problem || found.problem) return { problem: good.problem ?? found.problem };
  if (!goodId || found.id !== goodId) return {};
  const one = found.tasks.find((each) => each.task_key === task.task_key);
  return of(found.job, one, one?.attempt_id);
}
