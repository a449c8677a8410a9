// Ctrl-K: one field for things and for what can be done to them, with the line that says the same to a shell.
import { call, place } from "./api.js";
import { html, signal, useEffect, useRef, useState } from "./html.js";
import { GOES, nextTheme, showHelp } from "./keys.js";
import { go } from "./router.js";
import { hindrance, logOut, may } from "./session.js";
import { act } from "./ui/sheet.js";

const open = signal(false);
const things = signal({}); // kind → names, loaded when the palette opens
export const openPalette = () => { open.value = true; };

addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
  event.preventDefault();
  if (open.value || !document.querySelector("dialog[open]")) open.value = !open.value;
});

const at = (kind, name) => `/${kind}/${encodeURIComponent(name)}`;
/** What can be done to a thing of a kind. `cli` and `effect` are said in its sheet, too. */
const VERBS = [
  ["wake", "nodes", "operate", (name) => ({ path: `${at("nodes", name)}/wake`, cli: `accsd nodes wake ${name}`, effect: () => ["It is called by its own way to wake, now."], takesReason: false })],
  ["sleep", "nodes", "operate", (name) => ({ path: `${at("nodes", name)}/sleep`, cli: `accsd nodes sleep ${name}`, effect: () => ["It ends what it has, and sleeps if nothing speaks against it."], previews: false, takesReason: false })],
  ["drain", "nodes", "operate", (name) => ({ path: `${at("nodes", name)}/drain`, cli: `accsd nodes drain ${name}`, effect: () => ["It ends what it has, and takes nothing new."] })],
  ["resume", "nodes", "operate", (name) => ({ path: `${at("nodes", name)}/resume`, cli: `accsd nodes resume ${name}`, effect: () => ["It takes tasks again."] })],
  ["pause", "services", "operate", (name) => ({ path: `${at("services", name)}/pause`, cli: `accsd services pause ${name}`, effect: () => ["No task of it begins; what runs goes on."] })],
  ["resume", "services", "operate", (name) => ({ path: `${at("services", name)}/resume`, cli: `accsd services resume ${name}`, effect: () => ["Its tasks begin again."] })],
  ["pause", "schedules", "submit", (name) => ({ path: `${at("schedules", name)}/pause`, cli: `accsd schedules pause ${name}`, effect: () => ["It starts nothing until it is resumed."] })],
  ["resume", "schedules", "submit", (name) => ({ path: `${at("schedules", name)}/resume`, cli: `accsd schedules resume ${name}`, effect: () => ["It fires again."] })],
  ["run", "schedules", "submit", (name) => ({ path: `${at("schedules", name)}/run_now`, cli: `accsd schedules run ${name}`, effect: () => ["A job of it starts at once; no due time moves."] })],
  ["submit", "workflows", "submit", (name) => ({ goes: at("workflows", name), cli: `accsd submit ${name}` })],
  ["redrive", "groups", "operate", (group) => ({ path: "/dead-letters/redrive", body: { ids: group.letters }, cli: `accsd dead redrive ${group.letters.slice(0, 5).join(" ")}`, effect: () => [`${group.letters.length} tasks run again.`] })],
];
const ONE = { nodes: "machine", services: "service", schedules: "schedule", workflows: "workflow", groups: "dead letters" };
const PLACES = { job: "/jobs", workflow: "/workflows", service: "/services", node: "/fleet", schedule: "/schedules" };

async function load() {
  const read = (path, pick) => call(path).then((found) => found.items.map(pick), () => []);
  const [nodes, services, schedules, workflows, groups] = await Promise.all([
    read("/nodes", (each) => each.name), read("/services", (each) => each.service), read("/schedules", (each) => each.name), read("/workflows", (each) => each.name),
    read("/dead-letters/groups", (each) => ({ ...each, toString: () => `${each.group.service} ${each.group.error_code ?? ""}`.trim() })),
  ]);
  things.value = { nodes, services, schedules, workflows, groups };
}

function commands() {
  const pages = [...Object.values(GOES), ["Audit", "/system/audit"], ["Preferences", "/preferences"], ...(may("admin") ? [["Tokens", "/system/tokens"]] : [])];
  const deeds = VERBS.flatMap(([verb, kind, scope, make]) => (things.value[kind] ?? []).map((thing) => {
    const { goes, cli, ...sheet } = make(thing);
    const title = `${verb} ${thing}`;
    return { text: title, note: ONE[kind], cli, why: hindrance(scope),
      run: () => (goes ? go(goes) : act({ title, verb: verb[0].toUpperCase() + verb.slice(1), scope, cli, ...sheet })) };
  }));
  return [
    ...pages.map(([word, to]) => ({ text: word, note: "page", run: () => go(to) })),
    ...deeds,
    { text: "next theme", note: "here", run: nextTheme }, { text: "keys", note: "here", run: showHelp }, { text: "log out", note: "here", run: logOut },
  ];
}

