// A table of any number of rows, of which only those in view are in the page; a short one is an ordinary table.
import { html, useEffect, useRef, useState } from "../html.js";
import { Scrolls } from "./parts.js";

const MANY = 120, MORE = 15; // rows; and how many above and below the view
const ROW = { compact: 29, comfortable: 37 }; // with its line

/**
 * columns: [heading, cell(row), class, width]. `opens(row)`: a click on the row; its first link serves the keyboard.
 * `note(row)` is a class of the row. The heading may be a component.
 */
export function Rows({ label, rows, columns, keyOf, opens, selected, note, height = "70vh" }) {
  const frame = useRef(null);
  const isMany = rows.length > MANY;
  const [from, setFrom] = useState(0);
  const size = ROW[document.documentElement.dataset.density] ?? ROW.compact;
  const [shown, setShown] = useState(60);
  useEffect(() => {
    if (!isMany) return undefined;
    const look = () => { setFrom(Math.max(0, Math.floor(frame.current.scrollTop / size) - MORE)); setShown(Math.ceil(frame.current.clientHeight / size) + 2 * MORE); };
    frame.current.addEventListener("scroll", look);
    look();
    return () => frame.current?.removeEventListener("scroll", look);
  }, [isMany, size]);
  useEffect(() => { // what is selected is brought into view, once
    const n = isMany && selected !== undefined ? rows.findIndex((row) => keyOf(row) === selected) : -1;
    if (n >= 0 && (n * size < frame.current.scrollTop || n * size > frame.current.scrollTop + frame.current.clientHeight - 3 * size)) frame.current.scrollTop = n * size - frame.current.clientHeight / 2;
  }, [selected, isMany]);
  const first = isMany ? Math.min(from, Math.max(0, rows.length - shown)) : 0;
  const slice = isMany ? rows.slice(first, first + shown) : rows;
  const space = (count) => html`<tr class="space" aria-hidden="true" style=${{ height: `${count * size}px` }}><td colspan=${columns.length}></td></tr>`;
  const table = html`<table aria-label=${label} aria-rowcount=${isMany ? rows.length + 1 : undefined}>
    <thead><tr aria-rowindex=${isMany ? 1 : undefined}>${columns.map(([heading, , kind, width], n) => html`<th key=${n} class=${kind} scope="col" style=${width ? { width } : undefined}>${heading}</th>`)}</tr></thead>
    <tbody>${isMany && first > 0 && space(first)}
    ${slice.map((row, n) => html`<tr key=${keyOf(row)} class=${`${opens ? "opens" : ""} ${note?.(row) ?? ""}`} data-key=${keyOf(row)} aria-rowindex=${isMany ? first + n + 2 : undefined}
        aria-selected=${selected === undefined ? undefined : selected === keyOf(row)}
        onClick=${opens && ((event) => { if (!event.target.closest("a, button, input, select") && !String(getSelection())) opens(row); })}>
      ${columns.map(([, cell, kind], column) => html`<td key=${column} class=${kind}>${cell(row)}</td>`)}</tr>`)}
    ${isMany && first + shown < rows.length && space(rows.length - first - shown)}</tbody></table>`;
  if (!isMany) return html`<${Scrolls} label=${label}>${table}<//>`;
  return html`<div class="scrolls many" ref=${frame} tabindex="0" role="region" aria-label=${`${label}, scrolls`} style=${{ maxHeight: height }}>${table}</div>`;
}
