// One job: how it stands and why, where its time went, its steps as a graph, over time and as a table; one step beside them.
import { call, place } from "../api.js";
import { shown as fetched } from "../fetched.js";
import { html, useEffect, useMemo, useState } from "../html.js";
import { ENDED } from "../job_words.js";
import { useLoaded } from "../load.js";
import { ask, params } from "../router.js";
import { sharedJob, showsFiles } from "../session.js";
import { duration } from "../time.js";
import { ExplainBar, Legend } from "../ui/explain.js";
import { Copy, Facts, Json, Meter, Nothing, State, Tabs, Trouble, When } from "../ui/parts.js";
import { Blockers } from "../ui/remedies.js";
import { Actions } from "./job_actions.js";
import { Artifacts } from "./job_artifacts.js";
import { Attempts } from "./job_attempts.js";
import { useJob, useTask } from "./job_data.js";
import { Events } from "./job_events.js";
import { Gantt } from "./job_gantt.js";
import { Step } from "./job_step.js";
import { StepsTable } from "./job_table.js";
import { TimeMachine, useTimeMachine } from "./job_time.js";

const TABS = [["steps", "Steps"], ["graph", "Graph"], ["table", "Table"], ["attempts", "Attempts"], ["events", "Events"], ["artifacts", "Artifacts"], ["details", "Details"]];
const ofGraph = () => import("./job_graph.js");
const WITH_STEP = new Set(["steps", "graph", "table"]); // of which one step is shown beside them
const FEW = 300; // tasks of a job that is explained anew at every change

export function Job({ subject: id }) {
  const { job, tasks, structure, folded, problem, again } = useJob(id);
  const concerns = (kind) => kind === "task" || kind === "job";
  const live = { topics: [`job:${id}`], concerns, gather: tasks.length > FEW ? 5_000 : 400, polls: !!job && !ENDED.includes(job.status) };
  const explain = useLoaded(job ? `/jobs/${id}/explain` : null, live);
  const isOpen = job && !ENDED.includes(job.status);
  const isShared = sharedJob() !== null;
  const why = useLoaded(isOpen && !isShared ? `/jobs/${id}/why` : null, live);
  const begins = useBeginning(job, tasks);
  const machine = useTimeMachine(job, tasks);
  const step = params.value.step ?? (params.value.tab ? undefined : begins?.step);
  const task = useTask(id, step === undefined ? null : tasks.find((each) => each.task_key === step));
  if (!job) return html`<h1 class="visually-hidden">Job</h1><${Trouble} problem=${problem} again=${again} />`;
  const tab = params.value.tab === "log" ? "steps" : params.value.tab ?? begins?.tab ?? "steps";
  const select = (key) => ask({ tab, step: key === step ? null : key, attempt: null, part: null });
  const href = (to) => place(`/jobs/${id}?${new URLSearchParams({ tab: to, ...(step && WITH_STEP.has(to) ? { step } : {}), ...(params.value.t ? { t: params.value.t } : {}) })}`);
  const parts = { job, tasks, structure, folded, explain: explain.data, step, select, machine, why: why.data };
  return html`<${Head} job=${job} id=${id} tasks=${tasks} />
    <${Trouble} problem=${problem} again=${again} />
    <${Headline} job=${job} tasks=${tasks} why=${why.data} />
    <${Facts} of=${[
      ["submitted", html`<${When} at=${job.created_at} />`], ["by", job.created_by], ["took", duration(job.took_seconds)],
      ["steps", `${(job.task_count - job.open_tasks).toLocaleString()} of ${job.task_count.toLocaleString()} ended`], ["usually ends", usually(explain.data?.eta)],
      ["priority", job.priority || null], ["again of", job.trigger?.rerun_of && !isShared && html`<a class="mono" href=${place(`/jobs/${job.trigger.rerun_of}`)}>${job.trigger.rerun_of.slice(-8)}</a>`],
    ]} />
    ${isOpen && html`<${Meter} part=${job.progress} label="progress of the job" />`}
    ${explain.data?.segments.length ? html`<section class="went" aria-label="Where the time went"><${ExplainBar} segments=${explain.data.segments} /><${Legend} segments=${explain.data.segments} />
      <div class="small muted">critical path: ${path(explain.data.critical_path)}</div></section>` : null}
    <div class="tabs-row"><${Tabs} of=${TABS.filter(([key]) => key !== "artifacts" || showsFiles())} now=${tab} href=${href} />${WITH_STEP.has(tab) && html`<${TimeMachine} machine=${machine} job=${job} />`}</div>
    <div class=${task && WITH_STEP.has(tab) ? "beside" : ""}>
      <div class="main-part"><${Tab} tab=${tab} ...${parts} /></div>
      ${task && WITH_STEP.has(tab) && html`<${Step} key=${task.id} job=${job} task=${task} why=${why.data} close=${() => ask({ tab, step: null, attempt: null, part: null })} />`}
    </div>`;
}

