// The steps as a table with everything that is known of them: what the graph and the bars show, in words.
import { html, useState } from "../html.js";
import { ORDER, shownState } from "../graph/states.js";
import { ago, duration } from "../time.js";
import { State } from "../ui/parts.js";
import { Rows } from "../ui/rows.js";

const SORTS = { order: null, status: (a, b) => ORDER.indexOf(shownState(a)) - ORDER.indexOf(shownState(b)), took: (a, b) => (b.took_seconds ?? -1) - (a.took_seconds ?? -1) };

export function StepsTable({ tasks, step, select }) {
  const [sort, setSort] = useState("order");
  const [only, setOnly] = useState("");
  const wanted = tasks.filter((task) => !only || task.task_key.includes(only) || task.service.includes(only) || shownState(task) === only || task.node === only);
  const rows = SORTS[sort] ? [...wanted].sort(SORTS[sort]) : wanted;
  return html`<div class="graph-tools"><input type="search" aria-label="Only steps with" placeholder="step, service, state, machine" value=${only} onInput=${(event) => setOnly(event.target.value)} />
      <label>Sort by <select value=${sort} onChange=${(event) => setSort(event.target.value)}><option value="order">the workflow</option><option value="status">state, failures first</option><option value="took">time, longest first</option></select></label>
      <span class="muted small">${rows.length.toLocaleString()} of ${tasks.length.toLocaleString()}</span></div>
    <${Rows} label="Steps" rows=${rows} keyOf=${(task) => task.task_key} opens=${(task) => select(task.task_key)} selected=${step} columns=${[
      ["Step", (task) => html`<button class="link" onClick=${() => select(task.task_key)}>${task.task_key}</button>`, "key"],
      ["Status", (task) => html`<${State} of=${shownState(task)} />`],
      ["Service", (task) => task.service],
      ["Machine", (task) => task.node ?? ""],
      ["After", (task) => (task.depends_on.length > 3 ? `${task.depends_on.slice(0, 3).join(", ")} and ${task.depends_on.length - 3} more` : task.depends_on.join(", ")), "cut"],
      ["Attempts", (task) => `${task.attempt_id}${task.lost ? `, ${task.lost} lost` : ""}`, "right"],
      ["Began", (task) => ago(task.started_at ?? task.claimed_at), "right"],
      ["Took", (task) => duration(task.took_seconds), "right"],
      ["Error", (task) => task.error_message ?? task.error_code ?? "", "cut"],
    ]} />`;
}
