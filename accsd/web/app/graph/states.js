// What a node of a graph says of the tasks that it stands for.

export const GLYPHS = { queued: "○", starting: "◔", running: "▶", done: "✓", error: "✕", backoff: "↻", cancelled: "⊘", skipped: "⇢", defined: "◇" };
export const ORDER = ["error", "running", "starting", "backoff", "queued", "cancelled", "skipped", "done", "defined"]; // what a person wants to see first

/** A task that waits to try again is told apart from one that never began. */
export const shownState = (task) => (task.status === "queued" && task.hold === "backoff" ? "backoff" : task.status);

/** [state, count] of those that occur, the most urgent first. */
export function histogram(tasks, stateOf = shownState) {
  const counts = new Map();
  for (const task of tasks) {
    const state = stateOf(task);
    counts.set(state, (counts.get(state) ?? 0) + 1);
  }
  return ORDER.filter((state) => counts.has(state)).map((state) => [state, counts.get(state)]);
}

/** {name, state, counts, words} of a node. */
export function told(node, taskOf, stateOf) {
  const tasks = node.tasks.map(taskOf);
  const counts = histogram(tasks, stateOf);
  const state = counts[0]?.[0] ?? "queued";
  const [first] = tasks;
  if (!node.isFolded) return { name: first.task_key, state, counts, words: oneInWords(first, state) };
  const name = tasks.some((task) => task.parent) ? node.key.replace(/\[.*$/, "") : first.service;
  return { name: `${name} ×${tasks.length.toLocaleString()}`, state, counts, words: state === "defined" ? first.service : counts.map(([each, n]) => `${n.toLocaleString()} ${each}`).join(" · ") };
}

function oneInWords(task, state) {
  if (state === "defined") return task.service;
  if (state === "running" && task.progress) return `running ${Math.round(task.progress * 100)} %${task.node ? ` on ${task.node}` : ""}`;
  if (state === "error") return `error${task.error_code ? ` ${task.error_code}` : ""}`;
  return `${state}${task.node && state !== "queued" && state !== "backoff" ? ` on ${task.node}` : ""}`;
}
