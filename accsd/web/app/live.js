// One stream for the page, of the topics that its parts want; closed while the tab is hidden, and honest about its state.
import { place } from "./api.js";
import { signal } from "./html.js";
import { setClock } from "./time.js";

const KINDS = ["hello", "job", "task", "event", "log", "node", "counts", "dead", "operation", "mode", "hearing", "reset"];
const wanted = new Map(); // topic → how many parts want it
const listeners = new Set();
let stream = null;
let opened = "";
let mark = null;
let planned = null;
let retry = 1000;

/** {state: live | polling | lost | off, reason, since} */
export const light = signal({ state: "off" });
export const version = signal(null); // of the gateway that answers now

/** Calls `hear(kind, document)` for every message while the component that asked for the topics is shown. */
export function subscribe(topics, hear) {
  listeners.add(hear);
  for (const topic of topics) wanted.set(topic, (wanted.get(topic) ?? 0) + 1);
  plan();
  return () => {
    listeners.delete(hear);
    for (const topic of topics) {
      const left = wanted.get(topic) - 1;
      if (left) wanted.set(topic, left);
      else wanted.delete(topic);
    }
    plan();
  };
}

/** Closes the stream for good, for example because nobody is logged in. */
export function hangUp() {
  stream?.close();
  stream = null;
  opened = "";
  mark = null;
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
  const resume = mark ? `&after=${encodeURIComponent(mark)}` : "";
  const mine = (stream = new EventSource(place(`/api/v1/stream?topics=${encodeURIComponent(topics)}${resume}`)));
  for (const kind of KINDS) mine.addEventListener(kind, (message) => stream === mine && receive(kind, message));
  mine.onerror = () => {
    if (stream !== mine) return;
    if (light.value.state !== "lost") light.value = { state: "lost", since: new Date().toISOString() };
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
    light.value = state === "listening" ? { state: "live" } : state === "lost" ? { state: "lost", reason, since: new Date().toISOString() } : { state: "polling", reason };
  }
  for (const hear of [...listeners]) hear(kind, said);
}

document.addEventListener("visibilitychange", () => plan(0));
