// The steps of a job over its time, in the colours of where the time went. The whole row is the target of a click.
import { html, useState } from "../html.js";
import { shownState } from "../graph/states.js";
import { ask, params } from "../router.js";
import { clock, duration, now } from "../time.js";
import { WORDS } from "../ui/explain.js";
import { State } from "../ui/parts.js";
import { Rows } from "../ui/rows.js";
import { axisOf } from "./job_axis.js";

export function Gantt({ job, tasks, explain, step, select, at }) {
  const [foldsGaps, setFoldsGaps] = useState(true);
  const zoom = (params.value.zoom ?? "").split("-").map(Number);
  const began = Date.parse(job.started_at ?? job.created_at), ended = job.finished_at ? Date.parse(job.finished_at) : Math.max(now(), began + 1);
  const from = zoom.length === 2 && zoom[0] > 0 ? zoom[0] : began, to = zoom.length === 2 && zoom[1] > from ? zoom[1] : ended;
  const pieces = explain?.tasks ?? {};
  const axis = axisOf(from, to, foldsGaps ? Object.values(pieces).flat() : []);
  const bar = (task) => html`<div class="track">${(pieces[task.task_key] ?? []).filter((each) => Date.parse(each.to) > from && Date.parse(each.from) < to).map((each, n) => {
    const left = axis.part(Date.parse(each.from)), right = axis.part(Date.parse(each.to));
    return html`<div key=${n} data-kind=${each.kind} title=${`${WORDS[each.kind] ?? each.kind} ${duration((Date.parse(each.to) - Date.parse(each.from)) / 1000)}${each.subject?.name ? ` (${each.subject.name})` : ""}\n${clock(each.from)} – ${clock(each.to)}`}
      style=${{ left: `${left * 100}%`, width: `${(right - left) * 100}%` }}></div>`;
  })}${at !== null && html`<i class="then" style=${{ left: `${axis.part(at) * 100}%` }}></i>`}</div>`;
  const ticks = html`<div class="ticks" aria-hidden="true">${axis.ticks.map((each, n) => html`<span key=${n} style=${{ left: `${each.part * 100}%` }}>${clock(new Date(each.at).toISOString())}</span>`)}
    ${axis.gaps.map((gap, n) => html`<b key=${`g${n}`} style=${{ left: `${gap.part * 100}%` }} title=${`${duration(gap.seconds)} in which nothing ran`}>⋯</b>`)}</div>`;
  const widen = (part) => {
    const middle = (from + to) / 2, half = ((to - from) * part) / 2;
    ask({ zoom: half * 2 >= ended - began ? null : `${Math.round(Math.max(began, middle - half))}-${Math.round(Math.min(ended, middle + half))}` });
  };
  return html`<div class="gantt"><div class="graph-tools"><button onClick=${() => widen(0.5)} aria-label="Zoom in">+</button><button onClick=${() => widen(2)} disabled=${from <= began && to >= ended} aria-label="Zoom out">−</button>
      <button onClick=${() => ask({ zoom: null })} disabled=${from <= began && to >= ended}>All</button>
      ${(axis.gaps.length > 0 || !foldsGaps) && html`<label class="check"><input type="checkbox" checked=${foldsGaps} onChange=${(event) => setFoldsGaps(event.target.checked)} />Fold long gaps</label>`}</div>
    <${Rows} label="Steps" rows=${tasks} keyOf=${(task) => task.task_key} opens=${(task) => select(task.task_key)} selected=${step} columns=${[
      ["Step", (task) => html`<button class="link" onClick=${() => select(task.task_key)}>${task.task_key}</button>`, "key"],
      ["Status", (task) => html`<${State} of=${shownState(task)} />`],
      ["Machine", (task) => task.node ?? "", "wide-only beside-hides"],
      [ticks, bar, "bar"],
      ["Attempt", (task) => (task.attempt_id > 1 ? task.attempt_id : ""), "right wide-only beside-hides"],
      ["Took", (task) => duration(task.took_seconds), "right"],
    ]} />
    ${explain && !explain.complete && html`<p class="muted small">The first 1,000 steps have their bars; the Graph has them all.</p>`}</div>`;
}
