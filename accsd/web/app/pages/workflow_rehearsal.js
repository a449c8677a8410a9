// What so many jobs of a workflow would do to the fleet as it is now, before anybody submits them.
import { call, place } from "../api.js";
import { html, useState } from "../html.js";
import { useLoaded } from "../load.js";
import { ask, params } from "../router.js";
import { brief, dayShort, duration } from "../time.js";
import { At, Copy, JobLink, Nothing, Table, Trouble } from "../ui/parts.js";
import { asCurl } from "../ui/sheet.js";

const PATH = "/fleet/rehearsal";
const WAKES_SHOWN = 12;

export function Rehearsal({ workflow }) {
  const { count = "10" } = params.value;
  const steps = useLoaded(`/workflows/${encodeURIComponent(workflow.name)}/steps?version=${workflow.version}`, { polls: false });
  const [more, give] = useState({ at: "", priority: "" });
  const [durations, time] = useState({});
  const [state, set] = useState({ busy: false, found: null, problem: null });
  const unknown = (steps.data?.items ?? []).filter((each) => !each.n);
  const known = Object.fromEntries(unknown.filter((each) => Number(durations[each.key]) > 0).map((each) => [each.key, Number(durations[each.key])]));
  const body = { workflow: workflow.name, version: workflow.version, count: Number(count) || 1, ...(more.at ? { due_at: new Date(more.at).toISOString() } : {}), ...(more.priority === "" ? {} : { priority: Number(more.priority) }), ...(unknown.length ? { durations: known } : {}) };
  const rehearse = (event) => {
    event.preventDefault();
    set({ ...state, busy: true });
    call(PATH, { method: "POST", body }).then((found) => set({ busy: false, found, problem: null }), (problem) => set({ busy: false, found: null, problem }));
  };
  const curl = asCurl("POST", PATH, body);
  const put = (name) => (event) => give({ ...more, [name]: event.target.value });
  return html`<section class="panel" aria-label="Rehearsal"><form onSubmit=${rehearse}>
      <div class="row"><label>Jobs<input type="number" min="1" max="1000" required value=${count} onInput=${(event) => ask({ count: event.target.value })} /></label>
        <label>Begin (local time), empty: now<input type="datetime-local" value=${more.at} onInput=${put("at")} /></label>
        <label>Priority<input type="number" step="1" placeholder="0" value=${more.priority} onInput=${put("priority")} /></label></div>
      ${unknown.length > 0 && html`<fieldset><legend>How many seconds a step takes that never ran</legend><div class="row">${unknown.map((each) => html`<label key=${each.key}>${each.key}<input type="number" min="1" step="any" required value=${durations[each.key] ?? ""} onInput=${(event) => time({ ...durations, [each.key]: event.target.value })} /></label>`)}</div></fieldset>`}
      <p><button class="primary" disabled=${state.busy || !steps.data}>${state.busy ? "Rehearsing …" : "Rehearse"}</button> <span class="muted small">Nothing is submitted.</span></p></form>
    <${Trouble} problem=${state.problem ?? steps.problem} />
    <div class="rehearsed" aria-live="polite">${state.found && html`<${Found} of=${state.found} />`}</div>
    <div class="also small"><span class="muted">Also as</span><div><code>${curl}</code><${Copy} text=${curl} /></div></div></section>`;
}

const seconds = (of, moment) => (Date.parse(moment) - Date.parse(of.as_of)) / 1000;
const at = (of, moment) => `${seconds(of, moment) > 72_000 ? `${dayShort(moment)} ` : ""}${brief(moment)}`;
const several = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

function headline(of) {
  const jobs = of.count === 1 ? "The job" : `The ${of.count} jobs`;
  if (!of.starts_at) return `${jobs} would not begin.`;
  if (!of.ends_at) return `${jobs} would begin at ${at(of, of.starts_at)}, and not all would end.`;
  const slow = of.slow_ends_at && seconds(of, of.slow_ends_at) > 1.1 * seconds(of, of.ends_at) ? `, at ${at(of, of.slow_ends_at)} if the steps are slow` : "";
  return `${jobs} would begin at ${at(of, of.starts_at)} and end at ${at(of, of.ends_at)}, in ${duration(seconds(of, of.ends_at))}${slow}.`;
}

