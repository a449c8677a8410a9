// The log of one attempt: addressed by line, however long it is; it follows its end until somebody scrolls up.
import { place } from "../api.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { subscribe } from "../live.js";
import { At, Copy, Json, Nothing, Trouble } from "../ui/parts.js";
import { visible } from "./ansi.js";
import { Line, measures, ROW, Strip } from "./lines.js";
import { nextOf, searched } from "./search.js";
import { LogWindow } from "./window.js";

const AROUND = 12; // lines above what is jumped to
const MOST_SHOWN = 100_000; // characters of one line that is shown whole

/** `#L1200` or `#L1200-L1210` of the address. */
export function linesOf(hash) {
  const found = /^#L(\d{1,15})(?:-L?(\d{1,15}))?$/.exec(hash);
  return found && [Number(found[1]), Number(found[2] ?? found[1])];
}

export function LogViewer({ job, task, attempt, isFull = false }) {
  const path = `/tasks/${task.id}/attempts/${attempt}/log`;
  const [, redraw] = useState(0);
  const [top, setTop] = useState(0);
  const [view, setView] = useState(400);
  const [times, setTimes] = useState("none");
  const [selected, select] = useState(isFull ? linesOf(location.hash) : null);
  const [search, setSearch] = useState({ text: "", hits: [], share: 0, isDone: true, at: -1, problem: null });
  const [unseen, setUnseen] = useState(0); // lines that came while somebody read further up
  const frame = useRef(null), log = useRef(null), is = useRef({ follows: false, seen: 0, wanted: null });
  const looking = useRef(null);
  log.current ??= new LogWindow(path, () => redraw((n) => n + 1));
  const { total, errors } = log.current;
  const sizes = measures(total, view);
  const first = Math.max(1, Math.min(sizes.first(top), total)), last = Math.min(total, first + Math.ceil(view / ROW) + 1);

  useEffect(() => {
    const sought = isFull && linesOf(location.hash);
    const failed = task.status === "error" || task.status === "cancelled";
    const asked = sought ? { from_line: Math.max(1, sought[0] - 200), limit: 500 } : failed ? { around: "first_error" } : { tail: 500 };
    log.current.begin(asked).then((found) => {
      if (sought) goTo(sought[0]);
      else if (failed && found.errors.length) { goTo(found.errors[0]); select([found.errors[0], found.errors[0]]); }
      else toEnd();
    });
    const leave = subscribe([`log:${task.id}:${attempt}`], (kind, said) => {
      if (["hello", "reset", "back"].includes(kind)) log.current.refresh();
      else if (kind === "log" && said.task === task.id && said.attempt_id === attempt) log.current.hear(said);
    });
    const seen = new ResizeObserver(() => frame.current && setView(frame.current.clientHeight));
    seen.observe(frame.current);
    return () => { leave(); seen.disconnect(); looking.current?.abort(); };
  }, []);
  useEffect(() => { if (log.current.isLoaded) log.current.refresh(); }, [task.status]);
  useEffect(() => { if (total) log.current.need(first - 60, last + 60); });
  useEffect(() => { // what came: its end is followed, or counted for who reads further up
    const here = is.current;
    if (here.wanted !== null) scrollTo(here.wanted);
    else if (here.follows) frame.current.scrollTop = sizes.height;
    else if (total > here.seen && here.seen) setUnseen((n) => n + total - here.seen);
    here.seen = total;
    here.wanted = null;
  }, [total]);

  const scrollTo = (line) => { frame.current.scrollTop = sizes.top(line); setTop(frame.current.scrollTop); };
  const goTo = (line) => {
    is.current.follows = false;
    is.current.wanted = Math.max(1, line - AROUND);
    requestAnimationFrame(() => { if (frame.current) { frame.current.scrollTop = measures(log.current.total, frame.current.clientHeight).top(Math.max(1, line - AROUND)); setTop(frame.current.scrollTop); is.current.wanted = null; } });
  };
  const toEnd = () => { is.current.follows = true; setUnseen(0); requestAnimationFrame(() => { if (frame.current) frame.current.scrollTop = frame.current.scrollHeight; }); };
  const scrolled = () => {
    const { scrollTop, clientHeight, scrollHeight } = frame.current;
    is.current.follows = scrollTop + clientHeight >= scrollHeight - 4;
    if (is.current.follows) setUnseen(0);
    setTop(scrollTop);
  };
  const pick = (n, isMore) => {
    const range = isMore && selected ? [Math.min(selected[0], n), Math.max(selected[0], n)] : [n, n];
    select(range);
    if (isFull) history.replaceState(null, "", hashOf(range));
  };
  const hashOf = ([from, to]) => `#L${from}${to > from ? `-L${to}` : ""}`;
  const query = new URLSearchParams({ step: task.task_key, attempt });
  const linkOf = (range) => place(`/jobs/${job.id}/log?${query}${hashOf(range)}`);
  const jump = (line) => { goTo(line); pick(line, false); };
  const find = async (event) => {
    event.preventDefault();
    looking.current?.abort();
    const text = new FormData(event.target).get("sought");
    if (!text) return setSearch({ text: "", hits: [], share: 0, isDone: true, at: -1, problem: null });
    if (text === search.text && search.isDone) return hop(1);
    const abort = (looking.current = new AbortController());
    setSearch({ text, hits: [], share: 0, isDone: false, at: -1, problem: null });
    let isFirst = true;
    try {
      await searched(path, { text }, (found) => {
        setSearch((before) => ({ ...before, ...found, hits: [...found.hits] }));
        if (isFirst && found.hits.length) { isFirst = false; jump(found.hits[0]); setSearch((before) => ({ ...before, at: 0 })); }
      }, abort.signal);
    } catch (problem) {
      if (problem.name !== "AbortError") setSearch((before) => ({ ...before, isDone: true, problem }));
    }
    return undefined;
  };
  const hop = (step) => {
    const at = nextOf(search.hits, selected?.[0] ?? (step > 0 ? 0 : total + 1), step);
    if (at >= 0) { jump(search.hits[at]); setSearch((before) => ({ ...before, at })); }
  };
  const error = (step) => { const at = nextOf(errors, selected?.[0] ?? 0, step); if (at >= 0) jump(errors[at]); };
  const errorAt = selected ? errors.indexOf(selected[0]) : -1;
  const press = (event) => {
    if (event.target.closest("input, select, textarea") || event.metaKey || event.ctrlKey || event.altKey) return;
    if (event.key === "e" || event.key === "E") error(event.key === "e" ? 1 : -1);
    else if (event.key === "f") toEnd();
    else if (event.key === "n" || event.key === "N") hop(event.key === "n" ? 1 : -1);
    else return;
    event.stopPropagation();
  };
  const hits = new Set(search.hits.length < 20_000 ? search.hits : search.hits.filter((n) => n >= first && n <= last));
  const began = Date.parse(task.claimed_at ?? job.created_at);
  const one = selected && selected[0] === selected[1] ? log.current.line(selected[0]) : null;
  const rows = [];
  for (let n = first; n <= last; n++) rows.push(n);
  return html`<section class=${`logview${isFull ? " full" : ""}`} aria-label=${`Log of ${task.task_key}, attempt ${attempt}`} onKeyDown=${press}>
    <div class="log-tools">
      <form role="search" onSubmit=${find}><input name="sought" type="search" aria-label="Search the whole log" placeholder="Search the whole log" />
        ${search.text && html`<span class="small" role="status">${search.isDone ? "" : `${Math.round(search.share * 100)} %, `}${search.hits.length ? `${search.at + 1 || "–"} of ${search.hits.length.toLocaleString()}` : search.isDone ? "no line has it" : "none yet"}</span>
          <button type="button" aria-label="Previous hit" disabled=${!search.hits.length} onClick=${() => hop(-1)}>↑</button><button type="button" aria-label="Next hit" disabled=${!search.hits.length} onClick=${() => hop(1)}>↓</button>`}</form>
      ${errors.length > 0 && html`<span class="pair" role="group" aria-label="Errors"><button aria-label="Previous error" onClick=${() => error(-1)}>◀</button><span class="small error-ink">error ${errorAt >= 0 ? errorAt + 1 : "–"} of ${errors.length >= 1000 ? "1,000+" : errors.length}</span><button aria-label="Next error" onClick=${() => error(1)}>▶</button></span>`}
      <form class="jump" onSubmit=${(event) => { event.preventDefault(); const n = Number(new FormData(event.target).get("line")); if (n >= 1) jump(Math.min(n, total)); }}><input name="line" type="number" min="1" max=${total || undefined} aria-label="Go to line" placeholder="line" /></form>
      <label><span class="visually-hidden">Times of lines</span><select value=${times} onChange=${(event) => setTimes(event.target.value)}><option value="none">no times</option><option value="since">since its start</option><option value="clock">by the clock</option></select></label>
      <button onClick=${toEnd} aria-pressed=${is.current.follows}>${log.current.isComplete ? "End" : "Follow"}</button>
      <a class="button" href=${place(`/api/v1${path}/raw`)} download>Download</a>
      ${search.text && html`<a class="button" href=${place(`/api/v1${path}/raw?q=${encodeURIComponent(search.text)}`)} download>Download hits</a>`}</div>
    <${Trouble} problem=${log.current.problem ?? search.problem} again=${log.current.problem && (() => log.current.refresh())} />
    <div class="log-room"><div class="log-frame" ref=${frame} onScroll=${scrolled} tabindex="0" role="log" aria-live="off" aria-label=${`Lines ${first} to ${last} of ${total}`}>
        <div class="log-height" data-empty=${total ? undefined : ""} style=${{ height: `${sizes.height}px` }}><div class="log-lines" style=${{ transform: `translateY(${sizes.offset(top, first)}px)` }}>
          ${total > 0 && rows.map((n) => html`<${Line} key=${n} n=${n} line=${log.current.line(n)} times=${times} began=${began} isHit=${hits.has(n)} isSelected=${selected && n >= selected[0] && n <= selected[1]} href=${(at) => linkOf([at, at])} pick=${pick} />`)}</div></div></div>
      ${total > 0 && html`<${Strip} total=${total} errors=${errors} hits=${search.hits} goTo=${goTo} />`}
      ${unseen > 0 && html`<button class="unseen primary" onClick=${toEnd}>${unseen.toLocaleString()} new lines ↓</button>`}</div>
    <div class="log-foot small muted">${log.current.isLoaded && (total ? html`<span>${total.toLocaleString()} lines${log.current.isComplete ? "" : ", and it goes on"}</span>` : html`<${Nothing}>Nothing was written.<//>`)}
      ${selected && html`<span>${selected[1] > selected[0] ? `lines ${selected[0]} to ${selected[1]}` : `line ${selected[0]}`}</span><${Copy} label="Copy link" text=${new URL(linkOf(selected), location.href).href} />
        <${Copy} label="Copy text" text=${copied(log.current, selected)} />`}</div>
    ${one && html`<div class="log-one" aria-label="The line that is selected" role="region" tabindex="0"><div class="muted small"><${At} at=${one.ts} /> ${one.level}${one.stream ? ` ${one.stream}` : ""}</div>
      <pre dir="ltr">${visible((one.text ?? "").slice(0, MOST_SHOWN))}${(one.text ?? "").length > MOST_SHOWN ? "…" : ""}</pre>${one.data && html`<${Json} value=${one.data} />`}</div>`}</section>`;
}

function copied(log, [from, to]) {
  const lines = [];
  for (let n = from; n <= Math.min(to, from + 2_000); n++) if (log.line(n)) lines.push((log.line(n).text ?? "").slice(0, MOST_SHOWN));
  return lines.join("\n");
}
