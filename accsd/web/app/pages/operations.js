// Operations: one action on many, how far each is and what was answered.
import { place } from "../api.js";
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { go } from "../router.js";
import { Action } from "../ui/sheet.js";
import { At, Facts, Json, Meter, Nothing, State, Table, Trouble, When } from "../ui/parts.js";

const STATES = { running: "running", done: "done", stopped: "cancelled", failed: "error" };
const isOnJobs = (operation) => !["redrive", "dismiss"].includes(operation.action);

export function Operations() {
  const { data, problem, again } = useLoaded("/operations?limit=100");
  return html`<div class="head"><h1>Operations</h1><span class="muted">one action on many, the newest first</span></div><${Trouble} problem=${problem} again=${again} />
    ${data && (data.items.length ? html`<${Table} label="Operations" rows=${data.items} keyOf=${(each) => each.id} opens=${(each) => go(`/operations/${each.id}`)} columns=${[
      ["Operation", (each) => html`<a class="mono" href=${place(`/operations/${each.id}`)}>${each.id.slice(-8)}</a>`], ["Action", (each) => each.action.replace("_", " ")], ["State", (each) => html`<${State} of=${STATES[each.state]} word=${each.state} />`],
      ["Accepted", (each) => each.answers.accepted.toLocaleString(), "right"], ["Repeated", (each) => each.answers.repeated.toLocaleString(), "right wide-only"], ["Refused", (each) => each.answers.refused.toLocaleString(), "right"],
      ["By", (each) => each.by], ["Reason", (each) => each.reason ?? "", "cut"], ["Begun", (each) => html`<${When} at=${each.created_at} />`, "right"],
    ]} />` : html`<${Nothing}>Nothing was done to many at once yet. Select jobs in the list of jobs to begin.<//>`)}`;
}

export function Operation({ subject: id }) {
  const { data, problem, again } = useLoaded(`/operations/${id}`, { topics: [`operation:${id}`], concerns: (kind, said) => kind === "operation" && said.id === id });
  if (!data) return html`<h1 class="visually-hidden">Operation</h1><${Trouble} problem=${problem} again=${again} />`;
  return html`<div class="head"><h1>${data.action.replace("_", " ")}</h1><span class="mono muted">${id.slice(-8)}</span><${State} of=${STATES[data.state]} word=${data.state} /><span class="grow"></span>
      ${data.state === "running" && html`<${Action} label="Stop" kind="danger" action=${{ title: "Stop the operation", path: `/operations/${id}/stop`, scope: "operate", verb: "Stop", danger: true, previews: false, effect: () => ["It ends after the chunk that it is in; what is done stays done."], done: () => "The operation stops" }} />`}</div>
    <${Trouble} problem=${problem} again=${again} /><${OperationFacts} of=${data} />
    <section class="panel"><h2>What it is asked to do</h2><${Json} value=${{ target: data.target, ...data.arguments }} /></section>`;
}

/** How far it is, what was answered, and the first refusals one by one. */
export function OperationFacts({ of }) {
  const { accepted, repeated, refused } = of.answers, answered = accepted + repeated + refused;
  return html`<div class="operation">
    <div role="status"><strong>${of.state === "running" ? `${answered.toLocaleString()}${of.expected ? ` of ${of.expected.toLocaleString()}` : ""} so far` : `${of.state}: ${accepted.toLocaleString()} accepted${repeated ? `, ${repeated.toLocaleString()} were so already` : ""}${refused ? `, ${refused.toLocaleString()} refused` : ""}`}</strong></div>
    ${of.state === "running" && html`<${Meter} part=${of.expected ? answered / of.expected : 0} label="progress of the operation" />`}
    ${of.error && html`<div class="hint failed">${of.error}</div>`}
    <${Facts} of=${[["by", of.by], ["reason", of.reason], ["begun", html`<${At} at=${of.created_at} />`], ["ended", of.ended_at && html`<${At} at=${of.ended_at} />`], ["looked at", of.looked_at?.toLocaleString()],
      ...Object.entries(of.reasons ?? {}).map(([reason, n]) => [`refused, ${reason}`, n.toLocaleString()])]} />
    ${of.refusals?.length > 0 && html`<h2>Refusals${of.refusals.length < refused ? `, the first ${of.refusals.length}` : ""}</h2><div class="refusals" tabindex="0" role="region" aria-label="Refusals"><${Table} label="Refusals" rows=${of.refusals} keyOf=${(each) => each.id} columns=${[
      [isOnJobs(of) ? "Job" : "Dead letter", (each) => (isOnJobs(of) ? html`<a class="mono" href=${place(`/jobs/${each.id}`)}>${each.id.slice(-8)}</a>` : each.id)], ["Refused because", (each) => each.reason]]} /></div>`}</div>`;
}
