// How high the rows of a log are, and which row is where. Pure.

export const ROW = 18;
const MOST_PX = 15_000_000; // of an element, that every browser can do

/** Rows that are all as high as one line. */
export const even = (count) => ({ count, total: count * ROW, before: (row) => row * ROW, rowAt: (y) => Math.floor(y / ROW) });

/** Rows of different heights, each a line high until it is measured: sums in a tree, so that a million rows cost no more than ten. */
export class Heights {
  constructor(count) {
    this.#make(count);
  }

  #make(count) {
    this.count = count;
    this.size = 2 ** Math.ceil(Math.log2(Math.max(2, count + 1)));
    this.own = new Float32Array(this.size + 1).fill(ROW);
    this.sums = Float64Array.from({ length: this.size + 1 }, (_, n) => ROW * (n & -n));
  }

  /** There are more rows now. */
  grow(count) {
    const before = this.own, had = this.count;
    this.count = count;
    if (count < this.size) return;
    this.#make(count);
    for (let row = 0; row < had; row++) if (before[row] !== ROW) this.set(row, before[row]);
  }

  /** Whether that is another height than before. */
  set(row, height) {
    const more = height - this.own[row];
    if (Math.abs(more) < 0.5) return false;
    this.own[row] = height;
    for (let n = row + 1; n <= this.size; n += n & -n) this.sums[n] += more;
    return true;
  }

  /** The height of all rows above this one. */
  before(row) {
    let sum = 0;
    for (let n = Math.min(row, this.count); n > 0; n -= n & -n) sum += this.sums[n];
    return sum;
  }

  get total() {
    return this.before(this.count);
  }

  rowAt(y) {
    let row = 0, left = y;
    for (let step = this.size; step; step >>= 1) if (row + step <= this.size && this.sums[row + step] <= left) { row += step; left -= this.sums[row]; }
    return row;
  }
}

/** Where what is: exact, or in proportion where a browser could not make an element that high. Rows count from 1. */
export function measures(rows, view) {
  const isExact = rows.total <= MOST_PX;
  const height = isExact ? rows.total : MOST_PX;
  const most = Math.max(1, height - view), left = Math.max(1, rows.total - view);
  const down = (top) => (isExact ? top : (top / most) * left);
  return {
    height,
    first: (top) => rows.rowAt(down(top)) + 1,
    top: (row) => { const wanted = rows.before(row - 1); return isExact ? wanted : (wanted / left) * most; },
    /** How far below the beginning of a row the view begins, and which scroll position that is. */
    within: (top, row) => down(top) - rows.before(row - 1),
    back: (row, within) => { const wanted = rows.before(row - 1) + within; return isExact ? wanted : (wanted / left) * most; },
    offset: (top, first) => (isExact ? rows.before(first - 1) : top - (down(top) - rows.before(first - 1))),
  };
}
