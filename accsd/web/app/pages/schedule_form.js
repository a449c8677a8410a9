// To make or change a schedule: what it would mean, and when it would be due, is said while it is typed.
import { call } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { useLoaded } from "../load.js";
import { isZone } from "../prefs.js";
import { hindrance } from "../session.js";
import { exact } from "../time.js";
import { notice } from "../ui/notices.js";
import { Nothing, Trouble } from "../ui/parts.js";

const KINDS = { cron: ["cron", "30 2 * * *"], every: ["an interval", "90m"], rrule: ["a rule of RFC 5545", "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17"], at: ["once", "2027-01-31T06:00"], event: ["an event", "shop.order.*"], condition: ["a condition", ""] };
const FIELD_OF = { cron: "cron", rrule: "rrule", interval: "every", once: "at", event: "event", condition: "condition" };
const OVERLAPS = [["", "as usual"], ["skip", "is skipped"], ["queue", "waits (one at most)"], ["queue_all", "waits, all of them"], ["cancel", "replaces it"], ["allow", "runs beside it"]];
const MISSED = [["one", "the latest runs"], ["all", "all run"], ["skip", "nothing runs"]];

const begin = (row) => ({
  name: row?.name ?? "", workflow: row?.workflow ?? "", kind: row ? FIELD_OF[row.schedule_kind] : "cron", expr: row ? row.schedule_expr : "30 2 * * *",
  timezone: row?.timezone ?? Intl.DateTimeFormat().resolvedOptions().timeZone, title: row?.title ?? "", overlap: row?.overlap ?? "", missed: row?.missed ?? "one", priority: String(row?.priority ?? 0),
  filter: row?.filter ?? "", options: JSON.stringify(row?.options ?? {}, null, 2), condition: JSON.stringify(row?.condition ?? { above: 90, samples: 2 }, null, 2), reason: "",
});

const parsed = (text, what) => { try { return JSON.parse(text || "{}"); } catch { throw Object.assign(new Error(`${what} are no JSON.`), { hint: "Write an object: {\"key\": \"value\"}." }); } };

/** The document that the API takes. A change says null for the kind that it no longer is. */
function written(given, row) {
  const isTimed = !["event", "condition"].includes(given.kind);
  const kinds = Object.fromEntries(Object.keys(KINDS).filter((kind) => kind === given.kind || (row && FIELD_OF[row.schedule_kind] === kind)).map((kind) => [kind, kind === given.kind ? given.expr : null]));
  if (given.kind === "condition") kinds.condition = { ...parsed(given.condition, "The condition"), name: given.expr || given.name };
  return { ...kinds, timezone: given.timezone, workflow: given.workflow, title: given.title || null, priority: Number(given.priority) || 0, options: parsed(given.options, "The options"),
    ...(given.overlap ? { overlap: given.overlap } : {}), ...(isTimed ? { missed: given.missed } : {}), ...(given.kind === "event" ? { filter: given.filter || null } : {}) };
}
const without = (document) => Object.fromEntries(Object.entries(document).filter(([, value]) => value !== null));

/** What it would mean, asked once typing pauses. */
function usePreview(given) {
  const [said, set] = useState({ preview: null, problem: null });
  const asked = JSON.stringify([given.kind, given.expr, given.timezone, given.overlap, given.missed, given.filter, given.condition]);
  useEffect(() => {
    const abort = new AbortController();
    const planned = setTimeout(async () => {
      try {
        const document = without(written({ ...given, workflow: "preview", options: "{}", title: "" }));
        set({ preview: await call("/schedules/preview", { method: "POST", body: document, signal: abort.signal }), problem: null });
      } catch (problem) { if (problem.name !== "AbortError") set((before) => ({ ...before, problem })); }
    }, 250);
    return () => { clearTimeout(planned); abort.abort(); };
  }, [asked]);
  return said;
}

