// What waits for each service, what runs, who offers it; and one of them with what it lacks.
import { place, query } from "../api.js";
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { go } from "../router.js";
import { brief, duration } from "../time.js";
import { JobLink, Facts, Meter, Nothing, State, Table, Trouble, When } from "../ui/parts.js";
import { Action } from "../ui/sheet.js";
import { Absent } from "./missing.js";

const to = (each) => `/services/${encodeURIComponent(each.service)}`;
const live = { topics: ["overview"], concerns: (kind) => kind === "counts" || kind === "node" };
const WAITS = [["claimable", "ready", "capacity"], ["in_backoff", "in backoff", "backoff"], ["held_by_key", "held by a key", "key"], ["paused", "paused", "paused"]];

function verbs(each) {
  const verb = (name, title, effect) => ({ title: `${title} ${each.service}`, path: `${to(each)}/${name}`, scope: "operate", verb: title, cli: `accsd services ${name} ${each.service}`, effect });
  return {
    pause: verb("pause", "Pause", () => [`${each.claimable} waiting tasks stay where they are.`, `${each.live} running ones end as they would.`]),
    resume: verb("resume", "Resume", (preview) => ["Its tasks begin again.", ...(preview.out_of_quarantine ?? []).map((place_) => `It comes out of quarantine on ${place_.node}.`)]),
  };
}
const Verb = ({ of }) => (of.paused_at || of.quarantined_on.length ? html`<${Action} label="Resume" action=${verbs(of).resume} />` : html`<${Action} label="Pause" action=${verbs(of).pause} />`);
const stateOf = (each) => (each.paused_at ? "paused" : !each.nodes.length ? "failed" : each.quarantined_on.length ? "quarantined" : Object.keys(each.obstacles).length ? "backoff" : "ready");
const ServiceState = ({ of }) => html`<span title=${of.state}><${State} of=${stateOf(of)} word=${of.state || "served"} /></span>`;

/** What waits, by what it waits for. */
function Waits({ of }) {
  const parts = WAITS.map(([key, word, kind]) => [of[key], word, kind]).filter(([n]) => n > 0);
  const total = parts.reduce((sum, [n]) => sum + n, 0);
  if (!total) return html`<span class="muted">0</span>`;
  return html`<span class="waits"><span>${total}</span><span class="explain" role="img" aria-label=${parts.map(([n, word]) => `${n} ${word}`).join(", ")}>${parts.map(([n, word, kind]) => html`<div key=${kind} data-kind=${kind} title=${`${n} ${word}`} style=${{ flexGrow: n }}></div>`)}</span></span>`;
}

/** Slots of machines that are awake, and those that would be there if the others were woken. */
function slotsWords(each, nodes) {
  const awake = (nodes ?? []).filter((node) => node.state === "awake").reduce((sum, node) => sum + (node.slots[each.service] ?? 0), 0);
  const asleep = each.slots - awake;
  return nodes ? `${each.live} of ${awake}${asleep > 0 ? `, ${asleep} more asleep` : ""}` : `${each.live} of ${each.slots}`;
}

