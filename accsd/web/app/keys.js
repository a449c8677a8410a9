// Single keys: where each one leads, and that they can be switched off. Pages add theirs while they are shown.
import { html, signal, useEffect, useRef } from "./html.js";
import { keys, theme } from "./prefs.js";
import { go } from "./router.js";

export const GOES = { o: ["Overview", "/"], j: ["Jobs", "/jobs"], f: ["Fleet", "/fleet"], s: ["Services", "/services"], d: ["Dead letters", "/dead"],
  c: ["Schedules", "/schedules"], t: ["Triggers", "/triggers"], w: ["Workflows", "/workflows"], l: ["Tools", "/tools"], y: ["System", "/system"] };
const THEMES = { system: "light", light: "dark", dark: "system" };
const AFTER_G_MS = 1500;
const helps = signal(false);
const ofPages = new Set(); // maps of key → [what it does, function]
let gAt = -Infinity; // when g was pressed

export const showHelp = () => { helps.value = true; };
export const nextTheme = () => { theme.value = THEMES[theme.value]; };

/** Keys of a page: {w: ["wake it", () => …]}. What answers false has done nothing. */
export function useKeys(map) {
  const latest = useRef(map);
  latest.current = map;
  useEffect(() => {
    const entry = () => latest.current;
    ofPages.add(entry);
    return () => ofPages.delete(entry);
  }, []);
}

const EVERYWHERE = {
  j: ["the next row", () => step(1)],
  k: ["the row before", () => step(-1)],
  "/": ["to the filter", () => document.querySelector("main input[type=search]")?.focus()],
  t: ["the next theme", nextTheme],
  "?": ["this list", showHelp],
};

function step(by) {
  const rows = [...document.querySelectorAll("main tr.opens, main [data-row]")];
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const row = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + by))];
  const link = row?.matches("a, button") ? row : row?.querySelector("a[href], button");
  (link ?? row)?.focus();
  row?.scrollIntoView({ block: "nearest" });
}

const isTyping = (element) => element?.closest?.("input, textarea, select, [contenteditable]");

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !keys.value || isTyping(event.target) || document.querySelector("dialog[open]")) return;
  const isGoing = performance.now() - gAt < AFTER_G_MS;
  gAt = -Infinity;
  if (isGoing && GOES[event.key]) {
    event.preventDefault();
    go(GOES[event.key][1]);
    document.getElementById("main")?.focus();
    return;
  }
  if (event.key === "g") { gAt = performance.now(); return; }
  const key = event.key === " " ? "Space" : event.key;
  if (key === "Space" && event.target.closest?.("button, summary, [role=button], [role=application]")) return; // which it presses
  const own = [...ofPages].reverse().map((entry) => entry()[key]).find(Boolean);
  const found = own ?? EVERYWHERE[key];
  if (found && found[1]() !== false) event.preventDefault();
});

export const KeysHelp = () => helps.value && html`<${Opened} />`;

function Opened() {
  const dialog = useRef(null);
  useEffect(() => { dialog.current.showModal(); }, []);
  const own = Object.assign({}, ...[...ofPages].map((entry) => entry()));
  const list = (rows) => html`<dl class="keys">${rows.map(([key, what]) => html`<div key=${key}><dt>${key.split(" ").map((each) => html`<kbd>${each}</kbd>`)}</dt><dd>${what}</dd></div>`)}</dl>`;
  return html`<dialog ref=${dialog} aria-labelledby="keys-title" onClose=${() => { helps.value = false; }}>
    <header id="keys-title">Keys</header>
    <div class="body two"><section><h2>Go to</h2>${list(Object.entries(GOES).map(([key, [word]]) => [`g ${key}`, word]))}</section>
      <section><h2>Everywhere</h2>${list([["Ctrl K", "search, and do something"], ...Object.entries(EVERYWHERE).map(([key, [what]]) => [key, what]), ["Enter", "open the row"], ["Esc", "close what is open"]])}
        ${Object.keys(own).length > 0 && html`<h2>On this page</h2>${list(Object.entries(own).map(([key, [what]]) => [key, what]))}`}</section></div>
    <footer><label class="row grow"><input type="checkbox" checked=${keys.value} onChange=${(event) => { keys.value = event.target.checked; }} /> Single keys do something</label>
      <button autofocus onClick=${() => dialog.current.close()}>Close</button></footer></dialog>`;
}
