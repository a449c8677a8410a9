// Where the nodes of a graph stand. Pure: nodes of {parents} in, places out; the states of the tasks play no part.
//
// The rank of a node is the longest way to it; its place within the rank is the mean of its neighbours' (four sweeps);
// then all are moved as near to their neighbours as the order allows. An edge over several ranks has a lane of its own.

import { inOrder } from "./fold.js";

export const SIZE = { width: 184, height: 44 };
const BETWEEN = 64, BESIDE = 14, LANE = 10, SWEEPS = 4, MOST_WITH_LANES = 400;

/** {places: Map of node → {x, y}, edges: [{from, to, points}], width, height}. `isDown`: from top to bottom. */
export function layOut(nodes, { isDown = false } = {}) {
  const numbers = new Map(nodes.map((node, n) => [node, n]));
  const before = nodes.map((node) => [...node.parents].map((parent) => numbers.get(parent)));
  const rank = ranks(before);
  const points = nodes.map((_, n) => ({ n, rank: rank[n], size: isDown ? SIZE.width : SIZE.height, before: [], after: [] }));
  const edges = laid(before, points, nodes.length <= MOST_WITH_LANES);
  const columns = [];
  for (const point of points) (columns[point.rank] ??= []).push(point);
  order(columns);
  align(columns);
  const step = (isDown ? SIZE.height : SIZE.width) + BETWEEN;
  const top = Math.min(0, ...columns.map((column) => column[0].at - column[0].size / 2));
  const spot = (point) => ({ main: point.rank * step, cross: point.at - top });
  const at = (main, cross) => (isDown ? { x: cross, y: main } : { x: main, y: cross });
  const depth = isDown ? SIZE.height : SIZE.width;
  const places = new Map(nodes.map((node, n) => {
    const { main, cross } = spot(points[n]);
    return [node, at(main, cross - points[n].size / 2)];
  }));
  const bottom = Math.max(...columns.map((column) => column.at(-1).at + column.at(-1).size / 2)) - top;
  const far = (columns.length - 1) * step + depth;
  return {
    places,
    edges: edges.map(({ from, to, through }) => ({
      from: nodes[from], to: nodes[to],
      points: [
        at(spot(points[from]).main + depth, spot(points[from]).cross),
        ...through.flatMap((point) => [at(spot(point).main, spot(point).cross), at(spot(point).main + depth, spot(point).cross)]),
        at(spot(points[to]).main, spot(points[to]).cross),
      ],
    })),
    width: isDown ? bottom : far,
    height: isDown ? far : bottom,
  };
}

function ranks(before) {
  const after = before.map(() => []);
  before.forEach((each, n) => each.forEach((parent) => after[parent].push(n)));
  const rank = before.map(() => 0);
  for (const n of inOrder(before, after)) for (const parent of before[n]) rank[n] = Math.max(rank[n], rank[parent] + 1);
  return rank;
}

/** The edges, and in `points` a thin point for each rank that an edge only passes. */
function laid(before, points, hasLanes) {
  const edges = [];
  before.forEach((each, to) => each.forEach((from) => {
    const through = [];
    if (hasLanes) for (let rank = points[from].rank + 1; rank < points[to].rank; rank++) through.push({ n: points.length + through.length, rank, size: LANE, before: [], after: [] });
    points.push(...through);
    const way = [points[from], ...through, points[to]];
    for (let n = 1; n < way.length; n++) { way[n].before.push(way[n - 1]); way[n - 1].after.push(way[n]); }
    edges.push({ from, to, through });
  }));
  return edges;
}

const mean = (points, value, otherwise) => (points.length ? points.reduce((sum, each) => sum + value(each), 0) / points.length : otherwise);

function order(columns) {
  const number = (column) => column.forEach((point, n) => { point.place = n; });
  columns.forEach(number);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const isForward = sweep % 2 === 0;
    for (const column of isForward ? columns.slice(1) : columns.slice(0, -1).reverse()) {
      for (const point of column) point.wants = mean(isForward ? point.before : point.after, (each) => each.place, point.place);
      column.sort((a, b) => a.wants - b.wants || a.n - b.n);
      number(column);
    }
  }
}

/** Each as near to the mean of its neighbours as its own ones allow: the least squares of a fixed order. */
function align(columns) {
  for (const column of columns) {
    let y = 0;
    for (const point of column) { point.at = y + point.size / 2; y += point.size + BESIDE; }
  }
  for (const side of ["before", "after", "before"]) {
    for (const column of side === "before" ? columns.slice(1) : columns.slice(0, -1).reverse()) settle(column, column.map((point) => mean(point[side], (each) => each.at, point.at)));
  }
}

/** Isotonic regression (pools of those that would overlap) on the places less the room that those above need. */
function settle(column, wanted) {
  const offsets = [];
  column.forEach((point, n) => offsets.push(n ? offsets[n - 1] + (column[n - 1].size + point.size) / 2 + BESIDE : 0));
  const pools = [];
  wanted.forEach((want, n) => {
    let pool = { sum: want - offsets[n], count: 1 };
    while (pools.length && pools.at(-1).sum / pools.at(-1).count > pool.sum / pool.count) {
      const above = pools.pop();
      pool = { sum: above.sum + pool.sum, count: above.count + pool.count };
    }
    pools.push(pool);
  });
  let n = 0;
  for (const { sum, count } of pools) for (let left = count; left; left--, n++) column[n].at = sum / count + offsets[n];
}
