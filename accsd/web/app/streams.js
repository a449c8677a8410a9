// Which tabs of this browser hold a stream. A browser has six connections to a host (HTTP/1.1) and a stream keeps one:
// with six of them open nothing else would be answered. Who finds no place looks again and again instead.
const NAME = "accsd.stream.";
const MOST = 4;
const BEAT_MS = 2_000;
const FIRST_MS = 300;
const FORGOTTEN_MS = 7_000; // of a tab that has ended without a word

const mine = `${NAME}${Math.random().toString(36).slice(2)}`;
let beats = null;

/** The tabs that have a place; those that are forgotten lose theirs. */
function taken() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(NAME));
  for (const key of keys) if (Date.now() - Number(localStorage.getItem(key)) > FORGOTTEN_MS) localStorage.removeItem(key);
  return keys.filter((key) => localStorage.getItem(key)).sort();
}

/** Whether this tab may hold a stream, until it leaves its place. `tooMany()` is called if others took theirs in the same moment. */
export function takePlace(tooMany) {
  if (beats) return true;
  try {
    if (taken().filter((key) => key !== mine).length >= MOST) return false;
    const beat = () => {
      if (taken().indexOf(mine) >= MOST) { leavePlace(); tooMany(); } else localStorage.setItem(mine, String(Date.now()));
    };
    localStorage.setItem(mine, String(Date.now()));
    setTimeout(() => { if (beats) beat(); }, FIRST_MS);
    beats = setInterval(beat, BEAT_MS);
  } catch { /* a browser that keeps nothing for us: each tab for itself */ }
  return true;
}

export function leavePlace() {
  clearInterval(beats);
  beats = null;
  try { localStorage.removeItem(mine); } catch { /* as above */ }
}

/** Calls `does` when another tab leaves its place. */
export const whenLeft = (does) => addEventListener("storage", ({ key, newValue }) => { if (key?.startsWith(NAME) && newValue === null) does(); });

addEventListener("pagehide", leavePlace);
