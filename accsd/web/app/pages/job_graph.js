// The steps as a graph: folded to what differs, moved through by the arrow keys, the same at every state of its tasks.
import { html, useEffect, useMemo, useRef, useState } from "../html.js";
import { Canvas, centre } from "../graph/canvas.js";
import { Cells } from "../graph/cells.js";
import { Drawn } from "../graph/draw.js";
import { fold } from "../graph/fold.js";
import { layOut } from "../graph/layout.js";
import { shownState } from "../graph/states.js";

const MOST_DRAWN = 400; // nodes of SVG; more are drawn on a canvas
const MOST_APART = 12; // failures that stand outside of what is folded
const MANY = 60;
const SCALES = [0.15, 0.25, 0.35, 0.5, 0.7, 0.85, 1, 1.25, 1.5];

/** `structure` changes when the steps are others; `given`: {nodes, split} where the gateway has folded them; `select(key)` is called for the step that a person opens. */
export function Graph({ tasks, structure, given, selected, select, stateOf = shownState, label = "The steps and what they wait for; the tab Steps has them as a table" }) {
  const [isFolded, setFolded] = useState(true);
  const [unfolded, unfold] = useState(null); // the key of a node whose tasks are shown as cells
  const [zoom, setZoom] = useState(null);
  const [current, setCurrent] = useState(null);
  const room = useRef(null);
  const isDown = useMemo(() => matchMedia("(max-width: 720px)").matches, []);
  const failed = tasks.filter((task) => stateOf(task) === "error").slice(0, MOST_APART).map((task) => task.task_key);
  const apart = [...new Set(selected ? [selected, ...failed] : failed)].join("\n");
  const { nodes, at } = useMemo(() => {
    const known = given && new Set(tasks.map((task) => task.task_key)), alone = new Set(apart.split("\n"));
    const folded = given ? given.split(given.nodes, alone, (task) => known.has(task.task_key)) : fold(tasks, { isFolded, apart: alone });
    return { nodes: folded, at: layOut(folded, { isDown }) };
  }, [structure, isFolded, apart, isDown]);
  const byKey = new Map(tasks.map((task) => [task.task_key, task]));
  const taskOf = (task) => byKey.get(task.task_key) ?? task;
  const isLarge = nodes.length > MOST_DRAWN;
  const key = nodes.some((node) => node.key === current) ? current : (nodes.find((node) => node.key === selected) ?? nodes[0])?.key;
  const fitting = () => Math.max(SCALES[0], Math.min(1, (room.current?.clientWidth ?? 1000) / (at.width + 24), 2 * (room.current?.clientHeight ?? 600) / (at.height + 24)));
  const scale = zoom ?? (isLarge ? 0.5 : Math.max(0.5, fitting()));
  useEffect(() => { setZoom(null); }, [structure, isFolded]);
  useEffect(() => follow(room.current, nodes, at, scale, taskOf, stateOf), [structure, isFolded]);
  const nearest = (step) => setZoom(SCALES.reduce((best, each) => (Math.sign(each - scale) === step && Math.abs(each - scale) < Math.abs(best - scale) ? each : best), step > 0 ? SCALES.at(-1) : SCALES[0]));
  const move = (way) => {
    const to = beside(nodes, at, nodes.find((node) => node.key === key), way, isDown);
    setCurrent(to.key);
    return to.key;
  };
  const open = (node) => {
    setCurrent(node.key);
    if (node.isFolded) unfold(node.key);
    else select(node.tasks[0].task_key);
  };
  const shared = { nodes, at, scale, isDown, taskOf, stateOf, selected, current: key, move, open, label };
  const cells = unfolded && nodes.find((node) => node.key === unfolded && node.isFolded);
  const hidden = tasks.length - nodes.length;
  return html`<div class="graph-tools"><button onClick=${() => nearest(-1)} aria-label="Smaller">−</button><button onClick=${() => nearest(1)} aria-label="Larger">+</button>
      <button onClick=${() => setZoom(fitting())}>Fit</button>
      ${!given && (hidden > 0 || !isFolded) && html`<label class="check"><input type="checkbox" checked=${isFolded} onChange=${(event) => { setFolded(event.target.checked); unfold(null); }} />Fold what is alike</label>`}
      <span class="muted small">${tasks.length.toLocaleString()} steps${hidden > 0 ? ` as ${nodes.length.toLocaleString()} nodes` : ""}</span></div>
    <div class="graph" ref=${room} data-large=${isLarge ? "" : undefined}>${isLarge ? html`<${Canvas} ...${shared} />` : html`<${Drawn} ...${shared} />`}</div>
    ${nodes.length > MANY && html`<${Minimap} nodes=${nodes} at=${at} scale=${scale} room=${room} isLarge=${isLarge} />`}
    ${cells && html`<${Cells} key=${cells.key} tasks=${cells.tasks.map(taskOf)} stateOf=${stateOf} selected=${selected} name=${`${cells.tasks[0].service} ×${cells.tasks.length.toLocaleString()}`}
      open=${(task) => select(task.task_key)} close=${() => unfold(null)} />`}`;
}

