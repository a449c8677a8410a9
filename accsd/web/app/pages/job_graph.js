// The steps as a graph. Steps that are alike (the same service, before and after the same steps) are one node, unless
// they failed; the layout depends on the structure alone, so that nothing moves when a state changes.
import { place } from "../api.js";
import { html, useMemo } from "../html.js";
import { shownState } from "./job_gantt.js";

const WIDTH = 180, HEIGHT = 40, ACROSS = 70, DOWN = 16;
const ORDER = ["error", "running", "starting", "backoff", "queued", "cancelled", "skipped", "done"];

/** Nodes of {key, tasks, parents}, each with the tasks that it stands for. */
export function fold(tasks) {
  const children = new Map(tasks.map((task) => [task.task_key, []]));
  for (const task of tasks) for (const parent of task.depends_on) children.get(parent)?.push(task.task_key);
  const groups = new Map();
  for (const task of tasks) {
    const alike = task.status === "error" ? `!${task.task_key}` : JSON.stringify([task.service, [...task.depends_on].sort(), [...children.get(task.task_key)].sort()]);
    if (!groups.has(alike)) groups.set(alike, []);
    groups.get(alike).push(task);
  }
  const nodeOf = new Map();
  const nodes = [...groups.values()].map((members) => {
    const node = { key: members[0].task_key, tasks: members, parents: new Set() };
    for (const task of members) nodeOf.set(task.task_key, node);
    return node;
  });
  for (const node of nodes) for (const task of node.tasks) for (const parent of task.depends_on) if (nodeOf.has(parent)) node.parents.add(nodeOf.get(parent));
  return nodes;
}

/** Gives each node its rank (the longest way to it) and its place within the rank (the mean of its parents' places). */
export function layOut(nodes) {
  const rank = new Map();
  const of = (node) => {
    if (!rank.has(node)) {
      rank.set(node, 0);
      rank.set(node, node.parents.size ? Math.max(...[...node.parents].map(of)) + 1 : 0);
    }
    return rank.get(node);
  };
  const columns = [];
  for (const node of nodes) (columns[of(node)] ??= []).push(node);
  const place_ = new Map();
  for (const column of columns) {
    const mean = (node) => (node.parents.size ? [...node.parents].reduce((sum, parent) => sum + place_.get(parent), 0) / node.parents.size : 0);
    column.sort((a, b) => mean(a) - mean(b));
    column.forEach((node, n) => place_.set(node, n));
  }
  return { rank, place: place_, width: columns.length, height: Math.max(1, ...columns.map((column) => column.length)) };
}

const worst = (members) => ORDER.find((state) => members.some((task) => shownState(task) === state)) ?? "queued";

export function Graph({ job, tasks }) {
  const shape = JSON.stringify(tasks.map((task) => [task.task_key, task.service, task.depends_on, task.status === "error"]));
  const { nodes, at } = useMemo(() => { const folded = fold(tasks); return { nodes: folded, at: layOut(folded) }; }, [shape]);
  const byKey = new Map(tasks.map((task) => [task.task_key, task]));
  const x = (node) => 12 + at.rank.get(node) * (WIDTH + ACROSS), y = (node) => 12 + at.place.get(node) * (HEIGHT + DOWN);
  return html`<div class="graph"><svg width=${24 + at.width * (WIDTH + ACROSS) - ACROSS} height=${24 + at.height * (HEIGHT + DOWN) - DOWN} role="group" aria-label="The steps and what they wait for; the tab Steps has them as a table">
    ${nodes.flatMap((node) => [...node.parents].map((parent) => {
      const x1 = x(parent) + WIDTH, y1 = y(parent) + HEIGHT / 2, x2 = x(node), y2 = y(node) + HEIGHT / 2, middle = (x1 + x2) / 2;
      return html`<path key=${`${parent.key} ${node.key}`} d=${`M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`} />`;
    }))}
    ${nodes.map((node) => {
      const members = node.tasks.map((task) => byKey.get(task.task_key) ?? task), state = worst(members);
      const counted = ORDER.map((each) => [each, members.filter((task) => shownState(task) === each).length]).filter(([, n]) => n);
      const name = members.length > 1 ? `${members[0].service} ×${members.length}` : members[0].task_key;
      const words = members.length > 1 ? counted.map(([each, n]) => `${n} ${each}`).join(", ") : `${state}${members[0].node ? ` on ${members[0].node}` : ""}`;
      return html`<a key=${node.key} href=${place(`/jobs/${job.id}?tab=log&step=${encodeURIComponent(members[0].task_key)}`)} data-state=${state} aria-label=${`${name}: ${words}`}>
        <title>${members.length > 1 ? members.slice(0, 30).map((task) => task.task_key).join(", ") : members[0].service}</title>
        <rect x=${x(node)} y=${y(node)} width=${WIDTH} height=${HEIGHT} rx="6" />
        <text x=${x(node) + 10} y=${y(node) + 17}>${cut(name)}</text><text x=${x(node) + 10} y=${y(node) + 32} class="small">${cut(words)}</text></a>`;
    })}</svg></div>`;
}

const cut = (text) => (text.length > 26 ? `${text.slice(0, 25)}…` : text);
