// One workflow: its graph, its steps and who could run them, its versions and what changed, and the form that submits it.
import { call, place, query } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { changed, differences } from "../diff.js";
import { useLoaded } from "../load.js";
import { ask, go, params } from "../router.js";
import { duration } from "../time.js";
import { Changes } from "../ui/changes.js";
import { At, Json, JobLink, Nothing, State, Table, Tabs, Trouble, When } from "../ui/parts.js";
import { Rows } from "../ui/rows.js";
import { Action } from "../ui/sheet.js";
import { Graph } from "./job_graph.js";
import { Submit } from "./submit.js";
import { Rehearsal } from "./workflow_rehearsal.js";
import { Runs } from "./workflows.js";

const TABS = [["graph", "Graph"], ["steps", "Steps"], ["versions", "Versions"], ["runs", "Runs"], ["rehearsal", "Rehearsal"], ["definition", "Definition"]];
const defined = () => "defined";

export function Workflow({ subject: name }) {
  const { tab = "graph", version, step } = params.value;
  const root = `/workflows/${encodeURIComponent(name)}`;
  const { data, problem, again } = useLoaded(version ? `${root}/versions/${version}` : root, { polls: false });
  const versions = useLoaded(`${root}/versions`);
  const runs = useLoaded(`/jobs${query({ workflow: name, limit: 30 })}`, { topics: ["jobs"], concerns: (kind, said) => kind === "job" && said.workflow === name, gather: 1_000 });
  if (!data) return html`<h1 class="visually-hidden">${name}</h1><${Trouble} problem=${problem} again=${again} />`;
  const newest = versions.data?.items[0];
  const pause = (word, verb) => ({ title: `${verb} ${name}`, path: `${root}/${word}`, scope: "operate", verb, cli: `accsd workflows ${word} ${name}`, effect: () => [word === "pause" ? "What runs goes on; nothing of it begins until it is resumed." : "Its tasks begin again."], done: () => { versions.again(); return `${name}: ${word === "pause" ? "paused" : "resumed"}`; } });
  return html`<div class="head"><h1>${data.title ?? data.name}</h1>${data.title && html`<span class="mono">${data.name}</span>`}
      <label>Version <select value=${data.version} onChange=${(event) => ask({ version: Number(event.target.value) === newest?.version ? null : event.target.value })}>${(versions.data?.items ?? [data]).map((each) => html`<option key=${each.version} value=${each.version}>${each.version}${each.is_active ? "" : ", not active"}</option>`)}</select></label>
      ${newest?.paused_at && html`<${State} of="paused" word="paused" />`}<span class="grow"></span><${Runs} of=${runs.data?.items ?? []} />
      ${newest?.paused_at ? html`<${Action} label="Resume" action=${pause("resume", "Resume")} />` : html`<${Action} label="Pause" action=${pause("pause", "Pause")} />`}</div>
    <${Trouble} problem=${problem} again=${again} />
    <div class="workflow"><div class="main-part"><${Tabs} of=${TABS} now=${tab} href=${(to) => place(`${root}${query({ tab: to, version, step: to === "graph" || to === "steps" ? step : null })}`)} />
      <${Part} tab=${tab} workflow=${data} versions=${versions.data?.items ?? []} runs=${runs.data?.items ?? []} step=${step} /></div>
    <aside class="panel" aria-label="Submit"><h2>Submit</h2><${Submit} key=${data.id} workflow=${data} last=${runs.data?.items[0]} /></aside></div>`;
}

function Part({ tab, workflow, versions, runs, step }) {
  const select = (key) => ask({ step: key === step ? null : key });
  switch (tab) {
    case "steps": return html`<${Steps} workflow=${workflow} step=${step} select=${select} />`;
    case "versions": return html`<${Versions} workflow=${workflow} versions=${versions} />`;
    case "runs": return html`<${LastRuns} runs=${runs} name=${workflow.name} />`;
    case "rehearsal": return html`<${Rehearsal} key=${workflow.id} workflow=${workflow} />`;
    case "definition": return html`<${Json} value=${definitionOf(workflow)} />`;
    default: return html`<${Graph} tasks=${workflow.steps.map(asTask)} structure=${workflow.id} selected=${step} select=${select} stateOf=${defined} label="The steps and what they wait for; the tab Steps has them as a table" />
      <${OneStep} of=${workflow.steps.find((each) => each.key === step)} />`;
  }
}

const asTask = (step) => ({ id: step.key, task_key: step.key, service: step.service ?? step.uses ?? "", depends_on: step.depends_on ?? [], status: "defined" });
const definitionOf = ({ name, version, title, steps, params: given, options_schema, notify, files }) => ({ name, version, title, params: given, options_schema, notify, files, steps });

function OneStep({ of }) {
  if (!of) return null;
  return html`<section class="panel" aria-label=${`Step ${of.key}`}><h2>${of.key}</h2><${Json} value=${of} /></section>`;
}

const LIMITS = ["timeout", "timeout_sec", "max_attempts", "concurrency_key", "cache", "delay", "for_each", "if"];

