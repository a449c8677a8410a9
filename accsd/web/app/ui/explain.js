// Where time went: one bar, its colours explained, and the same as a table for those who do not see it.
import { html } from "../html.js";
import { duration } from "../time.js";

export const WORDS = {
  dependency: "waits for another step", scheduled: "not due yet", wake: "its machine is being woken", boot: "its machine boots", asleep: "its machine sleeps",
  capacity: "no slot is free", no_node: "no machine can take it", key: "its concurrency key is taken", paused: "paused", backoff: "waits to try again", delay: "put off",
  starting: "starting", running: "running", lost: "lost", resolve: "its input is worked out", unknown: "not known",
};

const seconds = (segment) => (Date.parse(segment.to) - Date.parse(segment.from)) / 1000;

/** Segments of {kind, from, to, subject, task_key}, and who was in the way. */
export function ExplainBar({ segments, thin = false }) {
  const total = segments.reduce((sum, each) => sum + seconds(each), 0) || 1;
  const title = (each) => `${each.task_key ? `${each.task_key}: ` : ""}${WORDS[each.kind] ?? each.kind} ${duration(seconds(each))}${each.subject?.name ? ` (${each.subject.name})` : ""}`;
  return html`<div class=${`explain${thin ? " thin" : ""}`} role="img" aria-label=${summary(segments)}>
    ${segments.map((each, n) => html`<div key=${n} data-kind=${each.kind} title=${title(each)} style=${{ flexGrow: seconds(each) / total }}></div>`)}</div>`;
}

function totals(segments) {
  const found = new Map();
  for (const each of segments) found.set(each.kind, (found.get(each.kind) ?? 0) + seconds(each));
  return [...found].sort((a, b) => b[1] - a[1]);
}
const summary = (segments) => totals(segments).map(([kind, s]) => `${WORDS[kind] ?? kind} ${duration(s)}`).join(", ");

export const Legend = ({ segments }) => html`<div class="legend">${totals(segments).map(
  ([kind, s]) => html`<span key=${kind}><i data-kind=${kind}></i>${WORDS[kind] ?? kind} ${duration(s)}</span>`)}</div>`;
