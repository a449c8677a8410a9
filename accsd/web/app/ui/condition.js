// How a condition stands, and its values over time with the line that they cross.
import { html } from "../html.js";
import { exact } from "../time.js";
import { State } from "./parts.js";

const STATES = { raised: "error", rising: "backoff", falling: "backoff", clear: "done", unknown: "unknown" };
export const ConditionState = ({ of }) => html`<${State} of=${STATES[of.state] ?? "queued"} word=${of.streak > 1 && /ing$/.test(of.state) ? `${of.state} (${of.streak} in a row)` : of.state} />${of.schedule_state !== "active" ? html` <span class="muted">${of.schedule_state}</span>` : ""}`;
export const valueWords = (of) => (of.last_value === null || of.last_value === undefined ? "" : typeof of.last_value === "number" ? String(Number(of.last_value.toPrecision(6))) : String(of.last_value));

const WIDTH = 640, HEIGHT = 120;

/** Samples as a line, by their time; the threshold as another. The table beside it has the same. */
export function Curve({ samples, condition }) {
  const known = samples.filter((each) => typeof each.value === "number").map((each) => [Date.parse(each.at), each.value]).sort((a, b) => a[0] - b[0]);
  if (known.length < 2) return null;
  const lines = [["raised", condition.above ?? condition.below], ["clear", condition.clear_below ?? condition.clear_above]].filter(([, value]) => typeof value === "number");
  const values = [...known.map(([, value]) => value), ...lines.map(([, value]) => value)];
  const low = Math.min(...values), high = Math.max(...values), span = high - low || 1;
  const first = known[0][0], last = known.at(-1)[0] - first || 1;
  const x = (at) => 4 + ((at - first) / last) * (WIDTH - 8), y = (value) => HEIGHT - 8 - ((value - low) / span) * (HEIGHT - 16);
  return html`<svg class="curve" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${`${known.length} values from ${exact(first)} to ${exact(known.at(-1)[0])}, between ${Math.min(...known.map((each) => each[1]))} and ${Math.max(...known.map((each) => each[1]))}; ${lines.map(([word, value]) => `${word} at ${value}`).join(", ")}`}>
    ${lines.map(([word, value]) => html`<g key=${word} class=${word}><path d=${`M0 ${y(value)}H${WIDTH}`} /><text x="4" y=${y(value) < 16 ? y(value) + 12 : y(value) - 3}>${word} ${value}</text></g>`)}
    <path class="values" d=${known.map(([at, value], n) => `${n ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("")} />
    ${known.map(([at, value]) => html`<circle key=${at} cx=${x(at)} cy=${y(value)} r="2.5"><title>${`${value}\n${exact(at)}`}</title></circle>`)}</svg>`;
}
