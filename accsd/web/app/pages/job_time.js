// The time machine: the steps of a job as they were at a moment, and how they came to be, at any speed.
import { call } from "../api.js";
import { html, useEffect, useMemo, useRef, useState } from "../html.js";
import { histogram } from "../graph/states.js";
import { ENDED } from "../job_words.js";
import { ask, params } from "../router.js";
import { beside, micros, statesAt, transitions } from "../replay.js";
import { clock, duration, exact, now } from "../time.js";
import { State } from "../ui/parts.js";

const SPEEDS = [1, 10, 60, 300, 1000];
const FRAME_MS = 50;
const iso = (moment) => `${new Date(Math.floor(moment / 1_000_000) * 1000).toISOString().slice(0, 19)}.${String(moment % 1_000_000).padStart(6, "0")}Z`;

/** `at`: the moment in ms, or null for now; `shown(tasks)`: the tasks that there were, as they were then. */
export function useTimeMachine(job, tasks) {
  const [history, set] = useState(null);
  const { t } = params.value;
  const isOn = t !== undefined && !Number.isNaN(Date.parse(t));
  const moment = isOn ? micros(t) : null;
  const of = job && `${job.id} ${job.generation} ${job.status} ${tasks.length}`;
  const isBehind = history !== null && moment > history.until; // of a job that goes on
  useEffect(() => {
    if (!isOn || !of || (history?.of === of && !isBehind)) return undefined;
    let isOld = false;
    const until = Math.round(now() * 1000);
    call(`/jobs/${job.id}/history`).then((found) => { if (!isOld) set({ ...transitions(found), of, until }); }, () => {});
    return () => { isOld = true; };
  }, [isOn, of, isBehind]);
  const states = useMemo(() => (moment !== null && history ? statesAt(history, moment) : null), [moment, history]);
  const then = (task) => {
    const status = states.get(task.task_key);
    const isNow = status === task.status;
    return { ...task, status, hold: null, node: status === "queued" ? null : task.node, progress: isNow ? task.progress : 0, error_message: isNow ? task.error_message : null, error_code: isNow ? task.error_code : null };
  };
  const shown = (all) => (states ? all.filter((task) => states.has(task.task_key)).map(then) : all);
  return { isOn, at: states ? moment / 1000 : null, moment, history, states, shown };
}

export function TimeMachine({ machine, job }) {
  const [speed, setSpeed] = useState(60);
  const [plays, play] = useState(false);
  const began = micros(job.started_at ?? job.created_at);
  const ended = job.finished_at ? micros(job.finished_at) : Math.round(now() * 1000);
  const is = useRef({});
  is.current = { moment: machine.moment, ended, speed };
  const goTo = (moment) => ask({ t: iso(Math.round(Math.max(began, Math.min(ended, moment)))) });
  useEffect(() => {
    if (!plays) return undefined;
    const timer = setInterval(() => {
      const next = is.current.moment + FRAME_MS * 1000 * is.current.speed;
      if (next >= is.current.ended) play(false);
      goTo(next);
    }, FRAME_MS);
    return () => clearInterval(timer);
  }, [plays]);
  if (!machine.isOn) return html`<button onClick=${() => goTo(ENDED.includes(job.status) ? began : ended)}>Time machine</button>`;
  const shown = machine.states && histogram([...machine.states.values()], (status) => status);
  const past = (machine.moment - began) / 1_000_000;
  return html`<div class="machine" role="group" aria-label="Time machine">
    <button aria-label="The transition before" disabled=${!machine.history} onClick=${() => goTo(beside(machine.history, machine.moment, -1))}>◀</button>
    <button aria-label=${plays ? "Stop" : "Play"} onClick=${() => { if (!plays && machine.moment >= ended) goTo(began); play(!plays); }}>${plays ? "⏸" : "▷"}</button>
    <button aria-label="The next transition" disabled=${!machine.history} onClick=${() => goTo(beside(machine.history, machine.moment, 1))}>▶</button>
    <label><span class="visually-hidden">Speed</span><select value=${speed} onChange=${(event) => setSpeed(Number(event.target.value))}>${SPEEDS.map((each) => html`<option key=${each} value=${each}>${each}×</option>`)}</select></label>
    <input type="range" aria-label="Moment of the job" min="0" max=${Math.max(1, ended - began)} step="1000" value=${machine.moment - began} aria-valuetext=${`${clock(iso(machine.moment))}, ${duration(past)} after its start`} onInput=${(event) => goTo(began + Number(event.target.value))} />
    <time datetime=${iso(machine.moment)} title=${exact(iso(machine.moment))}>${clock(iso(machine.moment))} <span class="muted small">+${duration(past)}</span></time>
    <span class="counts" role="status" aria-live="off">${shown?.map(([state, n]) => html`<${State} key=${state} of=${state} word=${`${n.toLocaleString()} ${state}`} />`)}</span>
    <button onClick=${() => ask({ t: null })}>Now</button></div>`;
}
