// The lines of a log that are in view, and the strip beside them that shows where errors and hits are.
import { html, useEffect, useMemo, useRef } from "../html.js";
import { clock, duration } from "../time.js";
import { dressed, read } from "./ansi.js";

const TIMES = {
  none: () => "",
  since: (line, began) => duration((Date.parse(line.ts) - began) / 1000),
  clock: (line) => clock(line.ts),
};

/** What a line says; `show`: where there is more of it than fits. */
export function Said({ line, show }) {
  const said = useMemo(() => read(line.text ?? ""), [line]);
  return html`${said.repeats > 0 && html`<span class="again" title=${`${said.repeats + 1} states of one line`}>×${said.repeats + 1} </span>`}${said.pieces.map((piece, at) => html`<span key=${at} ...${dressed(piece.look)}>${piece.text}</span>`)}${
    said.isCut && (show ? html` <button class="link" onClick=${show}>… ${said.length.toLocaleString()} characters: show</button>` : "…")}`;
}

/** `leftOut`: how many lines above it a filter hides. */
export function Line({ n, line, times, began, isHit, isSelected, leftOut, href, pick }) {
  const click = (event) => {
    if (event.target.closest("a")) { if (event.shiftKey) { event.preventDefault(); pick(n, true); } else if (!event.metaKey && !event.ctrlKey) { event.preventDefault(); event.stopPropagation(); pick(n, false); } }
  };
  return html`<div class="line" data-level=${line?.level} data-n=${n} data-hit=${isHit ? "" : undefined} data-selected=${isSelected ? "" : undefined} data-gap=${leftOut ? "" : undefined} title=${leftOut ? `${leftOut.toLocaleString()} lines above are left out` : undefined} onClick=${click}>
    <a class="n" href=${href(n)} tabindex="-1" aria-hidden="true" aria-label=${`Line ${n}`}>${n}</a>${times !== "none" && html`<span class="ts">${line ? TIMES[times](line, began) : ""}</span>`}
    <span class="text" dir="ltr">${line ? html`<${Said} line=${line} show=${() => pick(n, false)} />` : "…"}</span></div>`;
}

export function Strip({ total, errors, hits, goTo }) {
  const canvas = useRef(null);
  useEffect(() => {
    const height = canvas.current.clientHeight, pen = canvas.current.getContext("2d");
    Object.assign(canvas.current, { width: 12, height });
    const mark = (lines, colour, left) => {
      pen.fillStyle = colour;
      const seen = new Set();
      for (const n of lines) {
        const y = Math.floor(((n - 1) / total) * (height - 2));
        if (!seen.has(y)) { seen.add(y); pen.fillRect(left, y, 6, 2); }
      }
    };
    mark(hits, "#f0a500", 6);
    mark(errors, "#d33327", 0);
  });
  const click = (event) => goTo(Math.max(1, Math.round((event.offsetY / canvas.current.clientHeight) * total)));
  return html`<canvas class="log-strip" ref=${canvas} aria-hidden="true" onClick=${click} title="errors red, hits amber"></canvas>`;
}
