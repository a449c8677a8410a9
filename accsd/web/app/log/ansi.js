// A line of a log as pieces of text, each with its look. Pure, and everything in it stays text: colours of terminals are
// understood, links and cursor movements are left out, and every other control character is shown as a symbol.

export const MOST = 4_000; // characters of a line; the rest is shown on demand
const SEQUENCE = /\u001b\[([0-9;:]*)([ -/]*[@-~])|\u001b[\]P^_X][^\u0007\u001b]*(?:\u0007|\u001b\\)?|\u001b[ -/]*[0-~]?|\u009b([0-9;:]*)([ -/]*[@-~])/g;
// What turns text around or can't be seen: a reader must know that it is there.
const HIDDEN = /[\u0000-\u0008\u000a-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** {pieces: [{text, look}], length, isCut, repeats}: `repeats` counts states of a progress line that came before. */
export function read(text, most = MOST) {
  const states = text.replace(/\r+$/, "").split("\r").filter((state) => state !== "");
  const last = states.at(-1) ?? "";
  const isCut = last.length > most;
  return { pieces: pieces(isCut ? last.slice(0, most) : last), length: last.length, isCut, repeats: Math.max(0, states.length - 1) };
}

function pieces(text) {
  const found = [];
  let look = {}, at = 0;
  const add = (part) => { if (part) found.push({ text: visible(part), look: { ...look } }); };
  for (const match of text.matchAll(SEQUENCE)) {
    add(text.slice(at, match.index));
    at = match.index + match[0].length;
    const codes = match[1] ?? match[3], end = match[2] ?? match[4];
    if (end === "m") look = changed(look, codes.split(/[;:]/).map(Number));
  }
  add(text.slice(at));
  return found;
}

export const visible = (text) => text.replace(HIDDEN, (char) => {
  const code = char.codePointAt(0);
  if (code < 0x20 || code === 0x7f) return `^${String.fromCodePoint(code ^ 0x40)}`; // as terminals write it
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
});

const SWITCHES = { 1: ["bold", true], 2: ["dim", true], 3: ["italic", true], 4: ["underline", true], 7: ["reverse", true], 22: ["bold", false], 23: ["italic", false], 24: ["underline", false], 27: ["reverse", false] };

function changed(look, codes) {
  const next = { ...look };
  for (let n = 0; n < codes.length; n++) {
    const code = codes[n];
    if (!code) { for (const name of Object.keys(next)) delete next[name]; continue; }
    if (code === 38 || code === 48) {
      const [colour, used] = extended(codes.slice(n + 1));
      next[code === 38 ? "ink" : "ground"] = colour;
      n += used;
    } else if (code in SWITCHES) {
      const [name, is] = SWITCHES[code];
      if (is) next[name] = true;
      else { delete next[name]; if (name === "bold") delete next.dim; }
    } else if (code === 39) delete next.ink;
    else if (code === 49) delete next.ground;
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) next.ink = code >= 90 ? code - 82 : code - 30;
    else if ((code >= 40 && code <= 47) || (code >= 100 && code <= 107)) next.ground = code >= 100 ? code - 92 : code - 40;
  }
  return next;
}

/** A number of the 16 colours that the theme has, or a colour as CSS writes it; and how many codes it took. */
function extended([kind, ...codes]) {
  if (kind === 2) return [`rgb(${codes.slice(0, 3).map((each) => Math.min(255, each || 0)).join(" ")})`, 4];
  if (kind !== 5) return [undefined, 1];
  const n = Math.min(255, codes[0] || 0);
  if (n < 16) return [n, 2];
  if (n > 231) { const grey = 8 + (n - 232) * 10; return [`rgb(${grey} ${grey} ${grey})`, 2]; }
  const part = (each) => (each ? 55 + each * 40 : 0);
  return [`rgb(${part(Math.floor((n - 16) / 36))} ${part(Math.floor((n - 16) / 6) % 6)} ${part((n - 16) % 6)})`, 2];
}

/** Classes and styles (for the CSSOM) of a look. */
export function dressed(look) {
  const ink = look.reverse ? look.ground : look.ink, ground = look.reverse ? look.ink : look.ground;
  const classes = ["bold", "dim", "italic", "underline"].filter((name) => look[name]);
  if (look.reverse) classes.push("reverse");
  const style = {};
  if (typeof ink === "number") classes.push(`ink-${ink}`);
  else if (ink) style.color = ink;
  if (typeof ground === "number") classes.push(`ground-${ground}`);
  else if (ground) style.backgroundColor = ground;
  return { class: classes.join(" ") || undefined, style: Object.keys(style).length ? style : undefined };
}
