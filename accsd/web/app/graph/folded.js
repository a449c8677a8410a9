// The graph of a job with too many tasks to read them all: the gateway has folded it, by the rules of fold.js.
import { LEAST } from "./fold.js";

/** Nodes of what the gateway has folded by the same rules; of their tasks only key, service and state are known. */
export function nodesOf({ nodes: given, letters }) {
  const nodes = given.map((each) => {
    const tasks = sketches(each, letters);
    return { key: tasks[0].task_key, tasks, parents: new Set(), isFolded: tasks.length > 1 };
  });
  given.forEach((each, n) => each.parents.forEach((parent) => nodes[n].parents.add(nodes[parent])));
  return nodes;
}

function sketches({ service, units, states }, letters) {
  const found = [];
  const add = (key, parent) => {
    const state = letters[states[found.length]], isWaiting = state === "backoff";
    found.push({ id: key, task_key: key, service, parent, status: isWaiting ? "queued" : state, hold: isWaiting ? state : null, depends_on: [], attempt_id: 0, isSketch: true });
  };
  for (const [key, items] of units) {
    add(key, null);
    for (let n = 0; n < items; n++) add(`${key}[${n}]`, key);
  }
  return found;
}

/** The same nodes with only the tasks that `isThere`, and those of `apart` as nodes of their own. */
export function split(nodes, apart, isThere) {
  const made = new Map(); // node → what it became
  for (const node of nodes) {
    const there = node.tasks.filter(isThere), takes = there.length >= LEAST ? (task) => apart.has(task.task_key) : () => false;
    const left = there.filter((task) => !takes(task));
    const pieces = [...(left.length ? [left] : []), ...there.filter(takes).map((task) => [task])];
    made.set(node, pieces.map((tasks, n) => ({ key: tasks[0].task_key, tasks, parents: new Set(), isFolded: tasks.length > 1 && (n === 0) })));
  }
  for (const [node, pieces] of made) for (const piece of pieces) for (const parent of node.parents) for (const above of made.get(parent)) piece.parents.add(above);
  return [...made.values()].flat();
}
