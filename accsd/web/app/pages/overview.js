// What needs a person, what runs, what waits and why, who is awake.
import { call, place } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { useLoaded, useSettled } from "../load.js";
import { duration, now } from "../time.js";
import { JobLink, Meter, Nothing, State, Table, Trouble, When } from "../ui/parts.js";
import { Checklist, useFirstRun } from "./checklist.js";
import { AHEAD, FleetPart, NextPart } from "./overview_fleet.js";
import { LastDay } from "./overview_day.js";

const MOST_RUNNING = 12; // tasks that are shown one by one
const concerns = (kind) => kind === "job" || kind === "node" || kind === "dead" || kind === "counts";

export function Overview() {
  const { data, problem, again } = useLoaded("/overview", { topics: ["overview"], concerns });
  const open = useLoaded("/jobs?status=queued,running&limit=50", { topics: ["overview"], concerns });
  const forecast = useLoaded(`/fleet/forecast?hours=${AHEAD}`, { topics: ["overview"], concerns: (kind) => kind === "node" || kind === "job", gather: 1_000 });
  const isSettled = useSettled(open, forecast);
  const [isFirst, setFirst] = useState(null); // as it was at the first look: the list stays until somebody has seen it whole
  const first = useFirstRun(data, isFirst);
  useEffect(() => { if (isFirst === null && first) setFirst(first.isFirst); }, [first]);
  if (!data || isFirst === null || !isSettled) return html`<h1 class="visually-hidden">Overview</h1><${Trouble} problem=${problem} again=${again} />`;
  if (isFirst && first) return html`<${Checklist} of=${first} again=${again} leave=${() => setFirst(false)} />`;
  return html`<h1 class="visually-hidden">Overview</h1><${Trouble} problem=${problem} again=${again} /><div class="grid">
    <section class="panel half"><h2>Needs you</h2><${Attention} of=${data} /></section>
    <section class="panel half"><${FleetPart} nodes=${data.nodes} forecast=${forecast.data} /></section>
    <section class="panel"><h2>Running now <span class="note">${data.running.length}</span></h2><${Running} of=${data.running} /></section>
    <section class="panel half"><h2>Waiting</h2><${Waiting} of=${open.data?.items.filter((job) => !data.running.some((task) => task.job_id === job.id))} /></section>
    <section class="panel half"><h2>Next hour</h2><${NextPart} forecast=${forecast.data} /></section>
    <section class="panel"><h2>Last 24 hours</h2><div class="room-day"><${LastDay} /></div></section>
  </div>`;
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

const Running = ({ of }) => (of.length ? html`<${Table} label="Running now" rows=${of.slice(0, MOST_RUNNING)} keyOf=${(task) => task.task_id ?? task.job_id} columns=${[
  ["Job", (task) => html`<${JobLink} id=${task.job_id} />`],
  ["Step", (task) => task.task_key],
  ["Service", (task) => task.service],
  ["State", (task) => html`<${State} of=${task.status ?? "running"} />`],
  ["Machine", (task) => html`<a href=${place(`/fleet/${encodeURIComponent(task.node)}`)}>${task.node}</a>`],
  ["Progress", (task) => html`<${Meter} part=${task.progress ?? 0} label=${`progress of ${task.task_key}`} />`],
  ["For", (task) => duration((now() - Date.parse(task.since)) / 1000), "right"],
]} />${of.length > MOST_RUNNING && html`<p class="small"><a href=${place("/jobs?q=status:running")}>and ${of.length - MOST_RUNNING} more</a></p>`}` : html`<${Nothing}>Nothing runs. <code>accsd submit WORKFLOW</code> gives it something to do.<//>`);

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
