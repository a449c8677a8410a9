// A lane for each machine: when it slept, was woken, was idle or busy; right of now, what is planned.
import { place, query } from "../api.js";
import { html } from "../html.js";
import { go } from "../router.js";
import { brief, clock, duration, now } from "../time.js";
import { Axis } from "./axis.js";

const HOUR = 3_600_000;
const LATEST = 20; // pieces of a lane
export const POWER_WORDS = { asleep: "asleep", waking: "being woken", booting: "booting", idle: "awake, idle", busy: "awake, busy", away: "away", drained: "drained" };

/** The stretch of time that lanes show: `hours` until now, and `ahead` of what is planned. */
export function window_(timeline, hours, ahead = 0) {
  const at = Math.max(now(), Date.parse(timeline.as_of ?? timeline.to));
  const from = at - hours * HOUR, to = at + ahead * HOUR;
  return { from, at, to, part: (ms) => `${((Math.max(from, Math.min(to, ms)) - from) / (to - from)) * 100}%` };
}

const because = (wake) => (wake.schedule ? `for schedule ${wake.schedule}` : wake.job_id ? `for job ${wake.job_id.slice(-8)}` : wake.because ?? "");
export const wakeWords = (wake) => `${wake.node} is called at ${brief(wake.at)}${wake.expected_at ? `, is there at about ${brief(wake.expected_at)}` : ""}${wake.due_at ? `, ready for ${brief(wake.due_at)}` : ""} ${because(wake)}`.trim();

/** What can be seen of the pieces of a lane: those that are narrower than `least` become one of them with their neighbours,
 * of the state that most of its time has. A fleet of 50 machines may have 10,000 pieces in a day. */
export function seen(pieces, least) {
  const found = [];
  let narrow = [];
  const join = () => { if (narrow.length) found.push(narrow.length === 1 ? narrow[0] : together(narrow)); narrow = []; };
  for (const piece of pieces) {
    if (piece.ends - piece.begins >= least) join();
    narrow.push(piece);
    if (piece.ends - narrow[0].begins >= least) join();
  }
  join();
  return found;
}

function together(pieces) {
  const times = {};
  for (const each of pieces) times[each.state] = (times[each.state] ?? 0) + each.ends - each.begins;
  const [state] = Object.entries(times).sort((a, b) => b[1] - a[1])[0];
  const [first, last] = [pieces[0], pieces.at(-1)];
  return { ...first, to: last.to, ends: last.ends, state, because: `${pieces.length} changes` };
}

export function Lane({ lane, shown, wakes = [] }) {
  const { from, at, to, part } = shown;
  const last = lane.intervals.at(-1);
  const all = lane.intervals.map((each) => ({ ...each, begins: Math.max(from, Date.parse(each.from)), ends: each === last ? Math.max(at, Date.parse(each.to)) : Date.parse(each.to) })).filter((each) => each.ends > from);
  // A lane has hardly more pixels than 800. What happened last is drawn as it is: somebody may be watching it.
  const pieces = [...seen(all.slice(0, -LATEST), (to - from) / 800), ...all.slice(-LATEST)];
  const open = (piece) => piece.state === "busy" && go(`/jobs${query({ q: `node:"${lane.node}" since:${new Date(piece.begins - 6 * HOUR).toISOString().slice(0, 19)}Z` })}`);
  return html`<div class="lane-bar" role="img" aria-label=${`${lane.node}: ${laneWords(lane, from)}${wakes.length ? `. ${wakes.map(wakeWords).join("; ")}` : ""}`}>
    ${pieces.map((piece) => html`<div key=${piece.from} class=${piece.state === "busy" ? "leads" : ""} data-kind=${piece.state} onClick=${() => open(piece)} style=${{ left: part(piece.begins), width: `calc(${part(piece.ends)} - ${part(piece.begins)})` }}
      title=${`${POWER_WORDS[piece.state] ?? piece.state} ${duration((piece.ends - piece.begins) / 1000)}\n${clock(piece.from)} – ${piece === pieces.at(-1) ? "now" : clock(piece.to)}${piece.because ? `\n${piece.because}` : ""}`}></div>`)}
    ${wakes.filter((wake) => Date.parse(wake.at) < to).map((wake) => {
      const begins = Math.max(at, Date.parse(wake.at)), ends = Math.max(begins, Date.parse(wake.expected_at ?? wake.at));
      return html`<div key=${wake.at} class="planned" style=${{ left: part(begins), width: `max(14px, calc(${part(ends)} - ${part(begins)}))` }} title=${wakeWords(wake)}>☼</div>`;
    })}
    <i class="now" style=${{ left: part(at) }}></i></div>`;
}

/** Lanes alone, with their names: for the overview. Until the timeline is there, `names` have empty ones: nothing below moves then. */
export function Lanes({ timeline, names, forecast, hours, ahead = hours / 6 }) {
  const lanes = timeline?.lanes ?? names.map((node) => ({ node, intervals: [] }));
  if (!lanes.length) return html`<p class="nothing">No machine is registered. <code>accsd up</code> on a machine makes it one.</p>`;
  const shown = window_(timeline ?? { as_of: new Date(now()).toISOString() }, hours, ahead);
  return html`<div class="lanes" aria-label=${`The last ${hours} hours of each machine`} role="group">${lanes.map((lane) => html`<div class="lane" key=${lane.node}>
    <a href=${place(`/fleet/${encodeURIComponent(lane.node)}`)}>${lane.node}</a>
    <${Lane} lane=${lane} shown=${shown} wakes=${(forecast?.wakes ?? []).filter((wake) => wake.node === lane.node)} /></div>`)}
    <div class="lane"><span></span><${Axis} from=${shown.from} to=${shown.to} part=${shown.part} /></div></div>`;
}

export function laneWords(lane, from) {
  const sums = {};
  for (const each of lane.intervals) {
    const s = (Date.parse(each.to) - Math.max(from, Date.parse(each.from))) / 1000;
    if (s > 0) sums[each.state] = (sums[each.state] ?? 0) + s;
  }
  return Object.entries(sums).map(([state, s]) => `${POWER_WORDS[state] ?? state} ${duration(s)}`).join(", ") || "nothing is known";
}

export const PowerLegend = () => html`<div class="legend" aria-hidden="true">${["asleep", "waking", "booting", "idle", "busy", "away"].map(
  (kind) => html`<span key=${kind}><i data-kind=${kind}></i>${POWER_WORDS[kind]}</span>`)}<span class="planned-word">☼ planned</span></div>`;