/** How well a text fits what was typed: every word of it occurs; at the beginning is better. Null: it does not fit. */
function rank(text, words) {
  const lower = text.toLowerCase();
  if (!words.every((word) => lower.includes(word))) return null;
  return words.reduce((sum, word) => sum + (lower.startsWith(word) ? 0 : lower.includes(` ${word}`) ? 1 : 2), 0) + lower.length / 1000;
}

function fitting(typed) {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  return commands().map((each) => [rank(each.text, words), each]).filter(([value]) => value !== null)
    .sort((a, b) => (words.length ? a[0] - b[0] : 0)).slice(0, 12).map(([, each]) => each);
}

/** Jobs by id or key, everything else by name: asked of the gateway once typing pauses. */
function useHits(typed) {
  const [hits, set] = useState([]);
  useEffect(() => {
    const text = typed.trim();
    if (text.length < 2) { set([]); return undefined; }
    const abort = new AbortController();
    const planned = setTimeout(() => call(`/search?q=${encodeURIComponent(text)}`, { signal: abort.signal }).then(
      (found) => set(found.groups.flatMap(({ items }) => items)), () => {}), 150);
    return () => { clearTimeout(planned); abort.abort(); };
  }, [typed]);
  return hits.map((hit) => ({
    text: hit.kind === "job" ? `${hit.name} ${hit.id.slice(-8)}` : hit.name, note: hit.kind, cli: hit.kind === "job" ? `accsd job ${hit.id.slice(-8)}` : undefined,
    run: () => go(`${PLACES[hit.kind]}/${encodeURIComponent(hit.id)}`),
  }));
}

export const Palette = () => open.value && html`<${Opened} />`;

function Opened() {
  const dialog = useRef(null);
  const [typed, type] = useState("");
  const [at, move] = useState(0);
  useEffect(() => { dialog.current.showModal(); load(); }, []);
  const found = [...fitting(typed), ...useHits(typed)];
  const chosen = found[Math.min(at, found.length - 1)];
  const leave = () => dialog.current.close();
  const run = (each) => { if (each.why) return; leave(); each.run(); };
  const press = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      move(Math.max(0, Math.min(found.length - 1, at + (event.key === "ArrowDown" ? 1 : -1))));
    } else if (event.key === "Tab" && !event.shiftKey && chosen && chosen.text !== typed) {
      event.preventDefault(); // completes the verb first, then the whole
      const first = chosen.text.split(" ")[0];
      type(typed.startsWith(`${first} `) || !chosen.text.includes(" ") ? chosen.text : `${first} `);
      move(0);
    } else if (event.key === "Enter" && chosen) { event.preventDefault(); run(chosen); }
  };
  return html`<dialog class="palette" ref=${dialog} aria-label="Search, or do something" onClose=${() => { open.value = false; }}
      onClick=${(event) => { if (event.target === dialog.current) leave(); }}>
    <input type="text" role="combobox" aria-expanded="true" aria-controls="found" aria-activedescendant=${chosen ? `found-${found.indexOf(chosen)}` : undefined} aria-label="Search, or do something"
      placeholder="A job, a machine, a page, or: wake gpu-2" autocomplete="off" spellcheck="false" autofocus value=${typed} onInput=${(event) => { type(event.target.value); move(0); }} onKeyDown=${press} />
    <ul role="listbox" id="found" aria-label="What was found">${found.map((each, n) => html`<li key=${n} id=${`found-${n}`} role="option" aria-selected=${each === chosen} aria-disabled=${Boolean(each.why)} title=${each.why}
        onClick=${() => run(each)} onPointerMove=${() => at !== n && move(n)}><span>${each.text}</span><span class="muted small">${each.why ?? each.note}</span></li>`)}</ul>
    ${found.length === 0 && html`<p class="nothing">Nothing fits.</p>`}
    <footer class="small muted">${chosen?.cli ? html`<code>${chosen.cli}</code>` : html`<span>Tab completes, Enter does it, Esc leaves</span>`}<a class="right" href=${place("/jobs")} onClick=${leave}>All jobs</a></footer></dialog>`;
}