function Steps({ workflow, step, select }) {
  const figures = useLoaded(`/workflows/${encodeURIComponent(workflow.name)}/steps${query({ version: workflow.version })}`);
  const services = useLoaded("/services");
  const by = new Map((figures.data?.items ?? []).map((each) => [each.key, each]));
  const offered = new Map((services.data?.items ?? []).map((each) => [each.service, each]));
  return html`<${Rows} label="Steps" rows=${workflow.steps} keyOf=${(each) => each.key} opens=${(each) => select(each.key)} selected=${step} columns=${[
      ["Step", (each) => html`<button class="link" onClick=${() => select(each.key)}>${each.key}</button>`, "key"], ["Service", (each) => each.service ?? each.uses ?? ""],
      ["After", (each) => (each.depends_on ?? []).slice(0, 4).join(", ") + ((each.depends_on ?? []).length > 4 ? ` and ${each.depends_on.length - 4} more` : ""), "cut"],
      ["Needs", (each) => Object.entries(each.requires ?? {}).map(([key, value]) => `${key}=${JSON.stringify(value)}`).join(" "), "wide-only"],
      ["Limits", (each) => LIMITS.filter((key) => each[key] !== undefined && each[key] !== null).map((key) => `${key} ${typeof each[key] === "string" ? each[key] : JSON.stringify(each[key])}`).join(", "), "cut wide-only"],
      ["Could run it now", (each) => (services.data ? offered.get(each.service)?.nodes.join(", ") || html`<span class="error-ink">no machine offers it</span>` : "")],
      ["Usually", (each) => (by.get(each.key)?.n ? html`<span title=${`of ${by.get(each.key).n} runs; waits ${duration(by.get(each.key).wait_p50_seconds)}`}>${duration(by.get(each.key).p50_seconds)} – ${duration(by.get(each.key).p95_seconds)}</span>` : ""), "right"],
      ["Health", (each) => (by.get(each.key)?.fails_everywhere ? html`<span class="error-ink">${by.get(each.key).fails_everywhere}</span>` : ""), "cut"],
    ]} /><${OneStep} of=${workflow.steps.find((each) => each.key === step)} />`;
}

function LastRuns({ runs, name }) {
  if (!runs.length) return html`<${Nothing}>It has not run.<//>`;
  return html`<${Table} label="Runs" rows=${runs} keyOf=${(job) => job.id} opens=${(job) => go(`/jobs/${job.id}`)} columns=${[
    ["Job", (job) => html`<${JobLink} id=${job.id} />`], ["Status", (job) => html`<${State} of=${job.status} />`], ["Version", (job) => job.version, "right"], ["By", (job) => job.created_by ?? ""], ["Error", (job) => job.error_message ?? "", "cut"],
    ["Took", (job) => duration(job.took_seconds), "right"], ["Submitted", (job) => html`<${When} at=${job.created_at} />`, "right"]]} /><p><a href=${place(`/jobs${query({ q: `workflow:"${name}"` })}`)}>All of them</a></p>`;
}

function Versions({ workflow, versions }) {
  const { against } = params.value;
  const older = versions.filter((each) => each.version !== workflow.version);
  const other = Number(against) || older.find((each) => each.version < workflow.version)?.version;
  return html`<${Table} label="Versions" rows=${versions} keyOf=${(each) => each.version} selected=${workflow.version} columns=${[
      ["Version", (each) => html`<a href=${place(`/workflows/${encodeURIComponent(workflow.name)}${query({ tab: "versions", version: each.version })}`)}>${each.version}</a>`, "right narrow"], ["Steps", (each) => each.steps, "right narrow"], ["", (each) => (each.is_active ? "active" : html`<span class="muted">not active</span>`)],
      ["Changed", (each) => html`<${At} at=${each.updated_at} />`], ["By", (each) => each.created_by ?? ""]]} />
    ${older.length > 0 && html`<div class="graph-tools"><label>What version ${workflow.version} changed since <select value=${other} onChange=${(event) => ask({ against: event.target.value })}>${older.map((each) => html`<option key=${each.version} value=${each.version}>${each.version}</option>`)}</select></label></div>`}
    ${other && html`<${Difference} key=${`${workflow.version} ${other}`} workflow=${workflow} other=${other} />`}`;
}

function Difference({ workflow, other }) {
  const [before, set] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => { call(`/workflows/${encodeURIComponent(workflow.name)}/versions/${other}`).then(set, setProblem); }, []);
  if (!before) return html`<${Trouble} problem=${problem} />`;
  const head = ({ name, title, params: given, options_schema, notify, files }) => ({ name, title, params: given, options_schema, notify, files });
  const changes = differences(head(before), head(workflow)), steps = changed(before.steps, workflow.steps, (step) => step.key);
  if (!changes.length && !steps.length) return html`<${Nothing}>The two are the same.<//>`;
  const words = { before: `version ${other}`, after: `version ${workflow.version}` };
  return html`${changes.length > 0 && html`<section class="panel"><h2>The workflow</h2><${Changes} of=${changes} label="Changes of the workflow" ...${words} /></section>`}
    ${steps.map((each) => html`<section class="panel difference" key=${each.key}><h2>Step ${each.key} <span class="note">${each.kind}</span></h2>${each.kind === "changed" ? html`<${Changes} of=${each.changes} label=${`Changes of ${each.key}`} ...${words} />`
      : html`<${Json} value=${(each.kind === "added" ? workflow : before).steps.find((step) => step.key === each.key)} />`}</section>`)}`;
}
