// Runs of a schedule for times that lie behind: what would happen to each is shown first, and exactly that is begun.
import { call, newKey, query } from "../api.js";
import { html, signal, useEffect, useRef, useState } from "../html.js";
import { useLoaded } from "../load.js";
import { hindrance } from "../session.js";
import { now } from "../time.js";
import { notice } from "./notices.js";
import { At, Copy, JobLink, Meter, State, Table, Trouble } from "./parts.js";
import { Action } from "./sheet.js";

const open = signal(null);
const begun = signal(0); // so that the list is read again
const DAY = 86_400_000;

export function BackfillButton({ schedule }) {
  const why = hindrance("submit");
  return html`<button disabled=${Boolean(why)} title=${why} onClick=${() => { open.value = schedule; }}>Backfill</button>${open.value && html`<${Opened} schedule=${open.value} />`}`;
}

const dayOf = (ms) => new Date(ms).toISOString().slice(0, 10);
const instant = (date) => (date ? `${date}T00:00:00Z` : undefined);

function Opened({ schedule }) {
  const dialog = useRef(null);
  const key = useRef(null);
  const [given, give] = useState({ from: dayOf(now() - 7 * DAY), to: "", existing: "none", order: "oldest", parallel: "1", reason: "" });
  const [plan, setPlan] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => { dialog.current.showModal(); }, []);
  const body = { schedule: schedule.name, from: instant(given.from), ...(given.to ? { to: instant(given.to) } : {}), existing: given.existing, order: given.order, parallel: Number(given.parallel) || 1, ...(given.reason ? { reason: given.reason } : {}) };
  const put = (name) => (event) => { give({ ...given, [name]: event.target.value }); setPlan(null); key.current = null; };
  const rehearse = (event) => { event.preventDefault(); setProblem(null); call("/backfills?dry_run=true", { method: "POST", body }).then(setPlan, setProblem); };
  const begin = () => call("/backfills", { method: "POST", body: { ...body, token: plan.token }, headers: { "Idempotency-Key": key.current ??= newKey() } }).then(() => { begun.value++; notice(`A backfill of ${schedule.name} has begun.`); dialog.current.close(); }, (refusal) => { setPlan(null); setProblem(refusal); });
  const cli = `accsd schedules backfill ${schedule.name} --from ${given.from}${given.to ? ` --to ${given.to}` : ""} --existing ${given.existing} --order ${given.order} --parallel ${body.parallel}${plan ? ` --token ${plan.token.slice(0, 8)}…` : " --dry-run"}`;
  const field = (name, label, type, rest) => html`<label>${label}<input type=${type} value=${given[name]} onInput=${put(name)} ...${rest} /></label>`;
  const choice = (name, label, choices) => html`<label>${label}<select value=${given[name]} onChange=${put(name)}>${choices.map(([key, word]) => html`<option key=${key} value=${key}>${word}</option>`)}</select></label>`;
  return html`<dialog ref=${dialog} aria-labelledby="backfill-title" onClose=${() => { open.value = null; }}><form onSubmit=${rehearse}>
    <header id="backfill-title">Backfill ${schedule.name}</header>
    <div class="body"><div class="row">${field("from", "From (UTC)", "date", { required: true })}${field("to", "To, empty: now", "date", {})}${field("parallel", "At once", "number", { min: 1, max: 1000 })}</div>
      <div class="row">${choice("existing", "Of those that have run", [["none", "none run again"], ["failed", "the failed run again"], ["all", "all run again"]])}${choice("order", "First", [["oldest", "the oldest"], ["newest", "the newest"]])}</div>
      ${field("reason", "Reason, for the history", "text", { class: "wide", maxlength: 500 })}
      <${Trouble} problem=${problem} />
      ${plan && html`<div aria-live="polite"><p><strong>${plan.would_run} would run, ${plan.would_leave} are left alone.</strong> On-time runs go first.</p>
        <div class="tall"><${Table} label="What would happen" rows=${plan.occurrences.slice(0, 500)} keyOf=${(each) => `${each.nominal} ${each.fold}`} columns=${[
          ["Due", (each) => html`<span class="mono">${each.nominal.replace("T", " ")}</span>`], ["Would", (each) => each.would], ["Until now", (each) => each.outcome ?? "never settled"], ["Job", (each) => each.job_id && html`<${JobLink} id=${each.job_id} />`]]} /></div></div>`}
      <div class="also small"><span class="muted">Also as</span><div><code>${cli}</code><${Copy} text=${cli} /></div></div></div>
    <footer><button type="button" onClick=${() => dialog.current.close()}>Leave it</button>
      ${plan ? html`<button type="button" class="primary" disabled=${!plan.would_run} onClick=${begin}>Run ${plan.would_run}</button>` : html`<button class="primary">Show what would run</button>`}</footer></form></dialog>`;
}

/** The backfills of a schedule, if there are any. */
export function Backfills({ schedule }) {
  const { data, again } = useLoaded(`/backfills${query({ schedule, limit: 20, seen: undefined })}`, { topics: ["overview"], concerns: (kind) => kind === "job" });
  useEffect(() => { if (begun.value) again(); }, [begun.value]);
  if (!data?.items.length) return null;
  return html`<section class="panel"><h2>Backfills</h2><${Table} label="Backfills" rows=${data.items} keyOf=${(each) => each.id} columns=${[
    ["State", (each) => html`<${State} of=${each.state === "running" ? "running" : each.state === "done" ? "done" : "cancelled"} word=${each.state} />`],
    ["How far", (each) => html`<${Meter} part=${each.total ? each.done / each.total : 1} label="progress of the backfill" /> ${each.done} of ${each.total}`], ["Started", (each) => each.started, "right"], ["Left alone", (each) => each.left_alone, "right"],
    ["Failed", (each) => each.failed, "right"], ["From", (each) => each.first.replace("T", " "), "nowrap"], ["To", (each) => each.last.replace("T", " "), "nowrap"], ["By", (each) => each.by], ["Begun", (each) => html`<${At} at=${each.created_at} />`, "nowrap"],
    ["", (each) => !each.ended_at && html`<${Action} label="Cancel" kind="plain small" action=${{ title: "Cancel this backfill", path: `/backfills/${each.id}`, method: "DELETE", previews: false, scope: "operate", verb: "Cancel it", danger: true, cli: `accsd schedules backfills cancel ${each.id}`, effect: () => ["No further run begins; those that run go on."], done: () => { again(); return "The backfill is cancelled."; } }} />`],
  ]} /></section>`;
}
