// Which steps of a graph are shown as one. Pure: tasks in, nodes out.
//
// Steps are alike if they have the same service, come after the same steps and before the same steps; shards of equal
// chains are alike, too. The tasks of a step that was multiplied belong to it. What stands apart (a failure, what is
// selected) is a node of its own. The structure alone decides, so that nothing moves when a state changes.

export const LEAST = 4; // fewer are shown one by one
const ROUNDS = 6;

/** Nodes of {key, tasks, parents, isFolded}: `tasks` are those that it stands for, `parents` the nodes before it. */
export function fold(tasks, { apart = new Set(), isFolded = true } = {}) {
  const units = unitsOf(tasks);
  const groups = isFolded ? alike(units) : units.map((_, n) => [n]);
  return joined(units, groups, apart, isFolded);
}

/** A step with all tasks that it became: {key, service, tasks, before: numbers of units, after}. */
function unitsOf(tasks) {
  const byId = new Map(tasks.map((task) => [task.id, task]));
  const numbers = new Map(); // by the key of the step
  const units = [];
  for (const task of tasks) {
    const step = (task.parent && byId.get(task.parent)) || task;
    if (!numbers.has(step.task_key)) numbers.set(step.task_key, units.push({ key: step.task_key, service: step.service, tasks: [], depends: step.depends_on }) - 1);
    units[numbers.get(step.task_key)].tasks.push(task);
  }
  for (const unit of units) {
    unit.before = [...new Set(unit.depends)].map((key) => numbers.get(key)).filter((n) => n !== undefined);
    unit.after = [];
  }
  units.forEach((unit, n) => unit.before.forEach((parent) => units[parent].after.push(n)));
  return units;
}

/** Lists of numbers of units that are alike. Those that are few tell their neighbours apart in the next round. */
function alike(units) {
  const order = inOrder(units.map((unit) => unit.before), units.map((unit) => unit.after));
  let base = units.map((unit) => `s${unit.service}`);
  let groups = [];
  for (let round = 0; round < ROUNDS; round++) {
    const up = spread(order, units.map((unit) => unit.before), base);
    const down = spread([...order].reverse(), units.map((unit) => unit.after), base);
    groups = [...gathered(units.map((_, n) => `${up[n]} ${down[n]}`)).values()];
    const next = base.slice();
    for (const group of groups) if (group.length < LEAST) for (const n of group) next[n] = `#${n}`;
    if (next.every((each, n) => each === base[n])) break;
    base = next;
  }
  return groups.flatMap((group) => (group.length < LEAST ? group.map((n) => [n]) : [group])).sort((a, b) => a[0] - b[0]);
}

/** A number for each: equal where the own base and the set of numbers of the neighbours are equal. */
function spread(order, near, base) {
  const numbers = new Map(), found = [];
  for (const n of order) {
    const beside = near[n].length < 2 ? near[n].map((each) => found[each]) : [...new Set(near[n].map((each) => found[each]))].sort((a, b) => a - b);
    const said = `${base[n]}|${beside}`;
    if (!numbers.has(said)) numbers.set(said, numbers.size);
    found[n] = numbers.get(said);
  }
  return found;
}

function gathered(names) {
  const found = new Map();
  names.forEach((name, n) => (found.get(name) ?? found.set(name, []).get(name)).push(n));
  return found;
}

/** Numbers so that each comes after those before it. What is in a circle (no valid workflow has one) comes last. */
export function inOrder(before, after) {
  const missing = before.map((each) => each.length);
  const order = missing.flatMap((count, n) => (count ? [] : [n]));
  for (let at = 0; at < order.length; at++) for (const next of after[order[at]]) if (--missing[next] === 0) order.push(next);
  if (order.length < before.length) {
    const placed = new Set(order);
    before.forEach((_, n) => placed.has(n) || order.push(n));
  }
  return order;
}

function joined(units, groups, apart, isFolded) {
  const nodesOf = units.map(() => []);
  const nodes = [];
  const add = (group, tasks, isWhole) => {
    const node = { key: tasks[0].task_key, tasks, units: group, parents: new Set(), isFolded: isWhole && tasks.length > 1 };
    nodes.push(node);
    for (const n of group) nodesOf[n].push(node);
  };
  for (const group of groups) {
    const members = group.flatMap((n) => units[n].tasks);
    const left = isFolded ? members.filter((task) => !apart.has(task.task_key) || members.length < LEAST) : [];
    if (left.length) add(group, left, true);
    const within = new Set(left);
    const alone = members.filter((task) => !within.has(task));
    const unitOf = new Map(group.flatMap((n) => units[n].tasks.map((task) => [task, n])));
    for (const task of alone) add([unitOf.get(task)], [task], false);
  }
  for (const node of nodes) for (const n of node.units) for (const parent of units[n].before) for (const above of nodesOf[parent]) if (above !== node) node.parents.add(above);
  return nodes;
}
