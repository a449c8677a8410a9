// A lane for each machine: when it slept, was woken, was idle or busy; right of now, what is planned.
import { place } from "../api.js";
import { html } from "../html.js";
import { clock, duration, now } from "../time.js";

const AHEAD = 0.15; // of the width, for what is planned

export function Lanes({ timeline, forecast, hours }) {
  const to = Date.parse(timeline.to), from = Math.max(Date.parse(timeline.from), to - hours * 3600_000);
  const ahead = ((to - from) * AHEAD) / (1 - AHEAD);
  const whole = to + ahead - from;
  const part = (ms) => `${(Math.max(0, ms) / whole) * 100}%`;
  if (!timeline.lanes.length) return html`<p class="nothing">No machine is registered. <code>accsd up</code> on a machine makes it one.</p>`;
  return html`<div class="lanes" role="table" aria-label=${`The last ${hours} hours of each machine`}>${timeline.lanes.map((lane) => html`<div class="lane" role="row" key=${lane.node}>
    <a role="rowheader" href=${place(`/fleet/${encodeURIComponent(lane.node)}`)}>${lane.node}</a>
    <div class="explain" role="cell" aria-label=${words(lane, from)}>
      ${lane.intervals.filter((each) => Date.parse(each.to) > from).map((each) => {
        const begins = Math.max(from, Date.parse(each.from));
        return html`<div key=${each.from} data-kind=${each.state} style=${{ position: "absolute", left: part(begins - from), width: part(Date.parse(each.to) - begins) }}
          title=${`${each.state} ${clock(each.from)}–${clock(each.to)}${each.because ? `: ${each.because}` : ""}`}></div>`;
      })}
      ${(forecast?.wakes ?? []).filter((wake) => wake.node === lane.node && Date.parse(wake.at ?? wake.due_at) < to + ahead).map((wake) => html`<div key=${wake.at ?? wake.due_at} class="planned"
          style=${{ position: "absolute", left: part(Date.parse(wake.at ?? wake.due_at) - from) }} title=${`will be woken at ${clock(wake.at ?? wake.due_at)}`}>☼</div>`)}
      <div class="now" style=${{ position: "absolute", left: part(Math.min(now(), to) - from) }}></div>
    </div></div>`)}</div>`;
}

function words(lane, from) {
  const sums = {};
  for (const each of lane.intervals) {
    const s = (Date.parse(each.to) - Math.max(from, Date.parse(each.from))) / 1000;
    if (s > 0) sums[each.state] = (sums[each.state] ?? 0) + s;
  }
  return Object.entries(sums).map(([state, s]) => `${state} ${duration(s)}`).join(", ") || "nothing is known";
}
