// The list of jobs from a day on: newest first from its end, oldest first from its beginning, by the page's zone.
import { html } from "../html.js";
import { ask } from "../router.js";
import { dayBegins, dayOf } from "../time.js";
import { chips } from "../what.js";

/** The query with another bound, and the day that its bound is now. */
export function bounded(q, bound, instant) {
  const others = chips(q).map(([word]) => word).filter((word) => !word.startsWith(`${bound}:`));
  return [...others, ...(instant ? [`${bound}:${instant}`] : [])].join(" ");
}

export function JumpToDate({ q, order }) {
  const bound = order === "oldest" ? "since" : "until";
  const now = chips(q).map(([word]) => word).find((word) => word.startsWith(`${bound}:`))?.slice(bound.length + 1);
  const shown = now && !Number.isNaN(Date.parse(now)) && /^\d{4}-/.test(now) ? dayOf(Date.parse(now) - (bound === "until" ? 1 : 0)) : "";
  const jump = ({ target: { value } }) => ask({ q: bounded(q, bound, value && dayBegins(value, bound === "until" ? 1 : 0)) }, { replace: false });
  return html`<label>Jump to <input type="date" value=${shown} max=${dayOf(Date.now())} onChange=${jump} /></label>`;
}
