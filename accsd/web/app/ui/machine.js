// What is said of a machine, and what can be asked of it: the same in the list, on its page and on the overview.
import { html } from "../html.js";
import { duration } from "../time.js";
import { State, When } from "./parts.js";

/** The word of a state, more exact than the API's: awake is idle or busy. */
export const stateOf = (node) => (node.state === "awake" ? (Object.keys(node.live).length ? "busy" : "idle") : node.state);
const WORDS = { idle: "awake, idle", busy: "awake, busy" };
export const NodeState = ({ node }) => html`<${State} of=${stateOf(node)} word=${WORDS[stateOf(node)] ?? node.state} />`;

export const slotsWords = (node) => Object.entries(node.slots).map(([service, slots]) => `${service} ${node.live[service] ?? 0}/${slots}${node.quarantines[service] ? " ⚠" : ""}`).join(", ");

/** The last call that was made to wake it, and what came of it. */
export function LastWake({ node }) {
  if (!node.tried_at) return node.wake_method ? html`<span class="muted">never (${node.wake_method})</span>` : null;
  const how = node.tries ? `${{ true: "sent", false: "failed" }[node.tried_ok] ?? "under way"}${node.tries > 1 ? `, call ${node.tries}` : ""}` : node.brought_by ? duration(node.last_latency_seconds) : "in vain";
  return html`<span title=${node.tried_error}>${(!node.tries && node.brought_by) || node.method} <${When} at=${node.tried_at} />${how && `, ${how}`}</span>`;
}

const at = (name) => `/nodes/${encodeURIComponent(name)}`;
const nodeVerb = (verb, title, effect, more = {}) => (node) => ({
  title: `${title} ${node.name}`, path: `${at(node.name)}/${verb}`, scope: "operate", verb: title, cli: `accsd nodes ${verb} ${node.name}`, effect: (preview) => effect(preview, node), ...more,
});
const running = (node) => Object.values(node.live).reduce((sum, n) => sum + n, 0);

export const VERBS = {
  wake: nodeVerb("wake", "Wake", (preview, node) => (preview.answer === "repeated" ? ["It is awake already: nothing is sent."]
    : [`It is called by ${(preview.methods ?? []).join(", then by ") || "nothing: it has no way to be woken"}, now.`, ...(preview.usual_seconds ?? node.latency_seconds ? [`It is usually there after ${duration(preview.usual_seconds ?? node.latency_seconds)}.`] : [])]),
  { takesReason: false, done: (answer) => (answer.answer === "repeated" ? "It is awake already." : `${answer.node.name} was called by ${answer.calls.at(-1)?.method ?? "somebody else"}`) }),
  sleep: nodeVerb("sleep", "Put to sleep", (_, node) => [running(node) ? `It has ${running(node)} tasks to end, so it will refuse.` : "It is asked to sleep, and decides by itself: it stays awake while it has work, is needed soon, or somebody objects."],
    { previews: false, takesReason: false, done: (answer) => answer.said ?? "It sleeps already." }),
  drain: nodeVerb("drain", "Drain", (_, node) => [running(node) ? `Its ${running(node)} running tasks end as they would.` : "It has no task now.", "It takes nothing new until it is resumed."]),
  resume: nodeVerb("resume", "Resume", (preview) => ["It takes tasks again.", ...(preview.out_of_quarantine ?? []).map((each) => `${each.service} comes out of quarantine.`)]),
  forget: (node) => ({ title: `Forget ${node.name}`, path: at(node.name), method: "DELETE", scope: "operate", verb: "Forget", danger: true, takesReason: false, cli: `accsd nodes remove ${node.name}`, effect: () => ["It is no longer listed. If it comes back, it registers anew."] }),
};
