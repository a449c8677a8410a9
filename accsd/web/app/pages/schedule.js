// One schedule: what it means, what is next and which machines that wakes, and what became of each due time.
import { place, query } from "../api.js";
import { html } from "../html.js";
import { useLoaded, useSettled } from "../load.js";
import { ask, params } from "../router.js";
import { duration } from "../time.js";
import { BackfillButton, Backfills } from "../ui/backfill.js";
import { Outcome, ScheduleState } from "../ui/ledger.js";
import { wakeWords } from "../ui/lanes.js";
import { At, Facts, JobLink, Json, Nothing, State, Table, Trouble, When } from "../ui/parts.js";
import { Action } from "../ui/sheet.js";
import { Absent } from "./missing.js";
import { ScheduleForm } from "./schedule_form.js";
import { actions } from "./schedule_actions.js";

export function Schedule({ subject: name }) {
  const at = `/schedules/${encodeURIComponent(name)}`;
  const live = { topics: ["overview"], concerns: (kind) => kind === "job" };
  const { data, problem, again } = useLoaded(at, live);
  const isDue = data && hasTimes(data) && !["ended", "broken"].includes(data.state);
  const firings = useLoaded(isDue ? `${at}/firings?next=10` : null, live);
  const forecast = useLoaded("/fleet/forecast?hours=168");
  const reload = () => { again(); firings.again(); };
  const isSettled = useSettled({ data, problem }, isDue ? firings : { data }, forecast);
  if (!data || !isSettled) return html`<${Absent} problem=${problem} again=${again} name=${`The schedule ${name}`} list=${["/schedules", "All schedules"]} />`;
  if (params.value.edit) return html`<${ScheduleForm} row=${data} done=${() => { ask({ edit: null }); reload(); }} leave=${() => ask({ edit: null })} />`;
  const wakes = (forecast.data?.wakes ?? []).filter((wake) => wake.schedule === name);
  return html`<div class="head"><h1>${data.name}</h1><${ScheduleState} of=${data} /><span class="grow"></span><${Verbs} of=${data} reload=${reload} /></div>
    <${Trouble} problem=${problem} again=${again} />
    <p class="sentence">${data.words ?? data.state_words}</p>
    ${data.state !== "active" && html`<div class="hint waits">${data.state_words}</div>`}
    ${data.losing.losing && html`<div class="hint waits">Of the last ${data.losing.of} due times ${data.losing.lost_count} did not run: ${Object.entries(data.losing.lost).map(([why, n]) => `${n} ${why}`).join(", ")}${data.losing.gap ? ` (one each ${duration(data.losing.gap)})` : ""}.</div>`}
    ${data.warnings.map((each) => html`<div class="hint" key=${each.code + each.message}>${each.message}${each.hint ? html` <span class="muted">${each.hint}</span>` : ""}</div>`)}
    <${Facts} of=${[["starts", html`<a href=${place(`/workflows/${encodeURIComponent(data.workflow)}`)}>${data.workflow}</a>${data.version ? ` version ${data.version}` : ""}`], ["runs", data.runs], ["by", data.created_by], ["revision", data.revision], ["priority", data.priority || null], ["zone", data.timezone], [data.schedule_kind, html`<code>${data.schedule_expr}</code>`]]} />
    <div class="grid">
      ${hasTimes(data) && html`<section class="panel half"><h2>Next <span class="note">in ${data.timezone} and here</span></h2><${Next} of=${firings.data?.items} schedule=${data} reload=${reload} /></section>`}
      ${data.schedule_kind === "event" && html`<section class="panel half"><h2>Its events</h2><${Events} of=${data} /></section>`}
      ${data.schedule_kind === "condition" && html`<section class="panel half"><h2>Its condition</h2><${Condition} of=${data} /></section>`}
      <section class="panel half"><h2>Machines that it wakes</h2>${wakes.length ? html`<ul class="plain-list">${wakes.map((wake) => html`<li key=${wake.node + wake.at}><span aria-hidden="true">☼</span> ${wakeWords(wake)}</li>`)}</ul>` : html`<${Nothing}>None in the next week, as far as is known now: who is needed is awake, or nothing is due.<//>`}
        ${data.jobs.length > 0 && html`<h2 class="more-space">Its open jobs</h2><ul class="plain-list">${data.jobs.map((job) => html`<li key=${job.job_id}><${JobLink} id=${job.job_id} /> <${State} of=${job.status} /> ${job.waits ? "waits for another run" : ""} <${When} at=${job.created_at} /></li>`)}</ul>`}</section>
      <section class="panel"><${Ledger} at=${at} live=${live} /></section>
      <${Backfills} schedule=${name} />
      <section class="panel half"><h2>What was done to it</h2><${History} of=${data.history} /></section>
      <section class="panel half"><h2>Options</h2>${Object.keys(data.options).length ? html`<${Json} value=${data.options} />` : html`<${Nothing}>It gives its jobs none.<//>`}</section></div>`;
}

export const hasTimes = (schedule) => !["event", "condition"].includes(schedule.schedule_kind);

function Verbs({ of, reload }) {
  const verbs = actions(of, reload);
  return html`<${Action} label="Run now" kind="primary" action=${verbs.run} />
    ${of.state === "paused" ? html`<${Action} label="Resume" action=${verbs.resume} />` : !["ended", "broken"].includes(of.state) && html`<${Action} label="Pause" action=${verbs.pause} />`}
    ${hasTimes(of) && of.next_due && (of.state === "snoozed" ? html`<${Action} label="Unsnooze" action=${verbs.unsnooze} />` : html`<${Action} label="Snooze" action=${verbs.snooze} />`)}
    ${hasTimes(of) && html`<${BackfillButton} schedule=${of} />`}
    ${of.state !== "ended" && html`<button onClick=${() => ask({ edit: 1 }, { replace: false })}>Edit</button><${Action} label="End" kind="danger" action=${verbs.end} />`}`;
}

function Next({ of, schedule, reload }) {
  if (!of) return html`<${Nothing}>${schedule.state === "ended" ? "Nothing: it has ended." : "Nothing is planned."}<//>`;
  const verbs = actions(schedule, reload);
  return html`<${Table} label="Next due times" rows=${of} keyOf=${(each) => `${each.nominal} ${each.fold}`} columns=${[
    ["There", (each) => html`<span class="mono">${each.nominal.replace("T", " ")} ${each.zone}</span>`, "nowrap"], ["Here", (each) => html`<${At} at=${each.due_at} />`, "nowrap"], ["In", (each) => html`<${When} at=${each.due_at} />`, "nowrap"],
    ["", (each) => html`${each.notes.length > 0 && html`<span class=${each.fires ? "muted" : "state"} data-state=${each.fires ? undefined : "skipped"}>${each.notes.join("; ")}</span> `}
      ${each.marks.includes("skipped") ? html`<${Action} label="Unskip" kind="plain small" action=${verbs.unskip(each)} />` : each.fires && html`<${Action} label="Skip" kind="plain small" action=${verbs.skip(each)} />`}`],
  ]} />`;
}

