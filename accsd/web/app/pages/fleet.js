// Every machine: what it did, what it does, and when it will be woken.
import { place, query } from "../api.js";
import { html, useMemo } from "../html.js";
import { useKeys } from "../keys.js";
import { useLoaded, useSettled } from "../load.js";
import { go, params } from "../router.js";
import { hindrance } from "../session.js";
import { duration, now } from "../time.js";
import { Axis } from "../ui/axis.js";
import { Lane, PowerLegend, wakeWords, window_ } from "../ui/lanes.js";
import { LastWake, NodeState, slotsWords, VERBS } from "../ui/machine.js";
import { Nothing, Table, Trouble, When } from "../ui/parts.js";
import { act } from "../ui/sheet.js";

const RANGES = { "24h": [24, 6], "7d": [168, 24], "30d": [720, 48] }; // hours, and hours ahead
const concerns = (kind) => kind === "node";
const to = (node) => `/fleet/${encodeURIComponent(node.name ?? node.node)}`;

export function Fleet() {
  const range = RANGES[params.value.range] ? params.value.range : "24h";
  const [hours, ahead] = RANGES[range];
  const from = useMemo(() => new Date(now() - hours * 3_600_000).toISOString(), [range]);
  const live = { topics: ["overview"], concerns };
  const { data, problem, again } = useLoaded("/nodes", live);
  const timeline = useLoaded(`/fleet/timeline${query({ from })}`, live);
  const energy = useLoaded(`/fleet/energy${query({ from })}`);
  const forecast = useLoaded(`/fleet/forecast?hours=${ahead}`, live);
  const focused = () => data?.items.find((node) => document.activeElement?.closest("tr")?.dataset.key === node.name);
  const key = (verb) => () => { const node = focused(); if (node && !hindrance("operate")) act(VERBS[verb](node)); };
  useKeys({ W: ["wake the machine of the row", key("wake")], S: ["put it to sleep", key("sleep")], D: ["drain it", key("drain")] });
  if (!useSettled({ data, problem }, timeline, energy, forecast)) return html`<h1 class="visually-hidden">Fleet</h1>`;
  return html`<div class="head"><h1>Fleet</h1><span class="muted">${energy.data && shares(energy.data)}</span><span class="grow"></span>
      <a href=${place("/workflows")} title="The tab Rehearsal of a workflow: who would wake, when they would end, what it would cost">What would more jobs do?</a>
      <nav class="choice" aria-label="How far back">${Object.keys(RANGES).map((each) => html`<a key=${each} class="button" href=${place(`/fleet?range=${each}`)} aria-current=${each === range ? "true" : undefined}>${each}</a>`)}</nav></div>
    <${Trouble} problem=${problem ?? timeline.problem} again=${again} />
    ${data && !data.items.length && html`<${Nothing}>No machine is registered. <code>accsd up</code> on a machine makes it one.<//>`}
    ${data?.items.length > 0 && html`<${Machines} nodes=${data.items} timeline=${timeline.data} forecast=${forecast.data} hours=${hours} ahead=${ahead} />`}
    <div class="grid"><section class="panel third"><h2>Will be woken <span class="note">in the next ${ahead} h</span></h2><${Wakes} of=${forecast.data} /></section>
      <section class="panel rest"><h2>Energy <span class="note">${range}</span></h2><${Energy} of=${energy.data} /></section></div>`;
}

function shares(energy) {
  const sum = (key) => energy.nodes.reduce((all, node) => all + node[key], 0);
  const parts = { asleep: sum("asleep_seconds"), busy: sum("busy_seconds"), idle: sum("idle_seconds"), booting: sum("booting_seconds"), away: sum("away_seconds") };
  const whole = Object.values(parts).reduce((a, b) => a + b, 0) || 1;
  return [...Object.entries(parts).filter(([, s]) => s / whole >= 0.005).map(([word, s]) => `${word} ${Math.round((s / whole) * 100)} %`), kwhWords(energy)].filter(Boolean).join(" · ");
}

function kwhWords(energy) {
  if (energy.without_watts.length === energy.nodes.length) return "";
  const money = energy.price_per_kwh === undefined ? "" : ` (≈ ${energy.saved_cost.toFixed(2)} ${energy.currency})`;
  return `used ${energy.kwh.toFixed(1)} kWh, saved ${energy.saved_kwh.toFixed(1)} kWh${money}`;
}

function Machines({ nodes, timeline, forecast, hours, ahead }) {
  const shown = timeline && window_(timeline, hours, ahead);
  const lanes = Object.fromEntries((timeline?.lanes ?? []).map((lane) => [lane.node, lane]));
  const lane = (node) => shown && lanes[node.name] && html`<${Lane} lane=${lanes[node.name]} shown=${shown} wakes=${(forecast?.wakes ?? []).filter((wake) => wake.node === node.name)} />`;
  return html`<section class="panel fleet"><${Table} label="Machines" rows=${nodes} keyOf=${(node) => node.name} opens=${(node) => go(to(node))} columns=${[
    ["Machine", (node) => html`<a href=${place(to(node))}>${node.name}</a>`],
    [shown ? html`<span class="visually-hidden">Its time</span><${Axis} ...${shown} />` : "Time", lane, "lane-cell"],
    ["State", (node) => html`<${NodeState} node=${node} />`],
    ["For", (node) => node.state_since && html`<span class="muted">${duration((now() - Date.parse(node.state_since)) / 1000)}</span>`, "nowrap"],
    ["Because", (node) => html`<span title=${node.why}>${node.why}</span>`, "cut because"],
    ["Slots", (node) => html`<span title=${slotsWords(node)}>${slotsWords(node)}</span>`, "wide-only cut slots"],
    ["Last wake", (node) => html`<${LastWake} node=${node} />`, "wide-only nowrap"],
  ]} /><${Due} of=${forecast} shown=${shown} /><${PowerLegend} /></section>`;
}

/** The times at which schedules start something, below the lanes that they wake. */
function Due({ of, shown }) {
  if (!of?.firings.length || !shown) return null;
  return html`<p class="muted small">Due in this time: ${of.firings.slice(0, 8).map((each) => html`<span class="due" key=${each.schedule + each.due_at}><a href=${place(`/schedules/${encodeURIComponent(each.schedule)}`)}>${each.schedule}</a> <${When} at=${each.due_at} /></span>`)}${of.firings.length > 8 && `and ${of.firings.length - 8} more`}</p>`;
}

function Wakes({ of }) {
  if (!of) return null;
  return html`${of.wakes.length ? html`<ul class="plain-list">${of.wakes.map((wake) => html`<li key=${wake.node + wake.at}><span aria-hidden="true">☼</span> ${wakeWords(wake)}</li>`)}</ul>` : html`<${Nothing}>No machine will be woken.<//>`}
    ${of.unmet.length > 0 && html`<p class="muted small">No machine that could be woken would help with: ${of.unmet.slice(0, 5).map((each) => `${each.tasks} × ${each.service}${each.schedule ? ` (${each.schedule})` : ""}`).join(", ")}.</p>`}`;
}

function Energy({ of }) {
  if (!of) return null;
  const hours = (key) => (node) => (node[key] ? duration(node[key]) : "");
  const kwh = (value) => (value === null ? html`<span class="muted" title="Nobody has said what it draws: node.watts in its settings">–</span>` : value.toFixed(2));
  return html`<${Table} label="Energy" rows=${of.nodes} keyOf=${(node) => node.node} columns=${[
    ["Machine", (node) => html`<a href=${place(to(node))}>${node.node}</a>`], ["Asleep", hours("asleep_seconds"), "right"], ["Booting", hours("booting_seconds"), "right"], ["Idle", hours("idle_seconds"), "right"], ["Busy", hours("busy_seconds"), "right"],
    ["Away", hours("away_seconds"), "right wide-only"], ["kWh", (node) => kwh(node.kwh), "right"], ["Saved", (node) => kwh(node.saved_kwh), "right"],
  ]} /><p class="muted small">${of.rule}.${of.without_watts.length ? ` Not counted, because its watts are not known: ${of.without_watts.join(", ")}.` : ""}</p>`;
}
