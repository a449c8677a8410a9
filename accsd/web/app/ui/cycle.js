// The doctor's test of a machine, from its page: it is sent to sleep and woken again, and each step is told with its time.
import { call } from "../api.js";
import { html, signal, useEffect, useRef, useState } from "../html.js";
import { hindrance } from "../session.js";
import { duration, now } from "../time.js";
import { Trouble } from "./parts.js";

const SETTLE_S = 20, GOES_WITHIN_S = 90, COMES_WITHIN_S = 600;
const open = signal(null);
const paused = (s) => new Promise((done) => { setTimeout(done, s * 1000); });

export const CycleButton = ({ node }) => {
  const why = hindrance("operate") ?? (node.state === "awake" ? (node.wake_method ? undefined : "it has no wake_method: it would not come back") : "only a machine that is awake can be tested");
  return html`<button disabled=${Boolean(why)} title=${why} onClick=${() => { open.value = node; }}>Test sleep and wake</button>`;
};
export const Cycle = () => open.value && html`<${Opened} key=${open.value.name} node=${open.value} />`;

async function until(path, there, within, stopped) {
  const ends = now() + within * 1000;
  while (now() < ends && !stopped()) {
    const found = await call(path);
    if (there(found)) return found;
    await paused(1);
  }
  throw Object.assign(new Error(stopped() ? "The test was left." : `That did not happen within ${duration(within)}.`), { hint: "The history of the machine, and `accsd doctor --node`, say more." });
}

/** Calls `say(text)` at each step. */
async function run(node, say, stopped) {
  const at = `/nodes/${encodeURIComponent(node.name)}`;
  const { said } = await call(`${at}/sleep`, { method: "POST", body: {} });
  say(`It was asked to sleep: ${said}`);
  const asleep = await until(at, (found) => found.state === "asleep", GOES_WITHIN_S, stopped);
  say(`It says that it sleeps; ${SETTLE_S} s for it to be so`);
  await paused(SETTLE_S);
  const later = await call(at);
  if (later.last_seen !== asleep.last_seen) throw Object.assign(new Error("It was seen again although nobody called it from here."), { hint: later.why });
  const { calls } = await call(`${at}/wake`, { method: "POST", body: {} });
  say(calls.length ? `It was called by ${calls.at(-1).method}` : "Somebody else calls it at this moment");
  const back = await until(at, (found) => found.state === "awake", Math.max(COMES_WITHIN_S, 3 * (node.latency_seconds ?? 0)), stopped);
  say(`It is awake again${back.last_latency_seconds ? `, ${duration(back.last_latency_seconds)} after the call` : ""}`);
}

function Opened({ node }) {
  const dialog = useRef(null);
  const left = useRef(false);
  const [steps, setSteps] = useState([]);
  const [state, setState] = useState("ready"); // ready | runs | done | failed
  const [problem, setProblem] = useState(null);
  useEffect(() => { dialog.current.showModal(); return () => { left.current = true; }; }, []);
  const begin = async () => {
    const began = now();
    setState("runs");
    try {
      await run(node, (text) => setSteps((before) => [...before, { after: (now() - began) / 1000, text }]), () => left.current);
      setState("done");
    } catch (refusal) { setProblem(refusal); setState("failed"); }
  };
  return html`<dialog ref=${dialog} aria-labelledby="cycle-title" onClose=${() => { open.value = null; }}>
    <header id="cycle-title">Test sleep and wake: ${node.name}</header>
    <div class="body">${state === "ready" && html`<ul class="effect"><li>It is asked to sleep; it refuses while it has work.</li><li>Once it has slept for ${SETTLE_S} s, it is called by ${node.wake_method}.</li>
        <li>${node.latency_seconds ? `It is usually back after ${duration(node.latency_seconds)}.` : "How long it takes to come back will be known then."}</li></ul>`}
      <ol class="steps" aria-live="polite">${steps.map((step, n) => html`<li key=${n}><span class="muted">+${duration(step.after)}</span> ${step.text}</li>`)}${state === "runs" && html`<li class="muted">…</li>`}</ol>
      <${Trouble} problem=${problem} />
      <div class="also small"><span class="muted">Also as</span><div><code>accsd doctor --node ${node.name} --cycle</code></div></div></div>
    <footer><button onClick=${() => dialog.current.close()}>${state === "runs" ? "Leave it" : "Close"}</button>
      ${state === "ready" && html`<button class="primary" onClick=${begin}>Begin</button>`}</footer></dialog>`;
}
