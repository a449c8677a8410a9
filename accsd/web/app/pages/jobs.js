// Jobs by what is asked for in the bar: found, explained, selected, and acted on many at once.
import { call, place, query } from "../api.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { ENDED, said } from "../job_words.js";
import { useKeys } from "../keys.js";
import { ask, go, params } from "../router.js";
import { duration, exact } from "../time.js";
import { JobLink, Meter, Nothing, State, Trouble, When } from "../ui/parts.js";
import { Rows } from "../ui/rows.js";
import { chips, tellingKeys, what } from "../what.js";
import { useJobs } from "./jobs_data.js";
import { JumpToDate } from "./jobs_date.js";
import { Look } from "./jobs_look.js";
import { Many } from "./jobs_many.js";
import { Views } from "./jobs_views.js";

const SHORTCUTS = [["", "All"], ["status:queued,running", "In motion"], ["status:error", "Failed"], ["status:done", "Done"]];
const QUALIFIERS = ["status:", "workflow:", "service:", "node:", "since:", "until:", "took:>", "by:", "error:", "key:", "option."];
const MOST_ASKED = 20; // waiting jobs whose reason is asked for

export function Jobs() {
  const { q = "", order, look: looked } = params.value;
  const list = useJobs({ q, order });
  const [chosen, choose] = useState(new Set());
  const [pointed, point] = useState(false);
  const why = useReasons(list.rows);
  useEffect(() => choose(new Set()), [q, order]);
  useEffect(() => { if (list.fresh.length && scrollY === 0 && !pointed && !chosen.size) list.takeFresh(); }, [list.fresh.length]);
  const rows = list.rows ?? [];
  const keys = tellingKeys(rows);
  const toggle = (id) => { const next = new Set(chosen); if (!next.delete(id)) next.add(id); choose(next); };
  const look = (id) => ask({ look: id === looked ? null : id });
  const atFocus = () => document.activeElement?.closest("tr[data-key]")?.dataset.key;
  useKeys({
    Space: ["a look at the row's job", () => { const id = atFocus(); return id ? look(id) : false; }],
    ...(looked ? { Escape: ["close the look", () => ask({ look: null })] } : {}),
  });
  const follow = () => { const id = atFocus(); if (looked && id && id !== looked) ask({ look: id }); }; // by j and k
  const all = rows.length > 0 && rows.every((job) => chosen.has(job.id));
  return html`<div class="head"><h1>Jobs</h1><${Bar} key=${q} q=${q} rows=${rows} problem=${list.problem} /><${Views} q=${q} order=${order} /></div>
    <div class="graph-tools"><nav aria-label="Usual filters">${SHORTCUTS.map(([to, word]) => html`<a class="button" key=${to} href=${place(`/jobs${query({ q: to, order })}`)} aria-current=${to === q ? "true" : undefined}>${word}</a> `)}</nav>
      ${chips(q).length > 1 && chips(q).map(([word, without]) => html`<a class="chip" key=${word} href=${place(`/jobs${query({ q: without, order })}`)} aria-label=${`Take out ${word}`}>${word} ×</a>`)}
      ${q && list.filter && html`<span class="muted small" title="What the query was understood as">${Object.entries(list.filter).map(([name, value]) => `${name.replaceAll("_", " ")}: ${[value].flat().map((each) => (name === "since" || name === "until" ? exact(each) : said(each))).join(", ")}`).join(" · ")}</span>`}
      <span class="grow"></span><${JumpToDate} q=${q} order=${order} /><label>Order <select value=${order ?? "newest"} onChange=${(event) => ask({ order: event.target.value === "newest" ? null : event.target.value }, { replace: false })}><option value="newest">newest first</option><option value="oldest">oldest first</option></select></label></div>
    ${!isAboutQuery(list.problem) && html`<${Trouble} problem=${list.problem} again=${list.again} />`}
    ${chosen.size > 0 && html`<${Many} chosen=${chosen} filter=${q} clear=${() => choose(new Set())} />`}
    ${list.fresh.length > 0 && html`<button class="fresh" onClick=${list.takeFresh}>${list.fresh.length} new: show ${list.fresh.length === 1 ? "it" : "them"}</button>`}
    <div class=${looked ? "beside" : ""}><div class="main-part" onPointerEnter=${() => point(true)} onPointerLeave=${() => point(false)} onFocusIn=${follow}>${rows.length > 0 && html`<${Rows} label="Jobs" height="78vh" rows=${rows} keyOf=${(job) => job.id} opens=${(job) => go(`/jobs/${job.id}`)} selected=${looked} note=${(job) => (chosen.has(job.id) ? "chosen" : "")} columns=${[
      [html`<input type="checkbox" aria-label="Select all that are shown" checked=${all} onChange=${() => choose(all ? new Set() : new Set(rows.map((job) => job.id)))} />`, (job) => html`<input type="checkbox" aria-label=${`Select ${job.id.slice(-8)}`} checked=${chosen.has(job.id)} onChange=${() => toggle(job.id)} />`, "narrow"],
      ["Status", (job) => html`<${State} of=${job.status} />`],
      ["Job", (job) => html`<${JobLink} id=${job.id} />`],
      ["Workflow", (job) => html`${job.workflow} <span class="muted small">v${job.version}</span>`],
      ["What", (job) => html`<span title=${what(job, Object.keys(job.options ?? {}))}>${what(job, keys.get(job.workflow))}</span>`, "cut what wide-only beside-hides"],
      ["Step", (job) => (job.status === "running" ? html`${job.current_task_key ?? ""}` : ""), "wide-only step-cell beside-hides"],
      ["Why, or how it ended", (job) => html`<${Result} job=${job} why=${why[job.id]} />`, "cut"],
      ["Took", (job) => duration(job.took_seconds), "right wide-only beside-hides"],
      ["Submitted", (job) => html`<${When} at=${job.created_at} />`, "right"],
      ["", (job) => html`<button class="plain small" aria-label=${`Look at ${job.id.slice(-8)}`} aria-expanded=${job.id === looked} title="A look at it (Space)" onClick=${() => look(job.id)}>◨</button>`, "narrow"],
    ]} />`}</div>
      ${looked && html`<${Look} key=${looked} id=${looked} close=${() => ask({ look: null })} />`}</div>
    ${list.rows && !rows.length && !list.problem && html`<${Nothing}>${q ? (list.scan?.complete === false ? "No job of those looked at matches." : "No job matches.") : html`There is no job yet. <code>accsd submit WORKFLOW</code> makes the first.`}<//>`}
    <footer class="graph-tools">${list.scan && !list.scan.complete && html`<span class="muted">Searched back to ${exact(list.scan.back_to)}, ${list.scan.looked_at.toLocaleString()} jobs.</span>`}
      ${list.next && html`<button disabled=${list.loading} onClick=${list.more}>${list.scan && !list.scan.complete ? "Search further" : "Show more"}</button>`}
      ${rows.length > 0 && !list.next && html`<span class="muted small">That is all.</span>`}</footer>`;
}

function Result({ job, why }) {
  if (job.status === "error") return html`<span class="error-ink">${job.error_message ?? job.error_code}</span>`;
  if (ENDED.includes(job.status)) return "";
  if (why) return html`<span title=${why}>${why}</span>`;
  return job.status === "running" ? html`<${Meter} part=${job.progress} label=${`progress of ${job.id.slice(-8)}`} />` : "";
}

/** The first thing that keeps each waiting job, in the words of `accsd why`. */
function useReasons(rows) {
  const [why, set] = useState({});
  const ids = (rows ?? []).filter((job) => !ENDED.includes(job.status)).slice(0, MOST_ASKED).map((job) => job.id);
  const states = (rows ?? []).filter((job) => ids.includes(job.id)).map((job) => `${job.id}${job.status}${job.current_task_key}`).join();
  useEffect(() => {
    if (!ids.length) return;
    call("/why", { method: "POST", body: { ids } }).then((found) => set(Object.fromEntries(Object.entries(found.items).map(([id, blockers]) => [id, told(blockers)]))), () => {});
  }, [states]);
  return why;
}

function told(blockers) {
  if (blockers.some((each) => each.blocker === "running" && each.task_id)) return null; // something of it runs
  const waits = blockers.filter((each) => each.blocker !== "running");
  const first = waits.find((each) => each.is_critical) ?? waits[0];
  return first ? `${first.task_key ? `${first.task_key}: ` : ""}${first.text}` : null;
}

const isAboutQuery = (problem) => !!problem?.errors?.some((each) => each.position !== undefined);

/** What is typed is sent as it is; what is not understood is said with its place. */
function Bar({ q, rows, problem }) {
  const [typed, type] = useState(q);
  const field = useRef(null);
  const fault = isAboutQuery(problem) ? problem : null;
  const last = typed.split(/\s+/).at(-1);
  const known = { "workflow:": rows.map((job) => job.workflow), "status:": ["queued", "running", "done", "error", "cancelled"], "error:": rows.map((job) => job.error_code), "by:": rows.map((job) => job.created_by), "option.": rows.flatMap((job) => Object.keys(job.options ?? {})).map((key) => `${key}:`) };
  const begun = Object.keys(known).find((name) => last.startsWith(name));
  const before = typed.slice(0, typed.length - last.length);
  const offers = begun ? [...new Set(known[begun])].filter(Boolean).map((value) => `${before}${begun}${/\s/.test(value) ? `"${value}"` : value}`) : QUALIFIERS.map((name) => `${before}${name}`);
  const at = fault?.errors?.[0]?.position;
  return html`<form class="grow query" role="search" onSubmit=${(event) => { event.preventDefault(); ask({ q: typed }, { replace: false }); }}>
    <input ref=${field} class="wide" id="filter" type="search" aria-label="Filter jobs" list="offers" autocomplete="off" aria-invalid=${fault ? "true" : undefined} aria-describedby=${fault ? "filter-fault" : undefined} placeholder="status:error workflow:media since:2d" value=${typed} onInput=${(event) => type(event.target.value)} />
    <datalist id="offers">${offers.slice(0, 20).map((each) => html`<option key=${each} value=${each}></option>`)}</datalist>
    ${fault && html`<div id="filter-fault" role="alert" class="fault small">${at !== undefined && html`<code>${q.slice(0, at)}<mark>${q.slice(at, at + (fault.errors[0].length || 1)) || "␣"}</mark>${q.slice(at + (fault.errors[0].length || 1))}</code> `}${fault.message}${fault.hint ? `; ${fault.hint}` : ""}</div>`}</form>`;
}
