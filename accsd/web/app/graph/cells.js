// The tasks of a node that stands for many, a small square each.
import { html, useEffect, useRef, useState } from "../html.js";
import { ORDER, shownState } from "./states.js";

const CELL = 12, SQUARE = 10;

export function Cells({ tasks, stateOf = shownState, selected, open, close, name }) {
  const canvas = useRef(null);
  const [at, goTo] = useState(Math.max(0, tasks.findIndex((task) => task.task_key === selected)));
  const [columns, setColumns] = useState(60);
  const rows = Math.ceil(tasks.length / columns);
  useEffect(() => {
    const room = canvas.current.parentElement;
    const seen = new ResizeObserver(() => setColumns(Math.max(8, Math.floor(room.clientWidth / CELL))));
    seen.observe(room);
    return () => seen.disconnect();
  }, []);
  useEffect(() => {
    const dots = devicePixelRatio || 1, pen = canvas.current.getContext("2d"), style = getComputedStyle(canvas.current);
    Object.assign(canvas.current, { width: columns * CELL * dots, height: rows * CELL * dots });
    pen.scale(dots, dots);
    const colours = Object.fromEntries(ORDER.map((state) => [state, painted(canvas.current, `--${state}`)]));
    tasks.forEach((task, n) => {
      pen.fillStyle = colours[stateOf(task)] ?? colours.queued;
      pen.fillRect((n % columns) * CELL + 1, Math.floor(n / columns) * CELL + 1, SQUARE, SQUARE);
    });
    pen.strokeStyle = style.color;
    pen.lineWidth = 2;
    pen.strokeRect((at % columns) * CELL, Math.floor(at / columns) * CELL, CELL, CELL);
  });
  const press = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -tasks.length, End: tasks.length }[event.key];
    if (step) { event.preventDefault(); goTo(Math.max(0, Math.min(tasks.length - 1, at + step))); }
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(tasks[at]); }
    if (event.key === "Escape") close();
  };
  const click = (event) => {
    const n = Math.floor(event.offsetY / CELL) * columns + Math.floor(event.offsetX / CELL);
    if (tasks[n]) { goTo(n); open(tasks[n]); }
  };
  const now = tasks[at];
  return html`<section class="cells" aria-label=${`The tasks of ${name}`}>
    <header><strong>${name}</strong><span class="muted" role="status">${now && `${now.task_key}: ${stateOf(now)}${now.error_message ? `, ${now.error_message}` : ""}`}</span><span class="grow"></span><button class="plain" onClick=${close}>Fold</button></header>
    <div class="cells-room"><canvas ref=${canvas} tabindex="0" role="application" aria-label=${`${tasks.length} tasks. Arrow keys go from one to the next, Enter opens one`} onKeyDown=${press} onClick=${click}
      style=${{ width: `${columns * CELL}px`, height: `${rows * CELL}px` }}></canvas></div></section>`;
}

function painted(element, name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  element.parentElement.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
