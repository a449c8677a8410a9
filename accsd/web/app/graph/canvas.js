// A graph of more than some hundred nodes, on a canvas of the size of the window: only what is in view is drawn.
import { html, useEffect, useRef } from "../html.js";
import { SIZE } from "./layout.js";
import { GLYPHS, told } from "./states.js";

const CELL = 400; // of the grid by which nodes in view, or under the pointer, are found

/** Nodes by the cell of a grid that they begin in. */
export function gridOf(nodes, at) {
  const cells = new Map();
  for (const node of nodes) {
    const { x, y } = at.places.get(node);
    const cell = `${Math.floor(x / CELL)} ${Math.floor(y / CELL)}`;
    (cells.get(cell) ?? cells.set(cell, []).get(cell)).push(node);
  }
  return cells;
}

export function within(cells, at, { left, top, right, bottom }) {
  const found = [];
  for (let column = Math.floor((left - SIZE.width) / CELL); column <= Math.floor(right / CELL); column++)
    for (let row = Math.floor((top - SIZE.height) / CELL); row <= Math.floor(bottom / CELL); row++)
      for (const node of cells.get(`${column} ${row}`) ?? []) {
        const { x, y } = at.places.get(node);
        if (x < right && x + SIZE.width > left && y < bottom && y + SIZE.height > top) found.push(node);
      }
  return found;
}

export function Canvas({ nodes, at, scale, taskOf, stateOf, selected, current, move, open, label }) {
  const frame = useRef(null), canvas = useRef(null), cells = useRef(null);
  const is = useRef({});
  is.current = { nodes, at, scale, taskOf, stateOf, selected, current };
  if (cells.current?.of !== at) cells.current = { of: at, cells: gridOf(nodes, at) };
  const draw = () => canvas.current && paint(canvas.current, frame.current, cells.current.cells, is.current);
  useEffect(() => {
    let planned = 0;
    const soon = () => { planned ||= requestAnimationFrame(() => { planned = 0; draw(); }); };
    const seen = new ResizeObserver(soon);
    seen.observe(frame.current);
    frame.current.addEventListener("scroll", soon);
    const themes = new MutationObserver(soon);
    themes.observe(document.documentElement, { attributes: true });
    return () => { seen.disconnect(); themes.disconnect(); cancelAnimationFrame(planned); };
  }, []);
  useEffect(draw);
  useEffect(() => { // what the keys are at is brought into view
    const node = nodes.find((each) => each.key === current);
    if (node && document.activeElement === frame.current) centre(frame.current, at.places.get(node), scale);
  }, [current]);
  const press = (event) => {
    const to = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" }[event.key];
    if (to) { event.preventDefault(); move(to); }
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      const node = nodes.find((each) => each.key === current);
      if (node) open(node);
    }
  };
  const click = (event) => {
    const box = frame.current.getBoundingClientRect();
    const x = (event.clientX - box.left + frame.current.scrollLeft) / scale - 4, y = (event.clientY - box.top + frame.current.scrollTop) / scale - 4;
    const [node] = within(cells.current.cells, at, { left: x, right: x + 1, top: y, bottom: y + 1 });
    if (node) open(node);
  };
  const now = nodes.find((each) => each.key === current);
  const said = now && told(now, taskOf, stateOf);
  return html`<div class="graph-canvas" ref=${frame} tabindex="0" role="application" aria-label=${`${label}. Arrow keys go from step to step, Enter opens one`} onKeyDown=${press} onClick=${click}>
    <div class="room" style=${{ width: `${(at.width + 8) * scale}px`, height: `${(at.height + 8) * scale}px` }}></div>
    <canvas ref=${canvas} aria-hidden="true"></canvas>
    <span class="visually-hidden" aria-live="polite">${said && `${said.name}: ${said.words}`}</span></div>`;
}

export function centre(frame, { x, y }, scale) {
  frame.scrollTo({ left: (x + SIZE.width / 2) * scale - frame.clientWidth / 2, top: (y + SIZE.height / 2) * scale - frame.clientHeight / 2 });
}

function paint(canvas, frame, cells, { at, scale, taskOf, stateOf, selected, current }) {
  const width = frame.clientWidth, height = frame.clientHeight, dots = devicePixelRatio || 1;
  if (canvas.width !== width * dots || canvas.height !== height * dots) Object.assign(canvas, { width: width * dots, height: height * dots });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px`, transform: `translate(${frame.scrollLeft}px, ${frame.scrollTop}px)` });
  const pen = canvas.getContext("2d"), style = getComputedStyle(frame);
  const colour = (name) => style.getPropertyValue(name);
  const view = { left: frame.scrollLeft / scale - 4, top: frame.scrollTop / scale - 4 };
  view.right = view.left + width / scale;
  view.bottom = view.top + height / scale;
  pen.setTransform(dots * scale, 0, 0, dots * scale, -view.left * dots * scale, -view.top * dots * scale);
  pen.clearRect(view.left, view.top, view.right - view.left, view.bottom - view.top);
  pen.strokeStyle = resolved(frame, "--edge");
  pen.lineWidth = 1;
  pen.beginPath();
  for (const { points } of at.edges) {
    const a = points[0], b = points.at(-1);
    if (Math.max(a.x, b.x) < view.left || Math.min(a.x, b.x) > view.right || Math.max(a.y, b.y) < view.top || Math.min(a.y, b.y) > view.bottom) continue;
    pen.moveTo(a.x, a.y);
    pen.bezierCurveTo((a.x + b.x) / 2, a.y, (a.x + b.x) / 2, b.y, b.x, b.y);
  }
  pen.stroke();
  const hasWords = scale > 0.35;
  pen.font = "12px system-ui, sans-serif";
  for (const node of within(cells, at, view)) {
    const { x, y } = at.places.get(node), said = told(node, taskOf, stateOf);
    const ink = resolved(frame, `--${said.state}-ink`);
    pen.fillStyle = hasWords ? resolved(frame, "--surface") : resolved(frame, `--${said.state}`);
    pen.strokeStyle = node.key === current ? resolved(frame, "--accent") : ink;
    pen.lineWidth = node.key === current || node.key === selected ? 3 : 1.5;
    pen.beginPath();
    pen.roundRect(x, y, SIZE.width, SIZE.height, 6);
    pen.fill();
    pen.stroke();
    if (!hasWords) continue;
    pen.fillStyle = ink;
    pen.fillText(`${GLYPHS[said.state] ?? "·"}`, x + 10, y + 18);
    pen.fillText(said.words, x + 26, y + 34, SIZE.width - 34);
    pen.fillStyle = colour("color");
    pen.fillText(said.name, x + 26, y + 18, SIZE.width - 34);
  }
}

/** A canvas knows no light-dark(): the browser is asked what the colour is here. */
const known = new Map();
function resolved(frame, name) {
  const theme = `${getComputedStyle(document.body).backgroundColor} ${name}`;
  if (!known.has(theme)) {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    frame.append(probe);
    known.set(theme, getComputedStyle(probe).color);
    probe.remove();
  }
  return known.get(theme);
}
