// The log of one attempt: addressed by line, however long it is; it follows its end until somebody scrolls up.
import { place } from "../api.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { subscribe } from "../live.js";
import { wraps } from "../prefs.js";
import { At, Copy, Json, Nothing, Trouble } from "../ui/parts.js";
import { visible } from "./ansi.js";
import { AROUND as AROUND_EACH, LEVELS, STREAMS, useFilter } from "./filter.js";
import { Line, Strip } from "./lines.js";
import { useScroll } from "./scroll.js";
import { nextOf, searched } from "./search.js";
import { LogWindow } from "./window.js";

const AROUND = 12; // lines above what is jumped to
const MOST_SHOWN = 100_000; // characters of one line that is shown whole

/** `#L1200` or `#L1200-L1210` of the address. */
export function linesOf(hash) {
  const found = /^#L(\d{1,15})(?:-L?(\d{1,15}))?$/.exec(hash);
  return found && [Number(found[1]), Number(found[2] ?? found[1])];
}

/** `isFull`: as high as the window, and its lines stand in the address unless it is only `isBeside` another; `handle`: for who scrolls it. */
export function LogViewer({ job, task, attempt, isFull = false, isBeside = false, handle }) {
  const path = `/tasks/${task.id}/attempts/${attempt}/log`;
  const hasAddress = isFull && !isBeside;
  const [, redraw] = useState(0);
  const [times, setTimes] = useState("none");
  const [selected, select] = useState(hasAddress ? linesOf(location.hash) : null);
  const [search, setSearch] = useState({ text: "", hits: [], share: 0, isDone: true, at: -1, problem: null });
  const [unseen, setUnseen] = useState(0); // lines that came while somebody read further up
  const log = useRef(null), seen = useRef(0), anchor = useRef(null);
  const looking = useRef(null);
  log.current ??= new LogWindow(path, () => redraw((n) => n + 1));
  const { total, errors } = log.current;
  const filter = useFilter(path, total);
  const { only } = filter;
  const scroll = useScroll({ count: only ? only.length : total, wraps: wraps.value, of: `${filter.chosen.level} ${filter.chosen.stream} ${filter.chosen.around}` });
  const { frame, sizes, top, first, last } = scroll;
  const lineAt = (row) => (only ? only[row - 1] : row);
  const shown = [];
  if (only ? only.length : total) for (let row = first; row <= last; row++) shown.push(lineAt(row));

  useEffect(() => {
    const sought = hasAddress && linesOf(location.hash);
    const failed = task.status === "error" || task.status === "cancelled";
    const asked = sought ? { from_line: Math.max(1, sought[0] - 200), limit: 500 } : failed ? { around: "first_error" } : { tail: 500 };
    log.current.begin(asked).then((found) => {
      if (sought) goTo(sought[0]);
      else if (failed && found.errors.length) { goTo(found.errors[0]); select([found.errors[0], found.errors[0]]); }
      else toEnd();
      handle?.current.opened?.();
    });
    const leave = subscribe([`log:${task.id}:${attempt}`], (kind, said) => {
      if (["hello", "reset", "back"].includes(kind)) log.current.refresh();
      else if (kind === "log" && said.task === task.id && said.attempt_id === attempt) log.current.hear(said);
    });
    return () => { leave(); looking.current?.abort(); };
  }, []);
  useEffect(() => { if (log.current.isLoaded) log.current.refresh(); }, [task.status]);
  useEffect(() => {
    if (!shown.length) return undefined;
    if (!only) { log.current.need(first - 60, last + 60); return undefined; }
    const planned = setTimeout(() => log.current.needEach(shown), 100);
    return () => clearTimeout(planned);
  }, [only, total, first, last, log.current.pages.size]);
  useEffect(() => { // what came is counted for who reads further up
    if (!scroll.is.follows && total > seen.current && seen.current) setUnseen((n) => n + total - seen.current);
    seen.current = total;
  }, [total]);
  useEffect(() => { // a filter leaves the eye where it was
    if (anchor.current !== null) scroll.goTo(filter.rowOf(anchor.current));
    if (filter.share === 1) anchor.current = null;
  }, [only, filter.share]);
  if (handle) Object.assign(handle.current, { path, at: () => log.current.line(lineAt(first)), goTo: (line) => scroll.goTo(filter.rowOf(line)) });

  const goTo = (line) => scroll.goTo(filter.rowOf(line) - (wraps.value ? 0 : AROUND));
  const toEnd = () => { setUnseen(0); scroll.toEnd(); };
  const scrolled = () => {
    scroll.scrolled();
    if (scroll.is.follows) setUnseen(0);
    handle?.current.moved?.();
  };
  const narrow = (changes) => { anchor.current = scroll.is.follows && first > 1 ? null : shown[0] ?? null; filter.choose(changes); };
  const pick = (n, isMore) => {
    const range = isMore && selected ? [Math.min(selected[0], n), Math.max(selected[0], n)] : [n, n];
    select(range);
    if (hasAddress) history.replaceState(null, "", hashOf(range));
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
      await searched(path, { q: text }, (found) => {
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
  const hits = new Set(search.hits.length < 20_000 ? search.hits : search.hits.filter((n) => n >= shown[0] && n <= shown.at(-1)));
  const began = Date.parse(task.claimed_at ?? job.created_at);
  const one = selected && selected[0] === selected[1] ? log.current.line(selected[0]) : null;
  const raw = new URLSearchParams([...filter.query, ...(search.text ? [["q", search.text]] : [])]);
  return html`<section class=${`logview${isFull ? " full" : ""}`} aria-label=${`Log of ${task.task_key}, attempt ${attempt}`} onKeyDown=${press}>
    <div class="log-tools">
      <form role="search" onSubmit=${find}><input name="sought" type="search" aria-label="Search the whole log" placeholder="Search the whole log" />
        ${search.text && html`<span class="small" role="status">${search.isDone ? "" : `${Math.round(search.share * 100)} %, `}${search.hits.length ? `${search.at + 1 || "–"} of ${search.hits.length.toLocaleString()}` : search.isDone ? "no line has it" : "none yet"}</span>
          <button type="button" aria-label="Previous hit" disabled=${!search.hits.length} onClick=${() => hop(-1)}>↑</button><button type="button" aria-label="Next hit" disabled=${!search.hits.length} onClick=${() => hop(1)}>↓</button>`}</form>
      ${errors.length > 0 && html`<span class="pair" role="group" aria-label="Errors"><button aria-label="Previous error" onClick=${() => error(-1)}>◀</button><span class="small error-ink">error ${errorAt >= 0 ? errorAt + 1 : "–"} of ${errors.length >= 1000 ? "1,000+" : errors.length}</span><button aria-label="Next error" onClick=${() => error(1)}>▶</button></span>`}
      <form class="jump" onSubmit=${(event) => { event.preventDefault(); const n = Number(new FormData(event.target).get("line")); if (n >= 1) jump(Math.min(n, total)); }}><input name="line" type="number" min="1" max=${total || undefined} aria-label="Go to line" placeholder="line" /></form>
      <label><span class="visually-hidden">Times of lines</span><select value=${times} onChange=${(event) => setTimes(event.target.value)}><option value="none">no times</option><option value="since">since its start</option><option value="clock">by the clock</option></select></label>
      <label><span class="visually-hidden">Levels of lines</span><select value=${filter.chosen.level} onChange=${(event) => narrow({ level: event.target.value })}>${Object.entries(LEVELS).map(([key, [word]]) => html`<option key=${key} value=${key}>${word}</option>`)}</select></label>
      <label><span class="visually-hidden">Output</span><select value=${filter.chosen.stream} onChange=${(event) => narrow({ stream: event.target.value })}>${Object.entries(STREAMS).map(([key, word]) => html`<option key=${key} value=${key}>${word}</option>`)}</select></label>
      ${filter.isOn && html`<label><span class="visually-hidden">Lines around each</span><select value=${filter.chosen.around} onChange=${(event) => narrow({ around: Number(event.target.value) })}>${AROUND_EACH.map((n) => html`<option key=${n} value=${n}>${n ? `and ${n} around` : "only these"}</option>`)}</select></label>
        <span class="small muted" role="status">${filter.share < 1 ? `${Math.round(filter.share * 100)} %, ` : ""}${filter.hits.length.toLocaleString()} of ${total.toLocaleString()} lines</span>`}
      <button onClick=${() => { wraps.value = !wraps.value; }} aria-pressed=${wraps.value}>Wrap</button>
      <button onClick=${toEnd} aria-pressed=${scroll.is.follows}>${log.current.isComplete ? "End" : "Follow"}</button>
      <a class="button" href=${place(`/api/v1${path}/raw`)} download>Download</a>
      ${raw.size > 0 && html`<a class="button" href=${place(`/api/v1${path}/raw?${raw}`)} download>Download these</a>`}</div>
    <${Trouble} problem=${log.current.problem ?? search.problem ?? filter.problem} again=${log.current.problem && (() => log.current.refresh())} />
    <div class="log-room"><div class="log-frame" ref=${frame} onScroll=${scrolled} tabindex="0" role="log" aria-live="off" aria-label=${`Lines ${shown[0] ?? 0} to ${shown.at(-1) ?? 0} of ${total}`}>
        ${filter.isOn && filter.share === 1 && !shown.length && total > 0 ? html`<${Nothing}>No line is like that.<//>` : null}
        <div class="log-height" data-empty=${total ? undefined : ""} data-wraps=${wraps.value ? "" : undefined} style=${{ height: `${sizes.height}px` }}><div class="log-lines" ref=${scroll.lines} style=${{ transform: `translateY(${sizes.offset(top, first)}px)` }}>
          ${shown.map((n, at) => html`<${Line} key=${n} n=${n} leftOut=${only && n - 1 - (at ? shown[at - 1] : lineAt(first - 1) ?? 0)} line=${log.current.line(n)} times=${times} began=${began} isHit=${hits.has(n)} isSelected=${selected && n >= selected[0] && n <= selected[1]} href=${(at) => linkOf([at, at])} pick=${pick} />`)}</div></div></div>
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
