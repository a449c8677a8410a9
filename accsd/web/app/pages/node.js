// One machine: what it does, what happened to it, and what one can ask of it.
import { place, query } from "../api.js";
import { html, useMemo, useState } from "../html.js";
import { useKeys } from "../keys.js";
import { useLoaded, useSettled } from "../load.js";
import { ask, params } from "../router.js";
import { duration, now } from "../time.js";
import { Axis } from "../ui/axis.js";
import { Cycle, CycleButton } from "../ui/cycle.js";
import { Lane, laneWords, PowerLegend, POWER_WORDS, wakeWords, window_ } from "../ui/lanes.js";
import { NodeState, stateOf, VERBS } from "../ui/machine.js";
import { At, Facts, JobLink, Meter, Nothing, State, Table, Trouble, When } from "../ui/parts.js";
import { act, Action } from "../ui/sheet.js";
import { Absent } from "./missing.js";

const RANGES = { "24h": [24, 6], "7d": [168, 24], "30d": [720, 48] };

export function Node({ subject: name }) {
  const at = `/nodes/${encodeURIComponent(name)}`, live = { topics: [`node:${name}`] };
  const { data: node, problem, again } = useLoaded(at, live);
  const tasks = useLoaded(`${at}/tasks`, live);
  const history = useLoaded(`${at}/history?limit=300`, live);
  const jobs = useLoaded(`/jobs${query({ q: `node:"${name.replaceAll('"', "")}"`, limit: 20 })}`, live);
  const forecast = useLoaded("/fleet/forecast?hours=24", live);
  const wakes = (forecast.data?.wakes ?? []).filter((wake) => wake.node === name);
  useKeys(node ? { W: ["wake it", () => act(VERBS.wake(node))], S: ["put it to sleep", () => act(VERBS.sleep(node))], D: ["drain it", () => act(VERBS.drain(node))] } : {});
  const isSettled = useSettled({ data: node, problem }, tasks, jobs, forecast);
  if (!node || !isSettled) return html`<${Absent} problem=${problem} again=${again} name=${`The machine ${name}`} list=${["/fleet", "All machines"]} />`;
  return html`<div class="head"><h1>${name}</h1><${NodeState} node=${node} /><span class="grow"></span><${Verbs} node=${node} /></div>
    <${Trouble} problem=${problem} again=${again} />
    <p class="sentence">${sentence(node)}</p>
    ${wakes.map((wake) => html`<p class="muted" key=${wake.at}>☼ ${wakeWords(wake)}</p>`)}
    <div class="grid"><${Power} node=${node} wakes=${wakes} live=${live} />
      <section class="panel half"><h2>Works on <span class="note">${tasks.data?.items.length || ""}</span></h2><${Works} of=${tasks.data?.items} /></section>
      <section class="panel half"><h2>Services</h2><${Offers} node=${node} /></section>
      <section class="panel half"><h2>Waking it</h2><${Waking} node=${node} history=${history.data?.items} /></section>
      <section class="panel half"><h2>What it is</h2><${Registered} node=${node} /></section>
      <section class="panel half"><h2>Its last jobs</h2><${Jobs} of=${jobs.data?.items} /></section>
      <section class="panel half"><${History} of=${history.data?.items} /></section></div><${Cycle} />`;
}

function sentence(node) {
  const since = node.state_since ? ` for ${duration((now() - Date.parse(node.state_since)) / 1000)}` : "";
  const words = { idle: "Awake, with nothing to do,", busy: "At work", away: "Nobody has heard of it", failed: "It does not come" };
  const state = stateOf(node);
  const said = words[state] ?? `${state[0].toUpperCase()}${state.slice(1)}`;
  return `${said}${since}${node.why && node.why !== "it is at work" ? `: ${node.why}` : ""}.`;
}

const Verbs = ({ node }) => html`${node.state !== "awake" && html`<${Action} label="Wake" kind="primary" action=${VERBS.wake(node)} />`}
  ${node.state === "awake" && html`<${Action} label="Sleep" action=${VERBS.sleep(node)} />`}
  ${node.drained_at ? html`<${Action} label="Resume" kind="primary" action=${VERBS.resume(node)} />` : html`<${Action} label="Drain" action=${VERBS.drain(node)} />`}
  ${!node.drained_at && Object.keys(node.quarantines).length > 0 && html`<${Action} label="Out of quarantine" action=${VERBS.resume(node)} />`}
  <${CycleButton} node=${node} />
  ${node.state === "away" && html`<${Action} label="Forget" kind="danger" action=${VERBS.forget(node)} />`}`;

function Power({ node, wakes, live }) {
  const range = RANGES[params.value.range] ? params.value.range : "24h";
  const [hours, ahead] = RANGES[range];
  const from = useMemo(() => new Date(now() - hours * 3_600_000).toISOString(), [range]);
  const { data } = useLoaded(`/fleet/timeline${query({ from })}`, live);
  const [isTable, setTable] = useState(false);
  const lane = data ? data.lanes.find((each) => each.node === node.name) : { node: node.name, intervals: [] };
  const shown = window_(data ?? { as_of: new Date(now()).toISOString() }, hours, ahead);
  return html`<section class="panel"><h2>Its time <span class="grow"></span>
      <nav class="choice" aria-label="How far back">${Object.keys(RANGES).map((each) => html`<button key=${each} class="plain small" aria-pressed=${each === range} onClick=${() => ask({ range: each })}>${each}</button>`)}
        <button class="plain small" aria-pressed=${isTable} onClick=${() => setTable(!isTable)}>As a table</button></nav></h2>
    ${lane && html`<${Lane} lane=${lane} shown=${shown} wakes=${wakes} /><${Axis} ...${shown} /><${PowerLegend} /><div class="small muted room-2">${data && laneWords(lane, shown.from)}</div>`}
    ${lane && isTable && html`<${Table} label="What it did" rows=${lane.intervals.slice(-100).reverse()} keyOf=${(each) => each.from} columns=${[
      ["From", (each) => html`<${At} at=${each.from} />`], ["To", (each) => html`<${At} at=${each.to} />`], ["State", (each) => html`<${State} of=${each.state} word=${POWER_WORDS[each.state]} />`],
      ["For", (each) => duration((Date.parse(each.to) - Date.parse(each.from)) / 1000), "right"], ["Because", (each) => each.because ?? "", "cut"]]} />`}</section>`;
}

const Works = ({ of }) => of && (of.length ? html`<${Table} label="Tasks" rows=${of} keyOf=${(task) => task.task_id} columns=${[
  ["Job", (task) => html`<${JobLink} id=${task.job_id} />`], ["Step", (task) => task.task_key], ["State", (task) => html`<${State} of=${task.status} />`],
  ["Progress", (task) => html`<${Meter} part=${task.progress} label=${`progress of ${task.task_key}`} />`], ["For", (task) => duration((now() - Date.parse(task.since)) / 1000), "right"],
]} />` : html`<${Nothing}>It has no task now.<//>`);

function Offers({ node }) {
  const services = Object.keys(node.slots);
  if (!services.length) return html`<${Nothing}>It offers no service: its compose file has none with a label <code>accs.mode</code>.<//>`;
  const ill = (service) => (node.quarantines[service] ? html`<${State} of="quarantined" word=${`in quarantine: ${node.quarantines[service].reason}`} />` : node.obstacles[service] ? html`<${State} of="failed" word=${node.obstacles[service]} />` : "");
  return html`<${Table} label="Services" rows=${services} keyOf=${(each) => each} columns=${[
    ["Service", (each) => html`<a href=${place(`/services/${encodeURIComponent(each)}`)}>${each}</a>`], ["Running", (each) => `${node.live[each] ?? 0} of ${node.slots[each]}`, "right"], ["What keeps it", ill, "cut"]]} />`;
}

function Waking({ node, history }) {
  const came = (history ?? []).filter((each) => each.data?.latency_ms);
  const byMethod = Object.entries(Object.groupBy(came, (each) => each.data.method ?? "?"));
  const longest = Math.max(1, ...came.map((each) => each.data.latency_ms));
  return html`<${Facts} of=${[["method", node.wake_method ?? "none: it can't be woken"], ["usually there after", node.latency_seconds && duration(node.latency_seconds)], ["last time", node.last_latency_seconds && duration(node.last_latency_seconds)],
      ["called", node.tried_at && html`<${When} at=${node.tried_at} />`], ["calls without an answer", node.tries || null], ["error", node.tried_error]]} />
    ${came.length > 1 && html`<svg class="spark" viewBox=${`0 0 ${came.length * 8} 32`} role="img" aria-label=${`Seconds from call to there: ${came.map((each) => Math.round(each.data.latency_ms / 1000)).join(", ")}`}>
      ${came.map((each, n) => html`<rect key=${each.ts} x=${n * 8 + 1} width="6" y=${32 - Math.max(2, (each.data.latency_ms / longest) * 30)} height=${Math.max(2, (each.data.latency_ms / longest) * 30)}><title>${duration(each.data.latency_ms / 1000)}</title></rect>`)}</svg>`}
    ${byMethod.map(([method, all]) => html`<p class="muted small" key=${method}>${method} brought it ${all.length} time${all.length > 1 ? "s" : ""}, after ${duration(all.reduce((sum, each) => sum + each.data.latency_ms, 0) / all.length / 1000)} on average</p>`)}`;
}

const Registered = ({ node }) => html`<${Facts} of=${[
  ["last seen", html`<${When} at=${node.last_seen} />`], ["labels", Object.entries(node.labels).map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ")],
  ["networks", node.networks.join(", ")], ["MAC", node.mac], ["provider", node.provider_ref], ["script", node.script], ["watts", node.watts && Object.entries(node.watts).map(([use, watts]) => `${use} ${watts}`).join(", ")],
  ["drained by", node.drained_by], ["drained because", node.drained_because]]} />`;

const Jobs = ({ of }) => of && (of.length ? html`<${Table} label="Its last jobs" rows=${of} keyOf=${(job) => job.id} columns=${[
  ["Job", (job) => html`<${JobLink} id=${job.id} />`], ["Workflow", (job) => job.workflow, "cut"], ["Status", (job) => html`<${State} of=${job.status} />`], ["Submitted", (job) => html`<${When} at=${job.created_at} />`, "right"]]} />` : html`<${Nothing}>No job has run here lately.<//>`);

function History({ of }) {
  const { happened = "" } = params.value;
  const states = [...new Set((of ?? []).map((each) => each.state))];
  const rows = (of ?? []).filter((each) => !happened || each.state === happened).reverse();
  return html`<h2>What happened to it <span class="grow"></span><label><span class="visually-hidden">Only</span><select class="quiet small" value=${happened} onChange=${(event) => ask({ happened: event.target.value })}>
      <option value="">everything</option>${states.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label></h2>
    ${of && (rows.length ? html`<div class="tall"><${Table} label="History" rows=${rows} keyOf=${(each) => each.ts + each.message} columns=${[
      ["At", (each) => html`<${At} at=${each.ts} />`, "nowrap"], ["State", (each) => each.state], ["What happened", (each) => html`<span title=${each.message}>${each.message}</span>`, "cut"]]} /></div>` : html`<${Nothing}>Nothing yet.<//>`)}`;
}
