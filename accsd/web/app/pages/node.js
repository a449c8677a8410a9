// One machine: what it does, what happened to it, and what one can ask of it.
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { duration } from "../time.js";
import { Action } from "../ui/sheet.js";
import { At, Facts, JobLink, Nothing, State, Table, Trouble, When } from "../ui/parts.js";

export function Node({ subject: name }) {
  const at = `/nodes/${encodeURIComponent(name)}`, live = { topics: [`node:${name}`] };
  const { data: node, problem, again } = useLoaded(at, live);
  const tasks = useLoaded(`${at}/tasks`, live);
  const history = useLoaded(`${at}/history`, live);
  if (!node) return html`<${Trouble} problem=${problem} again=${again} />`;
  const action = (verb, title, effect) => ({ title: `${title} ${name}`, path: `${at}/${verb}`, scope: "operate", verb: title, cli: `accsd nodes ${verb} ${name}`, effect, previews: verb !== "sleep" });
  return html`<div class="head"><h1>${name}</h1><${State} of=${node.drained_at ? "drained" : node.state} word=${node.state} /><span class="grow"></span>
      <${Action} label="Wake" action=${action("wake", "Wake", () => ["It is called by its own method, now."])} />
      <${Action} label="Sleep" action=${action("sleep", "Put to sleep", () => ["It ends what it has, and sleeps."])} />
      ${node.drained_at ? html`<${Action} label="Resume" action=${action("resume", "Resume", () => ["It takes tasks again."])} />` : html`<${Action} label="Drain" action=${action("drain", "Drain", () => ["It ends what it has, and takes nothing new."])} />`}</div>
    <${Trouble} problem=${problem} again=${again} />
    <${Facts} of=${[["since", html`<${When} at=${node.state_since} />`], ["because", node.why], ["last seen", html`<${When} at=${node.last_seen} />`], ["woken by", node.wake_method], ["usually there after", node.latency_seconds && duration(node.latency_seconds)],
      ["slots", Object.entries(node.slots).map(([service, n]) => `${service} ${n}`).join(", ")], ["labels", Object.entries(node.labels).map(([key, value]) => `${key}=${value}`).join(", ")], ["drained because", node.drained_because]]} />
    <p></p><div class="grid"><section class="panel"><h2>Works on</h2>${tasks.data && (tasks.data.items.length ? html`<${Table} label="Tasks" rows=${tasks.data.items} keyOf=${(task) => task.id ?? task.task_id} columns=${[
      ["Job", (task) => html`<${JobLink} id=${task.job_id} />`], ["Step", (task) => task.task_key], ["Service", (task) => task.service], ["State", (task) => html`<${State} of=${task.status} />`]]} />` : html`<${Nothing}>Nothing.<//>`)}</section>
      <section class="panel"><h2>What happened to it</h2>${history.data && html`<${Table} label="History" rows=${history.data.items} keyOf=${(each) => each.ts + each.state} columns=${[
      ["At", (each) => html`<${At} at=${each.ts} />`], ["State", (each) => each.state], ["What happened", (each) => each.message]]} />`}</section></div>`;
}