const OUTCOMES = ["fired", "caught_up", "skipped", "missed", "merged", "snoozed"];

function Ledger({ at, live }) {
  const { outcome = "" } = params.value;
  const { data } = useLoaded(`${at}/ledger${query({ outcome, limit: 100 })}`, live);
  return html`<h2>Ledger <span class="note">what became of each due time</span><span class="grow"></span><label><span class="visually-hidden">Only</span><select class="quiet small" value=${outcome} onChange=${(event) => ask({ outcome: event.target.value })}>
      <option value="">everything</option>${OUTCOMES.map((each) => html`<option key=${each} value=${each}>${each.replace("_", " ")}</option>`)}</select></label></h2>
    ${data && (data.items.length ? html`<div class="tall"><${Table} label="Ledger" rows=${data.items} keyOf=${(each) => `${each.nominal} ${each.fold} ${each.cause_id}`} columns=${[
      ["Due", (each) => html`<${At} at=${each.due_at} />`, "nowrap"], ["Outcome", (each) => html`<${Outcome} of=${each} />`], ["What became of it", (each) => html`<span title=${each.words}>${each.words}</span>`, "cut"],
      ["Late", (each) => (each.late_seconds >= 1 ? duration(each.late_seconds) : ""), "right"], ["Job", (each) => each.job_id && html`<${JobLink} id=${each.job_id} /> ${each.job_status && html`<${State} of=${each.job_status} />`}`, "nowrap"],
    ]} /></div>` : html`<${Nothing}>${outcome ? "None." : "It has not been due yet."}<//>`)}`;
}

const Events = ({ of }) => html`<p>It listens to <code>${of.schedule_expr}</code>${of.filter && html`, where <code>${of.filter}</code>`}.</p>
  ${of.events && html`<${Facts} of=${[["wait", of.events.waiting], ["being gathered", of.events.gathering], ["left out by its filter", of.events.filtered]]} />`}
  <p><a href=${place(`/triggers?topic=${encodeURIComponent(of.schedule_expr)}`)}>The events of this topic</a></p>`;

const Condition = ({ of }) => html`${of.condition_state ? html`<${Facts} of=${[["state", of.condition_state.state], ["since", html`<${When} at=${of.condition_state.since} />`], ["last value", String(of.condition_state.last_value ?? "none")], ["error", of.condition_state.last_error]]} />` : html`<${Nothing}>The planner has not seen it yet.<//>`}
  <p><a href=${place(`/triggers/${encodeURIComponent(of.schedule_expr)}`)}>The condition ${of.schedule_expr}</a></p>`;

const shown = (value) => (value === null || value === undefined ? "nothing" : typeof value === "object" ? JSON.stringify(value) : String(value));
const difference = (each) => Object.entries(each.after ?? {}).filter(([key]) => key in (each.before ?? {})).map(([key, value]) => `${key.replaceAll("_", " ")}: ${shown(each.before[key])} → ${shown(value)}`).join(", ");
const History = ({ of }) => html`<${Table} label="History" rows=${of} keyOf=${(each) => each.ts + each.what} columns=${[
  ["At", (each) => html`<${When} at=${each.ts} />`, "nowrap"], ["What", (each) => each.what], ["By", (each) => each.by], ["Why, and what changed", (each) => html`<span title=${difference(each)}>${[each.reason, difference(each)].filter(Boolean).join(": ")}</span>`, "cut"]]} />`;
