// What needs a person, what runs, what waits and why, who is awake.
import { call, place } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { useLoaded } from "../load.js";
import { clock, duration, now } from "../time.js";
import { JobLink, Meter, Nothing, State, Table, Trouble, When } from "../ui/parts.js";
import { Lanes } from "../ui/lanes.js";

const concerns = (kind) => kind === "job" || kind === "node" || kind === "dead" || kind === "counts";

export function Overview() {
  const { data, problem, again } = useLoaded("/overview", { topics: ["overview"], concerns });
  const open = useLoaded("/jobs?status=queued,running&limit=50", { topics: ["overview"], concerns });
  const timeline = useLoaded("/fleet/timeline");
  const forecast = useLoaded("/fleet/forecast?hours=1");
  if (!data) return html`<${Trouble} problem=${problem} again=${again} />`;
  return html`<h1 class="visually-hidden">Overview</h1><${Trouble} problem=${problem} again=${again} /><div class="grid">
    <section class="panel half"><h2>Needs you</h2><${Attention} of=${data} /></section>
    <section class="panel half"><h2>Fleet <span class="note">${fleetWords(data.nodes)}</span></h2>
      ${timeline.data ? html`<${Lanes} timeline=${timeline.data} forecast=${forecast.data} hours=${6} />` : null}</section>
    <section class="panel"><h2>Running now <span class="note">${data.running.length}</span></h2><${Running} of=${data.running} /></section>
    <section class="panel half"><h2>Waiting</h2><${Waiting} of=${open.data?.items.filter((job) => !data.running.some((task) => task.job_id === job.id))} /></section>
    <section class="panel half"><h2>Next hour</h2><${Next} of=${forecast.data} /></section>
  </div>`;
}

function fleetWords(nodes) {
  const counted = Object.entries(nodes.reduce((all, node) => ({ ...all, [node.state]: (all[node.state] ?? 0) + 1 }), {}));
  return `${nodes.length} machine${nodes.length === 1 ? "" : "s"}${counted.length ? ": " : ""}${counted.map(([state, n]) => `${n} ${state}`).join(", ")}`;
}

function Attention({ of }) {
  const lines = [
    ...of.attention.map((text) => ["!", text, "/system"]),
    ...(of.counts.failed ? [["✕", `${of.counts.failed} dead letter${of.counts.failed === 1 ? "" : "s"}: ${of.failures.slice(0, 3).map((each) => `${each.service} ${each.error_code}`).join(", ")}`, "/dead"]] : []),
    ...of.services.filter((each) => each.paused_at).map((each) => ["‖", `service ${each.service} is paused${each.paused_by ? ` by ${each.paused_by}` : ""}`, "/services"]),
    ...of.services.filter((each) => each.claimable && !each.nodes.length).map((each) => ["!", `no machine offers the service ${each.service}, and ${each.claimable} task${each.claimable === 1 ? " waits" : "s wait"} for it`, "/services"]),
    ...of.nodes.filter((node) => node.state === "failed" || node.state === "away").map((node) => ["!", `${node.name}: ${node.why || node.state}`, `/fleet/${node.name}`]),
    ...(of.counts.hold ? [["‖", `all schedules are held: ${of.counts.hold}`, "/schedules"]] : []),
  ];
  if (!lines.length) return html`<${Nothing}>Nothing needs you.<//>`;
  return lines.map(([glyph, text, to]) => html`<div class="attention" key=${text}><span aria-hidden="true">${glyph}</span><a href=${place(to)}>${text}</a></div>`);
}

const Running = ({ of }) => (of.length ? html`<${Table} label="Running now" rows=${of} keyOf=${(task) => task.task_id ?? task.job_id} columns=${[
  ["Job", (task) => html`<${JobLink} id=${task.job_id} />`],
  ["Step", (task) => task.task_key],
  ["Service", (task) => task.service],
  ["State", (task) => html`<${State} of=${task.status ?? "running"} />`],
  ["Machine", (task) => html`<a href=${place(`/fleet/${encodeURIComponent(task.node)}`)}>${task.node}</a>`],
  ["Progress", (task) => html`<${Meter} part=${task.progress ?? 0} label=${`progress of ${task.task_key}`} />`],
  ["For", (task) => duration((now() - Date.parse(task.since)) / 1000), "right"],
]} />` : html`<${Nothing}>Nothing runs. <code>accsd submit WORKFLOW</code> gives it something to do.<//>`);

/** The first thing that keeps each of them from running, in the words of `accsd why`. */
function Waiting({ of }) {
  const [why, set] = useState({});
  const ids = (of ?? []).slice(0, 20).map((job) => job.id);
  useEffect(() => {
    if (!ids.length) return;
    call("/why", { method: "POST", body: { ids } }).then(
      (found) => set(Object.fromEntries(Object.entries(found.items).map(([id, blockers]) => [id, (blockers.find((each) => each.is_critical) ?? blockers[0])?.text]))),
      () => set({}),
    );
  }, [ids.join()]);
  if (!of) return null;
  if (!of.length) return html`<${Nothing}>Nothing waits.<//>`;
  return html`<${Table} label="Waiting" rows=${of.slice(0, 20)} keyOf=${(job) => job.id} columns=${[
    ["Job", (job) => html`<${JobLink} id=${job.id} />`], ["Workflow", (job) => job.workflow], ["Step", (job) => job.current_task_key],
    ["Because", (job) => html`<span title=${why[job.id]}>${why[job.id]}</span>`, "cut"], ["Since", (job) => html`<${When} at=${job.created_at} />`, "right"],
  ]} />`;
}

function Next({ of }) {
  if (!of) return null;
  const lines = [
    ...of.wakes.map((each) => [each.at ?? each.due_at, `☼ ${each.node} will be woken${each.because ? `: ${each.because}` : ""}`]),
    ...of.firings.map((each) => [each.due_at, `${each.schedule} starts ${each.workflow}`]),
  ].sort();
  if (!lines.length) return html`<${Nothing}>Nothing is due, and no machine will be woken.<//>`;
  return html`<ul>${lines.map(([at, text]) => html`<li key=${at + text}>${clock(at)} ${text}</li>`)}</ul>`;
}
