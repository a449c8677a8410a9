// One stream for the page, of the topics that its parts want; closed while the tab is hidden, and honest about its state.
import { place } from "./api.js";
import { signal } from "./html.js";
import { now, setClock } from "./time.js";

const KINDS = ["hello", "job", "task", "event", "log", "node", "counts", "dead", "operation", "mode", "hearing", "reset"];
const wanted = new Map(); // topic → how many parts want it
const listeners = new Set();
let stream = null;
let opened = "";
let mark = null;
let planned = null;
let retry = 1000;
let only = null; // the one job whose stream a share may open

/** {state: live | polling | lost | off, reason, since}; since: when it was lost, so how old what is shown is */
export const light = signal({ state: "off" });
export const version = signal(null); // of the gateway that answers now

const OF_CONNECTION = ["hello", "reset", "mode", "hearing", "back"];
const TOPICS = {
  node: (said) => ["overview", `node:${said.name}`],
  task: (said) => [`job:${said.job}`, `job:${said.job_id}`, `node:${said.node}`],
  job: (said) => ["overview", "jobs", `job:${said.id}`],
  event: (said) => [`job:${said.job}`],
  log: (said) => [`log:${said.task}:${said.attempt_id}`],
  operation: (said) => [`operation:${said.id}`],
};

/**
 * Calls `hear(kind, document)` for every message of these topics, and for what concerns the connection ("back": it was
 * lost, and is there again), while the component that asked for them is shown.
 */
export function subscribe(topics, hear) {
  const wants = (kind, said) => OF_CONNECTION.includes(kind) || (TOPICS[kind]?.(said) ?? ["overview"]).some((topic) => topics.includes(topic));
  const listener = (kind, said) => wants(kind, said) && hear(kind, said);
  listeners.add(listener);
  for (const topic of topics) wanted.set(topic, (wanted.get(topic) ?? 0) + 1);
  plan();
  return () => {
    listeners.delete(listener);
    for (const topic of topics) {
      const left = wanted.get(topic) - 1;
      if (left) wanted.set(topic, left);
      else wanted.delete(topic);
    }
    plan();
  };
}

export const watchOnly = (job) => { only = job; };

/** Closes the stream for good, for example because nobody is logged in. */
export function hangUp() {
  stream?.close();
  stream = null;
  opened = "";
  mark = null;
}

/** Connects at once instead of waiting for the next try. */
export function tryNow() {
  stream?.close();
  stream = null;
  opened = "";
  plan(0);
}

function lost(reason) {
  if (light.value.state !== "lost") light.value = { state: "lost", reason, since: new Date(now()).toISOString() };
}

function plan(after = 50) {
  clearTimeout(planned);
  planned = setTimeout(connect, after);
}

function connect() {
  const topics = document.hidden ? "" : [...wanted.keys()].sort().join(",");
  if (topics === opened && stream) return;
  stream?.close();
  stream = null;
  opened = topics;
  if (!topics) return;
  const from = only ? `/api/v1/jobs/${only}/stream` : "/api/v1/stream";
  const asked = new URLSearchParams({ ...(only ? {} : { topics }), ...(mark ? { after: mark } : {}) });
  const mine = (stream = new EventSource(place(`${from}?${asked}`)));
  for (const kind of KINDS) mine.addEventListener(kind, (message) => stream === mine && receive(kind, message));
  mine.onerror = () => {
    if (stream !== mine) return;
    lost("the gateway does not answer");
    if (mine.readyState === EventSource.CLOSED) { // refused: the browser does not try again
      stream = null;
      opened = "";
      retry = Math.min(retry * 2, 30_000);
      plan(retry);
    }
  };
}

function receive(kind, message) {
  const said = JSON.parse(message.data);
  if (message.lastEventId) mark = message.lastEventId;
  if (kind === "hello") {
    retry = 1000;
    setClock(said.clock);
    version.value = said.version;
  }
  if (kind === "hello" || kind === "hearing") {
    const { state, reason } = kind === "hello" ? said.hearing : said;
    const was = light.value.state;
    if (state === "lost") lost(reason ?? "the database does not answer");
    else light.value = state === "listening" ? { state: "live" } : { state: "polling", reason };
    if (was === "lost" && state !== "lost") for (const hear of [...listeners]) hear("back", said);
  }
  for (const hear of [...listeners]) hear(kind, said);
}

document.addEventListener("visibilitychange", () => plan(0));