const Head = ({ job, id, tasks }) => html`<div class="head"><h1>${job.workflow}</h1>${sharedJob() ? html`<span class="muted">v${job.version}</span>` : html`<a class="muted" href=${place(`/workflows/${encodeURIComponent(job.workflow)}?version=${job.version}`)}>v${job.version}</a>`}
  <span class="mono" title=${job.id}>${id.slice(-8)}</span><${Copy} text=${id} label="Copy id" /><${State} of=${job.status} /><span class="grow"></span>${!sharedJob() && html`<${Actions} job=${job} tasks=${tasks} />`}</div>`;

/** Where a person begins, once: at the failure, at what runs, at the files of what is done. */
function useBeginning(job, tasks) {
  const [found, set] = useState(null);
  const isKnown = !!job;
  useEffect(() => {
    if (!isKnown) return;
    const first = (status) => tasks.find((task) => task.status === status)?.task_key;
    if (job.status === "error") set({ tab: "steps", step: first("error") });
    else if (job.status === "running") set({ tab: "steps", step: first("running") });
    else if (job.status === "done" && showsFiles()) call(`/jobs/${job.id}/artifacts`).then(({ items }) => items.length && set({ tab: "artifacts" }), () => {});
  }, [isKnown, job?.id]);
  return found;
}

function Headline({ job, tasks, why }) {
  if (job.status === "error") {
    const failed = tasks.filter((task) => task.status === "error" && !task.tolerated);
    return html`<div class="hint failed"><strong>${failed[0] ? `${failed[0].task_key}: ` : ""}${job.error_message ?? job.error_code}</strong> <span class="muted mono">${job.error_code}</span>
      ${failed.length > 1 && html`<div class="muted">${failed.length} steps have failed: ${failed.slice(0, 8).map((task) => task.task_key).join(", ")}${failed.length > 8 ? " …" : ""}</div>`}
      ${failed[0] && !sharedJob() && html`<div class="remedies"><a class="button" href=${place(`/jobs/${job.id}?tab=steps&step=${encodeURIComponent(failed[0].task_key)}`)}>Open its log</a></div>`}</div>`;
  }
  const waits = (why?.items ?? []).filter((each) => each.blocker !== "running");
  if (!waits.length || !why) return null;
  return html`<div class="hint waits" id="why"><${Blockers} of=${waits} /></div>`;
}

function usually(eta) {
  if (!eta) return null;
  if (eta.expected_end) return html`≈ <${When} at=${eta.expected_end} />${eta.usual_seconds ? `, usually takes ${duration(eta.usual_seconds)}` : ""}`;
  return eta.usual_seconds ? `after ${duration(eta.usual_seconds)} to ${duration(eta.slow_seconds)}` : null;
}

const path = (keys) => (keys.length > 12 ? `${keys.slice(0, 6).join(" → ")} → … ${keys.length - 9} more … → ${keys.slice(-3).join(" → ")}` : keys.join(" → "));

function Tab({ tab, job, tasks, structure, folded, explain, step, select, machine }) {
  const shown = useMemo(() => machine.shown(tasks), [tasks, machine.states]);
  if (WITH_STEP.has(tab) && machine.isOn && !shown.length) return html`<${Nothing}>No step had been made by then.<//>`;
  switch (tab) {
    case "graph": { const Graph = fetched(ofGraph, "Graph"); return Graph && html`<${Graph} tasks=${shown} structure=${`${structure} ${shown.length}`} given=${folded} selected=${step} select=${select} />`; }
    case "table": return html`<${StepsTable} tasks=${shown} step=${step} select=${select} />`;
    case "attempts": return html`<${Attempts} job=${job} />`;
    case "events": return html`<${Events} job=${job} />`;
    case "artifacts": return html`<${Artifacts} job=${job} />`;
    case "details": return html`<${Details} job=${job} tasks=${tasks} />`;
    default: return html`<${Gantt} job=${job} tasks=${shown} explain=${explain} step=${step} select=${select} at=${machine.at} />`;
  }
}

function Details({ job, tasks }) {
  const results = Object.fromEntries(tasks.filter((task) => task.results).slice(0, 200).map((task) => [task.task_key, task.results]));
  return html`<div class="grid"><section class="panel half"><h2>Options</h2><${Json} value=${job.options} /></section>
    <section class="panel half"><h2>What brought it about</h2><${Json} value=${job.trigger ?? "a plain submission"} /></section>
    <section class="panel"><h2>Results</h2><${Json} value=${results} /></section></div>`;
}
