// A log of any length, of which the parts that are looked at are here: pages of lines, by number.
import { call, query } from "../api.js";

const PAGE = 500;
const MOST_PAGES = 120;
const NEAR = 100; // lines that are asked for together

export class LogWindow {
  /** `path` of the log in the API; `changed()` is called whenever there is something else to show. */
  constructor(path, changed) {
    this.path = path;
    this.changed = changed;
    this.total = 0;
    this.errors = [];
    this.isComplete = false;
    this.isLoaded = false;
    this.problem = null;
    this.pages = new Map(); // number of the page → its lines
    this.asked = new Set();
  }

  line(n) {
    return this.pages.get(Math.floor((n - 1) / PAGE))?.[(n - 1) % PAGE];
  }

  /** Where to begin: what `asked` says (tail, around, from_line). */
  async begin(asked) {
    await this.#load(asked);
    return this;
  }

  /** What is missing of these lines is asked for. */
  need(first, last) {
    for (let page = Math.floor((Math.max(1, first) - 1) / PAGE); page <= Math.floor((Math.min(last, this.total) - 1) / PAGE); page++) {
      const lines = this.pages.get(page);
      if (lines) { this.pages.delete(page); this.pages.set(page, lines); } // the ones looked at last are kept
      if (this.#isWhole(page) || this.asked.has(page)) continue;
      this.asked.add(page);
      this.#load({ from_line: page * PAGE + 1, limit: PAGE }).finally(() => this.asked.delete(page));
    }
  }

  /** What is missing of these numbers, few and far between, is asked for. */
  needEach(numbers) {
    const missing = numbers.filter((n) => this.line(n) === undefined && !this.asked.has(`line ${n}`));
    for (let at = 0; at < missing.length;) {
      const from = at;
      while (at < missing.length && missing[at] - missing[from] < NEAR) at++;
      const group = missing.slice(from, at);
      for (const n of group) this.asked.add(`line ${n}`);
      this.#load({ from_line: group[0], limit: group.at(-1) - group[0] + 1 }).finally(() => group.forEach((n) => this.asked.delete(`line ${n}`)));
    }
  }

  #isWhole(page) {
    const lines = this.pages.get(page), wanted = Math.min(PAGE, this.total - page * PAGE);
    if (!lines || lines.length < wanted) return false;
    for (let n = 0; n < wanted; n++) if (lines[n] === undefined) return false;
    return true;
  }

  async #load(asked) {
    try {
      const found = await call(`${this.path}${query(asked)}`);
      this.problem = null;
      this.isLoaded = true;
      this.total = Math.max(this.total, found.total_lines);
      this.errors = found.errors;
      this.isComplete = found.complete;
      this.put(found.lines);
    } catch (problem) {
      this.problem = problem;
    }
    this.changed();
  }

  put(lines) {
    for (const line of lines) {
      const page = Math.floor((line.n - 1) / PAGE);
      if (!this.pages.has(page)) this.pages.set(page, []);
      this.pages.get(page)[(line.n - 1) % PAGE] = line;
    }
    while (this.pages.size > MOST_PAGES) this.pages.delete(this.pages.keys().next().value);
  }

  /** A message of the stream. */
  hear(said) {
    this.total = Math.max(this.total, said.last_line ?? 0);
    for (const line of said.lines ?? []) if (line.level === "error" && line.n > (this.errors.at(-1) ?? 0)) this.errors.push(line.n);
    this.put(said.lines ?? []);
    this.changed();
  }

  /** Asks how long it is now: after a gap in the stream, and when the attempt has ended. */
  refresh() {
    return this.#load({ tail: 50 });
  }
}
