// Small parts that every page uses.
import { html, useEffect, useRef, useState } from "../html.js";
import { ago, exact, hover } from "../time.js";
import { place } from "../api.js";

const GLYPHS = {
  queued: "○", starting: "◔", running: "▶", done: "✓", error: "✕", backoff: "↻", cancelled: "⊘", skipped: "⇢",
  asleep: "☾", waking: "☼", booting: "◐", awake: "●", ready: "●", idle: "●", busy: "◆", failed: "!", away: "!", unknown: "?",
  drained: "‖", paused: "‖", quarantined: "⚠",
};

/** A state is a glyph, a word and a colour, always all three. */
export const State = ({ of, word = of }) =>
  html`<span class="state" data-state=${of}><span class="glyph" aria-hidden="true">${GLYPHS[of] ?? "·"}</span>${word}</span>`;

export const When = ({ at }) => (at ? html`<time datetime=${at} title=${hover(at)}>${ago(at)}</time>` : null);
export const At = ({ at }) => (at ? html`<time datetime=${at} title=${hover(at)}>${exact(at)}</time>` : null);
export const short = (id) => id.slice(-8);
export const JobLink = ({ id, tab }) => html`<a class="mono" href=${place(`/jobs/${id}${tab ? `?tab=${tab}` : ""}`)} title=${id}>${short(id)}</a>`;

export const Meter = ({ part, label }) =>
  html`<div class="meter" role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(part * 100)}>
    <div style=${{ width: `${Math.max(0, Math.min(1, part)) * 100}%` }}></div></div>`;

export const Nothing = ({ children }) => html`<p class="nothing">${children}</p>`;

export const Trouble = ({ problem, again }) => problem && html`<div class="problem" role="alert">
  <strong>${problem.message}</strong>
  ${problem.hint && html`<div>${problem.hint}</div>`}
  <div class="small muted">${problem.requestId && `request ${problem.requestId}`}</div>
  ${again && html`<button onClick=${again}>Try again</button>`}</div>`;

/** Over plain HTTP a browser has no clipboard API: then by a selection. */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = Object.assign(document.createElement("textarea"), { value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  return undefined;
}

export function Copy({ text, label = "Copy" }) {
  const [done, set] = useState(false);
  const press = () => copy(text).then(() => { set(true); setTimeout(() => set(false), 1500); });
  return html`<button class="plain small" onClick=${press} aria-label=${text.length > 120 ? label : `${label}: ${text}`}>${done ? "Copied" : label}</button>`;
}

export const Json = ({ value }) => html`<pre class="mono">${JSON.stringify(value, null, 2)}</pre>`;

export const Facts = ({ of }) => html`<dl class="facts">${of.filter(([, value]) => value !== null && value !== undefined && value !== "").map(
  ([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

export const Tabs = ({ of, now, href }) => html`<nav class="tabs" aria-label="Parts of this page">${of.map(
  ([key, word]) => html`<a key=${key} href=${href(key)} aria-current=${key === now ? "true" : undefined}>${word}</a>`)}</nav>`;

/** What may be larger than its place scrolls by itself; then the keyboard reaches it, too. */
export function Scrolls({ label, kind = "scrolls", children }) {
  const place_ = useRef(null);
  const [overflows, set] = useState(false);
  useEffect(() => {
    const shown = place_.current;
    const watch = new ResizeObserver(() => set(shown.scrollWidth > shown.clientWidth + 1 || shown.scrollHeight > shown.clientHeight + 1));
    for (const each of [shown, ...shown.children]) watch.observe(each);
    return () => watch.disconnect();
  }, []);
  const reached = overflows ? { tabIndex: 0, role: "region", "aria-label": label } : {};
  return html`<div class=${kind} ref=${place_} ...${reached}>${children}</div>`;
}

/** Rows that a click or Enter opens. `columns`: [heading, cell(row), class]. */
export function Table({ label, rows, columns, keyOf, opens, selected }) {
  return html`<${Scrolls} label=${label}><table aria-label=${label}>
    <thead><tr>${columns.map(([heading, , kind]) => html`<th key=${heading} scope="col" class=${kind}>${heading}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${keyOf(row)} class=${opens ? "opens" : ""} data-key=${keyOf(row)}
        aria-selected=${selected === undefined ? undefined : selected === keyOf(row)}
        onClick=${opens && ((event) => { if (!event.target.closest("a, button, input")) opens(row); })}>
      ${columns.map(([heading, cell, kind]) => html`<td key=${heading} class=${kind} data-label=${typeof heading === "string" ? heading : undefined}>${cell(row)}</td>`)}</tr>`)}</tbody>
  </table><//>`;
}
