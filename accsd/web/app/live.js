// One stream for the page, of the topics that its parts want; closed while the tab is hidden, and honest about its state.
import { place } from "./api.js";
import { signal } from "./html.js";
import { leavePlace, takePlace, whenLeft } from "./streams.js";
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
let polling = null; // the next look of a tab that has no stream
let waiting = null; // how long a stream may take to say hello

const LOOKS_MS = 5_000;
const OPENS_MS = 5_000;

/** {state: live | polling | lost | off, reason, since, words}; since: when it was lost, so how old what is shown is; words: all that is to say */
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
  close();
  leavePlace();
  mark = null;
}

function close() {
  clearTimeout(polling);
  clearTimeout(waiting);
  polling = null;
  stream?.close();
  stream = null;
  opened = "";
}

/** Connects at once instead of waiting for the next try. */
export function tryNow() {
  close();
  plan(0);
}

function lost(reason) {
  if (light.value.state !== "lost") light.value = { state: "lost", reason, since: new Date(now()).toISOString() };
}

/** Without a stream everything that is shown is read again, and again. */
function poll(words) {
  const wasLost = light.value.state === "lost";
  close();
  light.value = { state: "polling", words };
  if (wasLost) for (const hear of [...listeners]) hear("back", {});
  const look = async () => {
    const turn = polling, isThere = await answers();
    if (polling !== turn) return;
    if (isThere) {
      polling = null;
      for (const hear of [...listeners]) hear("reset", {});
      connect();
    } else {
      lost("the gateway does not answer");
      polling = setTimeout(look, LOOKS_MS);
    }
  };
  polling = setTimeout(look, LOOKS_MS);
}

const crowded = () => poll("Other tabs have the streams that a browser can hold, so this one looks every 5 s.");
const answers = () => fetch(place("/api/v1/session"), { credentials: "same-origin", signal: AbortSignal.timeout(LOOKS_MS) }).then(() => true, () => false);

function plan(after = 50) {
  clearTimeout(planned);
  planned = setTimeout(connect, after);
}

function connect() {
  const topics = document.hidden ? "" : [...wanted.keys()].sort().join(",");
  if (topics === opened && stream) return;
  if (polling && topics && !takePlace(crowded)) return; // it looks anyway
  close();
  if (!topics) { leavePlace(); return; }
  if (!takePlace(crowded)) { crowded(); return; }
  opened = topics;
  const from = only ? `/api/v1/jobs/${only}/stream` : "/api/v1/stream";
  const asked = new URLSearchParams({ ...(only ? {} : { topics }), ...(mark ? { after: mark } : {}) });
  const mine = (stream = new EventSource(place(`${from}?${asked}`)));
  for (const kind of KINDS) mine.addEventListener(kind, (message) => stream === mine && receive(kind, message));
  waiting = setTimeout(async () => {
    const isThere = await answers();
    if (stream !== mine) return;
    if (isThere) {
      leavePlace();
      poll("The stream does not open, so this tab looks every 5 s.");
    } else {
      lost("the gateway does not answer");
      close();
      plan(retry);
    }
  }, OPENS_MS);
  mine.onerror = () => {
    if (stream !== mine) return;
    clearTimeout(waiting);
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
    clearTimeout(waiting);
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
whenLeft(() => { if (polling) plan(Math.random() * 500); }); // not all of them at once