/** What runs, or else what failed, is brought into view once. */
function follow(room, nodes, at, scale, taskOf, stateOf) {
  if (!room) return;
  const has = (state) => nodes.find((node) => node.tasks.some((task) => stateOf(taskOf(task)) === state));
  const node = has("error") ?? has("running") ?? (nodes.length > MOST_DRAWN ? nodes[0] : null);
  const frame = room.querySelector(".graph-canvas") ?? room;
  if (node) centre(frame, at.places.get(node), scale);
}

function beside(nodes, at, node, way, isDown) {
  const towards = isDown ? { up: "before", down: "after", left: "less", right: "more" } : { left: "before", right: "after", up: "less", down: "more" };
  const here = at.places.get(node), main = isDown ? "y" : "x", cross = isDown ? "x" : "y";
  const near = (found) => found.reduce((best, each) => (!best || Math.abs(at.places.get(each)[cross] - here[cross]) < Math.abs(at.places.get(best)[cross] - here[cross]) ? each : best), null);
  switch (towards[way]) {
    case "before": return near([...node.parents]) ?? node;
    case "after": return near(nodes.filter((each) => each.parents.has(node))) ?? node;
    default: {
      const isMore = towards[way] === "more";
      const column = nodes.filter((each) => at.places.get(each)[main] === here[main] && (isMore ? at.places.get(each)[cross] > here[cross] : at.places.get(each)[cross] < here[cross]));
      return near(column) ?? node;
    }
  }
}

const MAP = { width: 160, height: 90 };

/** The whole in a corner, and what of it is in view; a click goes there. */
function Minimap({ nodes, at, scale, room, isLarge }) {
  const canvas = useRef(null);
  const fits = Math.min(MAP.width / at.width, MAP.height / at.height);
  const frame = () => (isLarge ? room.current?.querySelector(".graph-canvas") : room.current);
  useEffect(() => {
    const scrolls = frame();
    const draw = () => {
      const pen = canvas.current.getContext("2d");
      pen.clearRect(0, 0, MAP.width, MAP.height);
      pen.fillStyle = "rgb(130 140 155)";
      for (const { x, y } of at.places.values()) pen.fillRect(x * fits, y * fits, Math.max(1, 184 * fits), Math.max(1, 44 * fits));
      pen.strokeStyle = getComputedStyle(canvas.current).color;
      pen.lineWidth = 1.5;
      pen.strokeRect((scrolls.scrollLeft / scale) * fits, (scrolls.scrollTop / scale) * fits, (scrolls.clientWidth / scale) * fits, (scrolls.clientHeight / scale) * fits);
    };
    scrolls.addEventListener("scroll", draw);
    draw();
    return () => scrolls.removeEventListener("scroll", draw);
  }, [at, scale, isLarge]);
  const go = (event) => frame().scrollTo({ left: (event.offsetX / fits) * scale - frame().clientWidth / 2, top: (event.offsetY / fits) * scale - frame().clientHeight / 2 });
  return html`<canvas class="minimap wide-only" ref=${canvas} width=${MAP.width} height=${MAP.height} aria-hidden="true" onClick=${go} data-nodes=${nodes.length}></canvas>`;
}
