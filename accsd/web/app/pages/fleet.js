// Every machine: what it did, what it does, and when it will be woken.
import { place } from "../api.js";
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { go } from "../router.js";
import { exact } from "../time.js";
import { Lanes } from "../ui/lanes.js";
import { Facts, Nothing, State, Table, Trouble, When } from "../ui/parts.js";

const concerns = (kind) => kind === "node";

export function Fleet() {
  const { data, problem, again } = useLoaded("/nodes", { topics: ["overview"], concerns });
  const timeline = useLoaded("/fleet/timeline", { topics: ["overview"], concerns });
  const forecast = useLoaded("/fleet/forecast?hours=24");
  const energy = useLoaded("/fleet/energy");
  return html`<div class="head"><h1>Fleet</h1></div><${Trouble} problem=${problem} again=${again} /><div class="grid">
    <section class="panel"><h2>The last 24 hours</h2>${timeline.data && html`<${Lanes} timeline=${timeline.data} forecast=${forecast.data} hours=${24} />`}</section>
    <section class="panel"><h2>Machines</h2>${data && (data.items.length ? html`<${Table} label="Machines" rows=${data.items} keyOf=${(node) => node.name} opens=${(node) => go(`/fleet/${encodeURIComponent(node.name)}`)} columns=${[
      ["Machine", (node) => html`<a href=${place(`/fleet/${encodeURIComponent(node.name)}`)}>${node.name}</a>`],
      ["State", (node) => html`<${State} of=${node.drained_at ? "drained" : node.state} word=${node.state} />`],
      ["Since", (node) => html`<${When} at=${node.state_since} />`],
      ["Works on", (node) => Object.entries(node.live).map(([service, n]) => `${service} ${n}`).join(", ")],
      ["Slots", (node) => Object.entries(node.slots).map(([service, n]) => `${service} ${n}`).join(", "), "cut"],
      ["Because", (node) => node.why],
    ]} />` : html`<${Nothing}>No machine is registered. <code>accsd up</code> on a machine makes it one.<//>`)}</section>
    <section class="panel half"><h2>Will be woken</h2>${forecast.data && (forecast.data.wakes.length ? html`<ul>${forecast.data.wakes.map((wake) => html`<li key=${wake.node + (wake.at ?? wake.due_at)}>${exact(wake.at ?? wake.due_at)} ${wake.node}${wake.because ? `: ${wake.because}` : ""}</li>`)}</ul>` : html`<${Nothing}>No machine will be woken in the next 24 hours.<//>`)}</section>
    <section class="panel half"><h2>Energy, 24 hours</h2>${energy.data && html`<${Facts} of=${[["used", `${energy.data.kwh.toFixed(2)} kWh`], ["saved", `${energy.data.saved_kwh.toFixed(2)} kWh`]]} />
      <p class="muted small">${energy.data.rule}${energy.data.without_watts.length ? `. Not counted, because its watts are not known: ${energy.data.without_watts.join(", ")}` : ""}</p>`}</section></div>`;
}