export function ScheduleForm({ row, done, leave }) {
  const [given, give] = useState(begin(row));
  const [etag, setEtag] = useState(null);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const workflows = useLoaded("/workflows");
  const { preview, problem: wrong } = usePreview(given);
  useEffect(() => { if (row) call(`/schedules/${encodeURIComponent(row.name)}`, { whole: true }).then((found) => setEtag(found.etag), setProblem); }, []);
  const save = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const body = written(given, row);
      if (row) await call(`/schedules/${encodeURIComponent(row.name)}${given.reason ? `?reason=${encodeURIComponent(given.reason)}` : ""}`, { method: "PATCH", body, headers: { "If-Match": etag } });
      else await call("/schedules", { method: "POST", body: { ...without(body), name: given.name } });
      notice(row ? `${row.name} is changed` : `${given.name} is made`);
      done(row?.name ?? given.name);
    } catch (refusal) { setProblem(refusal); setBusy(false); }
  };
  const put = (name) => (event) => { setProblem(null); give({ ...given, [name]: event.target.value }); };
  const why = hindrance("submit");
  return html`<form onSubmit=${save}><div class="head"><h1>${row ? `Edit ${row.name}` : "New schedule"}</h1><span class="grow"></span><button type="button" onClick=${leave}>Leave it</button>
      <button class="primary" disabled=${busy || Boolean(why) || (row && !etag)} title=${why}>${row ? "Save" : "Make it"}</button></div>
    <${Trouble} problem=${problem} />
    <div class="grid"><section class="panel half form"><h2>What and when</h2>
        ${!row && html`<label>Name<input class="wide" required maxlength="200" value=${given.name} onInput=${put("name")} /></label>`}
        <label>Workflow that it starts<input class="wide" list="workflows" required value=${given.workflow} onInput=${put("workflow")} /></label><datalist id="workflows">${(workflows.data?.items ?? []).map((each) => html`<option key=${each.name} value=${each.name} />`)}</datalist>
        <div class="row"><label>By<select value=${given.kind} onChange=${(event) => give({ ...given, kind: event.target.value, expr: event.target.value === FIELD_OF[row?.schedule_kind] ? row.schedule_expr : KINDS[event.target.value][1] })}>${Object.entries(KINDS).map(([key, [word]]) => html`<option key=${key} value=${key}>${word}</option>`)}</select></label>
          <label class="grow">${given.kind === "event" ? "Topic" : given.kind === "condition" ? "Name of the condition" : "Expression"}<input class="wide mono" required=${given.kind !== "condition"} spellcheck="false" value=${given.expr} onInput=${put("expr")} /></label></div>
        ${given.kind === "condition" && html`<label>Raised, as JSON<textarea class="mono wide" rows="4" value=${given.condition} onInput=${put("condition")}></textarea></label>`}
        ${given.kind === "event" && html`<label>Only where<input class="wide mono" placeholder="event.payload.total > 100" value=${given.filter} onInput=${put("filter")} /></label>`}
        <label>Time zone<input class="wide" list="form-zones" value=${given.timezone} aria-invalid=${!isZone(given.timezone)} onInput=${put("timezone")} /></label><datalist id="form-zones">${(Intl.supportedValuesOf?.("timeZone") ?? []).map((each) => html`<option key=${each} value=${each} />`)}</datalist>
        <label>Title<input class="wide" value=${given.title} onInput=${put("title")} /></label></section>
      <section class="panel half" aria-live="polite"><h2>What it would mean</h2><${Trouble} problem=${wrong} />
        ${preview && !wrong && html`<p class="sentence">${preview.words}</p>${preview.warnings.map((each) => html`<div class="hint" key=${each.code + each.message}>${each.message}${each.hint ? html` <span class="muted">${each.hint}</span>` : ""}</div>`)}
          ${preview.occurrences.length ? html`<ol class="plain-list">${preview.occurrences.map((each) => html`<li key=${each.due_at + each.fold}><span class="mono">${each.nominal.replace("T", " ")} ${each.zone}</span> <span class="muted">${exact(each.due_at)}</span>${each.notes.length ? html` <strong>${each.notes.join("; ")}</strong>` : ""}</li>`)}</ol>` : html`<${Nothing}>It has no times of its own.<//>`}`}</section>
      <section class="panel half form"><h2>Otherwise</h2>
        <label>While its last run has not ended, the next one<select value=${given.overlap} onChange=${put("overlap")}>${OVERLAPS.filter(([key]) => !row || key).map(([key, word]) => html`<option key=${key} value=${key}>${word}</option>`)}</select></label>
        ${!["event", "condition"].includes(given.kind) && html`<label>If accsd was down when it was due<select value=${given.missed} onChange=${put("missed")}>${MISSED.map(([key, word]) => html`<option key=${key} value=${key}>${word}</option>`)}</select></label>`}
        <label>Priority<input type="number" value=${given.priority} onInput=${put("priority")} /></label>
        ${row && html`<label>Reason, for the history<input class="wide" maxlength="500" value=${given.reason} onInput=${put("reason")} /></label>`}</section>
      <section class="panel half form"><h2>Options of its jobs</h2><label><span class="visually-hidden">Options, as JSON</span><textarea class="mono wide" rows="8" spellcheck="false" value=${given.options} onInput=${put("options")}></textarea></label></section></div></form>`;
}
