// The workflows, and how the last runs of each went.
import { place } from "../api.js";
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { go } from "../router.js";
import { duration } from "../time.js";
import { Nothing, State, Trouble, When } from "../ui/parts.js";
import { Rows } from "../ui/rows.js";

const LOOKED_AT = 300; // of the newest jobs
const SHOWN = 30;

export function Workflows() {
  const { data, problem, again } = useLoaded("/workflows");
  const jobs = useLoaded(`/jobs?limit=${LOOKED_AT}`, { topics: ["jobs"], concerns: (kind) => kind === "job", gather: 2_000 });
  const runs = Map.groupBy ? Map.groupBy(jobs.data?.items ?? [], (job) => job.workflow) : new Map();
  const href = (each) => `/workflows/${encodeURIComponent(each.name)}`;
  return html`<div class="head"><h1>Workflows</h1></div><${Trouble} problem=${problem} again=${again} />
    ${data && (data.items.length ? html`<${Rows} label="Workflows" rows=${data.items} keyOf=${(each) => each.id} opens=${(each) => go(href(each))} columns=${[
      ["Workflow", (each) => html`<a href=${place(href(each))}>${each.name}</a>${each.paused_at ? html` <${State} of="paused" />` : ""}${each.is_active ? "" : html` <span class="muted">not active</span>`}`],
      ["Title", (each) => each.title ?? "", "cut wide-only"],
      ["Last runs", (each) => html`<${Runs} of=${runs.get(each.name) ?? []} />`],
      ["Done", (each) => rate(runs.get(each.name) ?? []), "right"],
      ["Usually", (each) => duration(middle((runs.get(each.name) ?? []).filter((job) => job.status === "done").map((job) => job.took_seconds))), "right wide-only"],
      ["Version", (each) => each.version, "right"], ["Steps", (each) => each.steps.toLocaleString(), "right wide-only"],
      ["Changed", (each) => html`<${When} at=${each.updated_at} />`, "right wide-only"], ["By", (each) => each.created_by ?? "", "wide-only"],
    ]} /><p class="muted small">Runs are those among the newest ${LOOKED_AT} jobs.</p>` : html`<${Nothing}>There is no workflow yet. <code>accsd workflows apply FILE</code> writes one.<//>`)}`;
}

const rate = (jobs) => { const ended = jobs.filter((job) => job.finished_at); return ended.length ? `${Math.round((ended.filter((job) => job.status === "done").length / ended.length) * 100)} %` : ""; };
function middle(values) { const sorted = values.filter((each) => each !== null).sort((a, b) => a - b); return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null; }

/** A bar for each run, the newest on the right: as high as it took, in the colour of how it ended. */
export function Runs({ of }) {
  const shown = of.slice(0, SHOWN).reverse();
  if (!shown.length) return html`<span class="muted small">none of late</span>`;
  const longest = Math.max(...shown.map((job) => job.took_seconds ?? 0), 0.001);
  const words = Object.entries(shown.reduce((all, job) => ({ ...all, [job.status]: (all[job.status] ?? 0) + 1 }), {})).map(([state, n]) => `${n} ${state}`).join(", ");
  return html`<span class="runs" role="img" aria-label=${`The last ${shown.length} runs: ${words}`}>${shown.map((job) => html`<i key=${job.id} data-run=${job.status} title=${`${job.id.slice(-8)} ${job.status}, ${duration(job.took_seconds)}`} style=${{ height: `${4 + 14 * ((job.took_seconds ?? 0) / longest)}px` }}></i>`)}</span>`;
}
