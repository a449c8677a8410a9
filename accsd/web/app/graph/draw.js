// A graph as SVG: every node can be reached by the arrow keys, and says its name, state and numbers.
import { html, useRef } from "../html.js";
import { SIZE } from "./layout.js";
import { GLYPHS, told } from "./states.js";

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** `at`: what layOut said. `current`: the key of the node that the keys are at. */
export function Drawn({ nodes, at, scale, isDown, taskOf, stateOf, selected, current, move, open, label }) {
  const frame = useRef(null);
  const width = at.width + 8, height = at.height + 8;
  const press = (event) => {
    const to = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" }[event.key];
    if (to) {
      event.preventDefault();
      const key = move(to);
      requestAnimationFrame(() => frame.current?.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus());
    }
  };
  return html`<svg ref=${frame} width=${width * scale} height=${height * scale} viewBox=${`-4 -4 ${width} ${height}`} role="group" aria-label=${label} onKeyDown=${press}>
    <g aria-hidden="true">${at.edges.map((edge, n) => html`<path key=${n} d=${curve(edge.points, isDown)} data-near=${edge.from.key === current || edge.to.key === current ? "" : undefined} />`)}</g>
    ${nodes.map((node) => html`<${Node} key=${node.key} node=${node} place=${at.places.get(node)} said=${told(node, taskOf, stateOf)}
      isSelected=${!node.isFolded && node.key === selected} isCurrent=${node.key === current} open=${() => open(node)} />`)}</svg>`;
}

function Node({ node, place, said, isSelected, isCurrent, open }) {
  const { x, y } = place;
  const press = (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); } };
  return html`<g class="node" data-state=${said.state} data-key=${node.key} data-folded=${node.isFolded ? "" : undefined} role="button" tabindex=${isCurrent ? 0 : -1} aria-pressed=${isSelected}
      aria-label=${`${said.name}: ${said.words}`} onClick=${open} onKeyDown=${press}>
    <title>${`${said.name}: ${said.words}`}</title>
    ${node.isFolded && html`<rect class="behind" x=${x + 4} y=${y + 4} width=${SIZE.width} height=${SIZE.height} rx="6" />`}
    <rect x=${x} y=${y} width=${SIZE.width} height=${SIZE.height} rx="6" />
    <text class="glyph" x=${x + 10} y=${y + 18}>${GLYPHS[said.state] ?? "·"} </text>
    <text x=${x + 26} y=${y + 18}>${cut(said.name, 22)} </text>
    ${node.isFolded ? html`<${Bar} counts=${said.counts} x=${x + 10} y=${y + 26} /><text class="words" x=${x + 10} y=${y + 40}>${cut(said.words, 30)}</text>`
      : html`<text class="words" x=${x + 26} y=${y + 34}>${cut(said.words, 25)}</text>`}</g>`;
}

/** How many of the tasks are in which state, as a bar. */
function Bar({ counts, x, y }) {
  const width = SIZE.width - 20, all = counts.reduce((sum, [, n]) => sum + n, 0);
  let from = 0;
  return counts.map(([state, n]) => {
    const left = from;
    from += n;
    return html`<rect class="part" key=${state} data-fill=${state} x=${x + (left / all) * width} y=${y} width=${Math.max(1, (n / all) * width)} height="4" />`;
  });
}

export function curve(points, isDown) {
  let way = `M${points[0].x} ${points[0].y}`;
  for (let n = 1; n < points.length; n++) {
    const a = points[n - 1], b = points[n];
    if (n % 2 === 0) way += `L${b.x} ${b.y}`; // within a lane
    else if (isDown) way += `C${a.x} ${(a.y + b.y) / 2} ${b.x} ${(a.y + b.y) / 2} ${b.x} ${b.y}`;
    else way += `C${(a.x + b.x) / 2} ${a.y} ${(a.x + b.x) / 2} ${b.y} ${b.x} ${b.y}`;
  }
  return way;
}
