// The machines and the next hour, on the overview.
import { place } from "../api.js";
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { brief } from "../time.js";
import { Lanes, wakeWords } from "../ui/lanes.js";
import { Nothing, When } from "../ui/parts.js";

const concerns = (kind) => kind === "node";
export const AHEAD = 2; // hours of what is planned
const GLYPHS = { asleep: "☾", awake: "●", waking: "☼", booting: "◐", failed: "!", away: "!", drained: "‖" };

function counted(nodes) {
  const by = Object.entries(nodes.reduce((all, node) => ({ ...all, [node.state]: (all[node.state] ?? 0) + 1 }), {}));
  return by.map(([state, n]) => html`<span class="state" data-state=${state} key=${state}>${GLYPHS[state] ?? "·"} ${n} ${state}</span> `);
}

export function FleetPart({ nodes, forecast }) {
  const timeline = useLoaded("/fleet/timeline", { topics: ["overview"], concerns });
  const energy = useLoaded("/fleet/energy");
  const saved = energy.data && energy.data.without_watts.length < energy.data.nodes.length ? `saved ${energy.data.saved_kwh.toFixed(1)} kWh in 24 h` : "";
  return html`<h2><a href=${place("/fleet")}>Fleet</a> <span class="note">${counted(nodes)}</span></h2>
    <${Lanes} timeline=${timeline.data} names=${nodes.map((node) => node.name)} forecast=${forecast} hours=${12} ahead=${AHEAD} />
    <div class="small muted room-1">${saved}</div>`;
}

/** What is due within an hour, and which machines are woken for it, in the order of time. */
export function NextPart({ forecast }) {
  if (!forecast) return null;
  const until = Date.parse(forecast.as_of) + 3_600_000;
  const lines = [
    ...forecast.wakes.map((each) => ({ at: each.at, key: `w${each.node}${each.at}`, what: html`<span aria-hidden="true">☼</span> <a href=${place(`/fleet/${encodeURIComponent(each.node)}`)}>${each.node}</a> <span class="muted">${wakeWords(each).replace(`${each.node} `, "")}</span>` })),
    ...forecast.firings.map((each) => ({ at: each.due_at, key: `f${each.schedule}${each.due_at}`, what: html`<a href=${place(`/schedules/${encodeURIComponent(each.schedule)}`)}>${each.schedule}</a> <span class="muted">starts ${each.workflow}</span>` })),
  ].filter((each) => Date.parse(each.at) <= until).sort((a, b) => a.at.localeCompare(b.at));
  if (!lines.length) return html`<${Nothing}>Nothing is due, and no machine will be woken.<//>`;
  return html`<ol class="next">${lines.slice(0, 12).map((each) => html`<li key=${each.key}><span class="clock">${brief(each.at)}</span><span>${each.what}</span><span class="muted small"><${When} at=${each.at} /></span></li>`)}</ol>
    ${lines.length > 12 && html`<p class="muted small">and ${lines.length - 12} more</p>`}`;
}
