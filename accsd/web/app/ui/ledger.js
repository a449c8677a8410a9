// What became of due times: a strip of the last ones, and words for each outcome.
import { html } from "../html.js";
import { duration, exact } from "../time.js";
import { State } from "./parts.js";

const LATE_S = 60;
const STATES = { fired: "done", caught_up: "starting", skipped: "skipped", missed: "error", merged: "queued", snoozed: "backoff" };
const GLYPHS = { fired: "✓", late: "✓", caught_up: "↻", skipped: "⇢", missed: "✕", merged: "⊂", snoozed: "☾" };
const WORDS = { caught_up: "caught up" };

const isLate = (firing) => firing.outcome === "fired" && (firing.late_seconds ?? firing.late ?? 0) > LATE_S;
export const outcomeWord = (firing) => (isLate(firing) ? "fired late" : WORDS[firing.outcome] ?? firing.outcome);
export const Outcome = ({ of }) => html`<${State} of=${isLate(of) ? "backoff" : STATES[of.outcome] ?? "queued"} word=${outcomeWord(of)} />`;

/** The last outcomes, the oldest first: glyph and colour, the words on hover and for those who do not see it. */
export function Strip({ of }) {
  if (!of?.length) return html`<span class="muted small">not due yet</span>`;
  const counted = Object.entries(of.reduce((all, each) => ({ ...all, [outcomeWord(each)]: (all[outcomeWord(each)] ?? 0) + 1 }), {}));
  return html`<span class="strip" role="img" aria-label=${`The last ${of.length}: ${counted.map(([word, n]) => `${n} ${word}`).join(", ")}`}>${of.map((each, n) => html`<i key=${each.due_at + n}
    data-outcome=${isLate(each) ? "late" : each.outcome} title=${`${exact(each.due_at)}\n${outcomeWord(each)}: ${each.reason.replaceAll("_", " ")}${isLate(each) ? `, ${duration(each.late_seconds)} late` : ""}${each.times > 1 ? ` (${each.times} times)` : ""}`}>${GLYPHS[isLate(each) ? "late" : each.outcome] ?? "·"}</i>`)}</span>`;
}

const LEDGER_STATES = { active: "ready", paused: "paused", snoozed: "backoff", held: "paused", ended: "cancelled", broken: "error" };
export const ScheduleState = ({ of }) => html`<${State} of=${LEDGER_STATES[of.state] ?? "queued"} word=${of.state} />`;