function energy(of) {
  if (of.without_watts.length === of.nodes.length) return "";
  const money = of.cost === undefined ? "" : ` (≈ ${of.cost.toFixed(2)} ${of.currency})`;
  return `${of.kwh.toFixed(2)} kWh more${money}${of.without_watts.length ? `, without ${of.without_watts.join(", ")}, whose watts nobody has said` : ""}.`;
}

function Found({ of }) {
  const used = of.nodes.filter((node) => node.tasks || Math.abs(node.awake_seconds) >= 1);
  const fresh = new Set(of.wakes.filter((wake) => !wake.also_without).map((wake) => wake.node));
  const doubts = [
    ...of.unmet.map((each) => `No machine could run ${several(each.tasks, "task")} of ${each.service}${Object.entries(each.requires).map(([key, value]) => ` ${key}=${value}`).join("")}${each.node ? ` on ${each.node}` : ""}.`),
    ...of.paused.map((each) => `The ${each.kind} ${each.name} is paused; this is as if it were not.`),
    ...of.left_out.map((each) => `${each.node} takes no part: ${each.because}.`),
    ...(of.held ? [`${several(of.held, "task")} of what is paused ${of.held === 1 ? "is" : "are"} left out.`] : []),
    ...of.assumed.map((each) => `Assumed: ${each}.`),
  ];
  return html`<p><strong>${headline(of)}</strong> ${fresh.size ? `${several(fresh.size, "machine")} would be woken for ${of.count === 1 ? "it" : "them"}: ${[...fresh].join(", ")}.` : "No machine would be woken that is not woken anyway."} ${energy(of)}</p>
    ${of.delayed.count > 0 && html`<p>${several(of.delayed.count, "job")} that ${of.delayed.count === 1 ? "is" : "are"} in motion would end later.</p><${Table} label="Jobs that would end later" rows=${of.delayed.jobs} keyOf=${(each) => each.job_id} columns=${[
      ["Job", (each) => html`<${JobLink} id=${each.job_id} />`], ["Later by", (each) => duration(each.by_seconds), "right"]]} />`}
    ${doubts.length > 0 && html`<ul class="effect">${doubts.map((line) => html`<li key=${line}>${line}</li>`)}</ul>`}
    ${used.length > 0 && html`<${Table} label="What each machine would do for it" rows=${used} keyOf=${(node) => node.node} columns=${[
      ["Machine", (node) => html`<a href=${place(`/fleet/${encodeURIComponent(node.node)}`)}>${node.node}</a>`], ["Tasks", (node) => node.tasks, "right"], ["Wakes", (node) => node.wakes || "", "right"],
      ["Awake longer by", (node) => (node.awake_seconds >= 1 ? duration(node.awake_seconds) : ""), "right"], ["kWh", (node) => (node.kwh === null ? html`<span class="muted">–</span>` : node.kwh.toFixed(2)), "right"]]} />`}
    ${of.wakes.length ? html`<h2>Wakes</h2><ul class="plain-list">${of.wakes.slice(0, WAKES_SHOWN).map((wake) => html`<li key=${wake.node + wake.at}><span aria-hidden="true">☼</span> ${wake.node} is called at ${at(of, wake.at)} and there at ${at(of, wake.ready_at)}${wake.also_without ? html` <span class="muted">(it is woken anyway)</span>` : ""}</li>`)}</ul>${of.wakes.length > WAKES_SHOWN && html`<p class="muted small">and ${of.wakes.length - WAKES_SHOWN} more</p>`}` : html`<${Nothing}>Nothing is woken.<//>`}
    <p class="muted small">The planner's own code, on virtual time, with the machines and ${several(of.in_motion, "task")} in motion as of <${At} at=${of.as_of} />. Nothing fails in it, and nobody else submits anything.</p>`;
}
