// Two images over one another, and a handle that says how much of which is seen: by pointer, finger and keys.
import { html, useState } from "../html.js";
import { Nothing } from "./parts.js";

/** `before` and `after`: {src, word}. */
export function Slider({ before, after, name }) {
  const [part, move] = useState(50);
  const [sizes, know] = useState({});
  const [broken, breaks] = useState(null);
  if (broken) return html`<${Nothing}>The image ${broken} can't be shown; each job's artifacts say why.<//>`;
  const seen = (side) => ({ target }) => know((known) => ({ ...known, [side]: `${target.naturalWidth} × ${target.naturalHeight}` }));
  const isOther = sizes.before && sizes.after && sizes.before !== sizes.after;
  return html`<figure class="slider"><div class="slides">
      <img src=${before.src} alt=${`${name}, before`} onLoad=${seen("before")} onError=${() => breaks("before")} />
      <img src=${after.src} alt=${`${name}, after`} onLoad=${seen("after")} onError=${() => breaks("after")} style=${{ clipPath: `inset(0 0 0 ${part}%)` }} />
      <b data-side="before" aria-hidden="true">before</b><b data-side="after" aria-hidden="true">after</b>
      <i aria-hidden="true" style=${{ left: `${part}%` }}></i>
      <input type="range" min="0" max="100" value=${part} aria-label=${`How much of ${name} is seen as it was before`} aria-valuetext=${`${part} % before, ${100 - part} % after`} onInput=${(event) => move(Number(event.target.value))} /></div>
    <figcaption class="small muted">${before.word} → ${after.word}${isOther ? `; ${sizes.before} → ${sizes.after} pixels` : ""}. Drag, or use the arrow keys.</figcaption></figure>`;
}
