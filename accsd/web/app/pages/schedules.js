// What starts by itself: when next, and what became of the last due times.
import { place } from "../api.js";
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { ask, go, params } from "../router.js";
import { hindrance } from "../session.js";
import { ScheduleState, Strip } from "../ui/ledger.js";
import { Nothing, Table, Trouble, When } from "../ui/parts.js";
import { Action } from "../ui/sheet.js";
import { ScheduleForm } from "./schedule_form.js";

const to = (each) => `/schedules/${encodeURIComponent(each.name)}`;
const KINDS = { times: ["cron", "rrule", "interval", "once"], events: ["event"], conditions: ["condition"] };

export function Schedules() {
  const { q = "", kind = "", state = "", make } = params.value;
  const { data, problem, again } = useLoaded(`/schedules?recent=30${state === "ended" ? "&ended=true" : ""}`, { topics: ["overview"], concerns: (what) => what === "counts" || what === "job" });
  const hold = useLoaded("/schedules/hold");
  const rows = (data?.items ?? []).filter((each) => (!q || `${each.name} ${each.workflow} ${each.words ?? ""}`.toLowerCase().includes(q.toLowerCase()))
    && (!kind || KINDS[kind]?.includes(each.schedule_kind)) && (!state || each.state === state));
  if (make) return html`<${ScheduleForm} done=${(name) => go(`/schedules/${encodeURIComponent(name)}`)} leave=${() => ask({ make: null }, { replace: false })} />`;
  const why = hindrance("submit");
  return html`<div class="head"><h1>Schedules</h1>
      <input type="search" aria-label="Filter schedules" placeholder="name, workflow, words" value=${q} onInput=${(event) => ask({ q: event.target.value })} />
      <label><span class="visually-hidden">Kind</span><select value=${kind} onChange=${(event) => ask({ kind: event.target.value })}><option value="">all kinds</option><option value="times">at times</option><option value="events">after events</option><option value="conditions">on conditions</option></select></label>
      <label><span class="visually-hidden">State</span><select value=${state} onChange=${(event) => ask({ state: event.target.value })}><option value="">all but ended</option>${["active", "paused", "snoozed", "broken", "ended"].map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
      <span class="grow"></span><${Hold} of=${hold} /><button class="primary" disabled=${Boolean(why)} title=${why} onClick=${() => ask({ make: 1 }, { replace: false })}>New schedule</button></div>
    <${Trouble} problem=${problem} again=${again} />
    ${hold.data?.held && html`<div class="hint waits" role="status"><strong>All schedules are held${hold.data.by ? ` by ${hold.data.by}` : ""} <${When} at=${hold.data.since} />${hold.data.reason ? `: ${hold.data.reason}` : ""}.</strong> What falls due is settled when the hold is lifted, as if nobody had been there.</div>`}
    ${data && (rows.length ? html`<${Table} label="Schedules" rows=${rows} keyOf=${(each) => each.id} opens=${(each) => go(to(each))} columns=${[
      ["Schedule", (each) => html`<a href=${place(to(each))}>${each.name}</a>${each.title && html`<div class="muted small">${each.title}</div>`}`, "nowrap"],
      ["Starts", (each) => html`<a href=${place(`/workflows/${encodeURIComponent(each.workflow)}`)}>${each.workflow}</a>`],
      ["In words", (each) => html`<span title=${each.words}>${firstSentence(each)}</span>`, "cut"],
      ["Next", (each) => (each.next_due && each.state !== "paused" ? html`<${When} at=${each.next_due} />` : ""), "nowrap"],
      ["Last", (each) => html`<${Strip} of=${each.recent} />`, "nowrap"],
      ["State", (each) => html`<span title=${each.state_words}><${ScheduleState} of=${each} /></span>`],
    ]} />` : html`<${Nothing}>${data.items.length ? "No schedule fits." : html`Nothing starts by itself. <code>accsd schedules create NAME --cron '30 2 * * *' --workflow WORKFLOW</code> makes a schedule, and so does the button.`}<//>`)}`;
}

/** What starts it; its policies are on its page. */
function firstSentence(each) {
  if (!each.words) return each.state_words;
  return each.words.split(". ")[0].replace(/\.$/, "");
}

function Hold({ of }) {
  if (!of.data) return null;
  const after = () => { of.again(); return of.data.held ? "The hold is lifted." : "All schedules are held."; };
  if (of.data.held) return html`<${Action} label="Lift the hold" kind="primary" action=${{ title: "Let all schedules go on", path: "/schedules/hold", method: "DELETE", scope: "operate", verb: "Lift the hold", cli: "accsd schedules hold --lift", done: after,
    effect: () => ["What was due meanwhile is late now: each schedule's own rule for what was missed decides."] }} />`;
  return html`<${Action} label="Hold all" action=${{ title: "Hold all schedules", path: "/schedules/hold", scope: "operate", verb: "Hold all", danger: true, cli: "accsd schedules hold", done: after,
    effect: () => ["Nothing that falls due is settled until the hold is lifted.", "Jobs that run go on."] }} />`;
}