export function Services() {
  const { data, problem, again } = useLoaded("/services", live);
  const nodes = useLoaded("/nodes", live);
  const keys = useLoaded("/keys", live);
  return html`<div class="head"><h1>Services</h1></div><${Trouble} problem=${problem} again=${again} />
    ${data && (data.items.length ? html`<${Table} label="Services" rows=${data.items} keyOf=${(each) => each.service} opens=${(each) => go(to(each))} columns=${[
      ["Service", (each) => html`<a href=${place(to(each))}>${each.service}</a>`], ["Waiting", (each) => html`<${Waits} of=${each} />`], ["Running", (each) => slotsWords(each, nodes.data?.items), "nowrap"],
      ["Machines", (each) => each.nodes.map((name, n) => html`${n ? ", " : ""}<a key=${name} href=${place(`/fleet/${encodeURIComponent(name)}`)}>${name}</a>`), "cut"], ["State", (each) => html`<${ServiceState} of=${each} />`, "cut"], ["", (each) => html`<${Verb} of=${each} />`, "right"],
    ]} />` : html`<${Nothing}>No service is known. A machine that runs <code>accsd</code> offers the services of its compose file.<//>`)}
    ${keys.data?.items.length > 0 && html`<section class="panel more-space"><h2>Concurrency keys <span class="note">how many tasks of a key run at once</span></h2><${Keys} of=${keys} /></section>`}`;
}

const Keys = ({ of }) => html`<${Table} label="Keys" rows=${of.data.items} keyOf=${(each) => each.key} columns=${[
  ["Key", (each) => each.key], ["Running", (each) => `${each.running} of ${each.max_running}`], ["", (each) => html`<${Meter} part=${each.running / Math.max(1, each.max_running)} label=${`use of ${each.key}`} />`], ["Waiting for it", (each) => each.waiting, "right"],
  ["", (each) => html`<${Action} label="Limit" kind="plain small" action=${{ title: `Limit of ${each.key}`, path: `/keys/${encodeURIComponent(each.key)}`, method: "PUT", scope: "operate", verb: "Set it", body: { limit: each.max_running }, form: LimitForm, begin: each.max_running, bodyOf: (limit) => ({ limit: Number(limit) || 1 }), effect: (_, limit) => [`At most ${limit} run at once; those that run now go on.`], done: () => { of.again(); return "The limit is set."; } }} />`, "right"],
]} />`;
const LimitForm = ({ value, change }) => html`<label>At once<input type="number" min="1" required value=${value} onInput=${(event) => change(event.target.value)} /></label>`;

export function Service({ subject: name }) {
  const { data, problem, again } = useLoaded(`/services/${encodeURIComponent(name)}`, live);
  const nodes = useLoaded("/nodes", live);
  const heads = useLoaded(`/jobs${query({ q: `service:"${name.replaceAll('"', "")}" status:queued,running`, limit: 20 })}`, { topics: ["jobs"], concerns: (kind) => kind === "job" });
  if (!data) return html`<${Absent} problem=${problem} again=${again} name=${`The service ${name}`} list=${["/services", "All services"]} />`;
  const offering = (nodes.data?.items ?? []).filter((node) => data.nodes.includes(node.name));
  return html`<div class="head"><h1>${name}</h1><${ServiceState} of=${data} /><span class="grow"></span><${Verb} of=${data} /></div><${Trouble} problem=${problem} again=${again} />
    <${Facts} of=${[["ready", data.claimable], ["in backoff", data.in_backoff], ["held by a key", data.held_by_key], ["paused", data.paused], ["running", slotsWords(data, nodes.data?.items)], ["paused by", data.paused_by], ["because", data.paused_because]]} />
    <div class="grid"><section class="panel"><h2>The last 24 hours <span class="note">attempts that ended</span></h2><${Ended} of=${data.outcomes} /></section>
      <section class="panel half"><h2>Machines</h2>${offering.length ? html`<${Table} label="Machines" rows=${offering} keyOf=${(node) => node.name} columns=${[["Machine", (node) => html`<a href=${place(`/fleet/${encodeURIComponent(node.name)}`)}>${node.name}</a>`], ["State", (node) => html`<${State} of=${node.state} />`], ["Running", (node) => `${node.live[name] ?? 0} of ${node.slots[name]}`, "right"],
        ["What keeps it", (node) => node.quarantines[name]?.reason ?? node.obstacles[name] ?? "", "cut"]]} />` : html`<${Nothing}>No machine offers it: its tasks wait until one does.<//>`}</section>
      <section class="panel half"><h2>Where it fails <span class="note">what a quarantine is decided by</span></h2>${data.evidence.length ? html`<${Table} label="Failures by machine" rows=${data.evidence} keyOf=${(each) => each.node} columns=${[["Machine", (each) => html`<a href=${place(`/fleet/${encodeURIComponent(each.node)}`)}>${each.node}</a>`], ["Failed", (each) => each.failed, "right"], ["Lost", (each) => each.lost, "right"], ["Passed", (each) => each.passed, "right"],
        ["Share", (each) => `${Math.round((100 * each.failed) / Math.max(1, each.failed + each.passed))} %`, "right"], ["Last", (each) => html`<${When} at=${each.last_failed_at} />`, "nowrap"], ["What was said", (each) => html`<span title=${each.last_message}>${each.last_message}</span>`, "cut"]]} />` : html`<${Nothing}>Nothing has failed lately.<//>`}</section>
      <section class="panel"><h2>Jobs that need it</h2>${heads.data && (heads.data.items.length ? html`<${Table} label="Jobs" rows=${heads.data.items} keyOf=${(job) => job.id} columns=${[["Job", (job) => html`<${JobLink} id=${job.id} />`], ["Workflow", (job) => job.workflow, "cut"], ["Status", (job) => html`<${State} of=${job.status} />`], ["Step", (job) => job.current_task_key], ["Submitted", (job) => html`<${When} at=${job.created_at} />`, "right"]]} />` : html`<${Nothing}>None.<//>`)}</section></div>`;
}

const BARS = 48, STACK = [["done", "done"], ["retried", "backoff"], ["error", "error"], ["lost", "lost"]];

/** A bar for each half hour: done, tried again, failed, lost. */
function Ended({ of }) {
  if (!of.length) return html`<${Nothing}>None.<//>`;
  const sum = (key) => of.reduce((all, each) => all + each[key], 0);
  const most = Math.max(...of.map((each) => each.done + each.retried + each.error + each.lost), 1);
  const first = Date.parse(of.at(-1).minute) - (BARS - 1) * 1_800_000;
  const ended = sum("done") + sum("retried") + sum("error");
  return html`<svg class="bars" viewBox=${`0 0 ${BARS * 10} 60`} preserveAspectRatio="none" role="img" aria-label=${STACK.map(([key]) => `${sum(key)} ${key}`).join(", ")}>${of.map((each) => {
    let y = 60;
    const x = ((Date.parse(each.minute) - first) / 1_800_000) * 10;
    return html`<g key=${each.minute}><title>${`${brief(each.minute)}: ${STACK.filter(([key]) => each[key]).map(([key]) => `${each[key]} ${key}`).join(", ")}`}</title>${STACK.map(([key, state]) => { const height = (each[key] / most) * 58; y -= height; return html`<rect key=${key} data-state=${state} x=${x + 1} width="8" y=${y} height=${height} />`; })}</g>`;
  })}</svg><p class="muted small">${STACK.map(([key]) => `${sum(key)} ${key}`).join(" · ")}${ended ? ` · waited ${duration(sum("wait_s") / ended)} and ran ${duration(sum("run_s") / ended)} on average` : ""}</p>`;
}
