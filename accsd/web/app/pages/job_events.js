// Everything that happened in a job, by kind, level and step; what an event carries is shown on demand.
import { html, useState } from "../html.js";
import { useLoaded } from "../load.js";
import { ask, params } from "../router.js";
import { sharedJob } from "../session.js";
import { duration } from "../time.js";
import { At, Json, Nothing, Trouble } from "../ui/parts.js";
import { Rows } from "../ui/rows.js";

const LEVELS = { error: "error", warn: "backoff" };

export function Events({ job, step }) {
  const chatter = params.value.chatter === "1" && !sharedJob();
  const { data, problem, again } = useLoaded(`/jobs/${job.id}/events?limit=${chatter ? 5000 : 2000}${chatter ? "&chatter=true" : ""}`, { topics: [`job:${job.id}`], concerns: (kind) => kind === "event", gather: 1000 });
  const [opened, open] = useState(null);
  if (!data) return html`<${Trouble} problem=${problem} again=${again} />`;
  const { type = "", level = "" } = params.value;
  const kinds = [...new Set(data.items.map((each) => each.type))].sort();
  const rows = data.items.filter((each) => (!type || each.type === type) && (!level || each.level === level) && (!step || each.task_key === step)).reverse();
  const one = opened !== null && rows.find((each) => each.id === opened);
  return html`<div class="graph-tools">
      <label>Type <select value=${type} onChange=${(event) => ask({ type: event.target.value })}><option value="">all</option>${kinds.map((each) => html`<option key=${each}>${each}</option>`)}</select></label>
      <label>Level <select value=${level} onChange=${(event) => ask({ level: event.target.value })}><option value="">all</option>${["info", "warn", "error"].map((each) => html`<option key=${each}>${each}</option>`)}</select></label>
      ${!sharedJob() && html`<label class="check"><input type="checkbox" checked=${chatter} onChange=${(event) => ask({ chatter: event.target.checked ? "1" : null })} />with log lines and progress</label>`}
      <span class="muted small">${rows.length.toLocaleString()} events, newest first</span></div>
    ${data.missing?.length > 0 && html`<p class="hint waits">Some of its history could not be read: ${data.missing.join("; ")}</p>`}
    ${rows.length ? html`<${Rows} label="Events" rows=${rows} keyOf=${(each) => each.id} opens=${(each) => open(opened === each.id ? null : each.id)} selected=${opened ?? undefined} columns=${[
      ["After", (each) => duration(each.since_seconds), "right"], ...(step ? [] : [["Step", (each) => each.task_key ?? ""]]), ["From", (each) => each.source, "wide-only"], ["Type", (each) => each.type],
      ["What happened", (each) => html`<button class="link plain-text" onClick=${() => open(opened === each.id ? null : each.id)} aria-expanded=${opened === each.id}><span class="state" data-state=${LEVELS[each.level] ?? ""}>${each.message ?? each.type}</span></button>`, "cut"],
      ["At", (each) => html`<${At} at=${each.ts} />`, "wide-only"],
    ]} />` : html`<${Nothing}>Nothing of this kind has happened.<//>`}
    ${one && html`<section class="panel" aria-label="The event"><h2>Event ${one.id} <span class="note">${one.type} from ${one.source}</span></h2><p>${one.message}</p><${Json} value=${one.data} /></section>`}`;
}
