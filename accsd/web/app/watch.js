// Jobs that somebody wants to hear of: their end is told by the browser, if it may, and otherwise in the page and its title.
import { call } from "./api.js";
import { effect, signal } from "./html.js";
import { ENDED } from "./job_words.js";
import { subscribe } from "./live.js";
import { go } from "./router.js";
import { notice } from "./ui/notices.js";

const KEPT = "accsd.watched", MOST = 20;
const LOOKS_EACH_MS = 15_000; // a tab that is hidden holds no stream
const SIGNS = { done: "✓", error: "✕", cancelled: "⊘" };
const WORDS = { done: "is done", error: "has failed", cancelled: "was cancelled" };
const read = () => { try { return JSON.parse(localStorage.getItem(KEPT)) ?? []; } catch { return []; } };

export const watched = signal(read()); // ids; all tabs of this browser share them
export const badge = signal(""); // in front of the title, until somebody has looked

effect(() => localStorage.setItem(KEPT, JSON.stringify(watched.value)));
addEventListener("storage", (event) => { if (event.key === KEPT) watched.value = read(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) badge.value = ""; });

/** What the browser does: granted, denied, default (nobody was asked yet); null: it tells only on pages over HTTPS or of this machine. */
export const permission = () => (isSecureContext && "Notification" in globalThis ? Notification.permission : null);

export function watch(id) {
  watched.value = [id, ...watched.value.filter((each) => each !== id)].slice(0, MOST);
  if (permission() === "default") Notification.requestPermission();
}
export const leave = (id) => { watched.value = watched.value.filter((each) => each !== id); };

/** Whoever takes it off the list tells it: another tab looks, too. */
function tell(job) {
  if (!read().includes(job.id)) return;
  leave(job.id);
  const said = `${job.workflow} ${job.id.slice(-8)} ${WORDS[job.status]}`, to = `/jobs/${job.id}`;
  notice(said, to);
  if (document.hidden) badge.value = `${SIGNS[job.status]} `;
  if (permission() !== "granted") return;
  const shown = new Notification(said, { body: job.error_message ?? "", tag: job.id, icon: new URL("../icon.svg", import.meta.url).href });
  shown.onclick = () => { focus(); go(to); shown.close(); };
}

async function look(id) {
  try {
    const job = await call(`/jobs/${id}`);
    if (ENDED.includes(job.status)) tell(job);
  } catch (problem) {
    if (problem.status === 404 || problem.status === 410) leave(id); // it was removed
  }
}

/** While somebody is logged in. */
export function keepWatch() {
  const all = () => watched.value.forEach(look);
  const done = subscribe(["overview"], (kind, said) => { if (kind === "job" && watched.value.includes(said.id) && ENDED.includes(said.status)) look(said.id); });
  const timer = setInterval(all, LOOKS_EACH_MS);
  all();
  return () => { done(); clearInterval(timer); };
}
