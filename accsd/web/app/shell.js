// The frame of every page: where one can go, whether what is shown is fresh, who is logged in.
import { place } from "./api.js";
import { html, signal, useEffect, useRef } from "./html.js";
import { KeysHelp, nextTheme, showHelp } from "./keys.js";
import { light, subscribe, tryNow, version } from "./live.js";
import { openPalette, Palette } from "./palette.js";
import { go, path } from "./router.js";
import { chooseZone, rail, theme, zone, zones } from "./prefs.js";
import { logOut, may, me } from "./session.js";
import { clock, duration, now, zoneWord } from "./time.js";
import { Icon } from "./ui/icons.js";
import { Notices } from "./ui/notices.js";
import { Sheet } from "./ui/sheet.js";
import { keepWatch } from "./watch.js";

export const PAGES = [
  ["/", "Overview", "overview"], ["/jobs", "Jobs", "jobs"], ["/fleet", "Fleet", "fleet"], ["/services", "Services", "services"], ["/dead", "Dead letters", "dead"],
  ["/schedules", "Schedules", "schedules"], ["/triggers", "Triggers", "triggers"], ["/workflows", "Workflows", "workflows"], ["/tools", "Tools", "tools"], ["/system", "System", "system"],
];
const ON_PHONES = ["/", "/jobs", "/fleet", "/schedules"]; // the others are behind "More"
const isAt = (to) => (to === "/" ? path.value === "/" : path.value === to || path.value.startsWith(`${to}/`));
const dead = signal(0); // dead letters that are open

function Light() {
  const { state, reason, since, words: told } = light.value;
  const words = { live: ["●", "live"], polling: ["◐", "polling"], lost: ["○", `lost since ${clock(since)}`], off: ["○", "connecting"] };
  const [glyph, word] = words[state];
  const said = { live: "What happens is shown as it happens.", polling: `The gateway is not notified${reason ? ` (${reason})` : ""}, so it looks every second.`, off: "The stream is being opened." };
  return html`<span class="light" data-state=${state} role="status" title=${told ?? said[state] ?? reason}>${glyph} ${word}</span>`;
}

/** Over the page instead of in it: nothing moves because the connection was lost. */
function Outage() {
  const { state, reason, since } = light.value;
  if (state !== "lost") return null;
  return html`<div class="outage" role="alert"><strong>No connection since ${clock(since)}.</strong>
    <span>${reason ? `${reason[0].toUpperCase()}${reason.slice(1)}. ` : ""}What is shown is as of ${clock(since)}, ${duration((now() - Date.parse(since)) / 1000)} ago; nothing can be changed until it is back.</span>
    <button onClick=${tryNow}>Try now</button></div>`;
}

function Zone() {
  const choose = (event) => {
    if (event.target.value !== "another") return chooseZone(event.target.value);
    event.target.value = zone.value;
    return go("/preferences#zone");
  };
  const named = [...new Set([zone.value, ...zones.value])].filter((each) => each !== "local" && each !== "UTC");
  return html`<label class="wide-only"><span class="visually-hidden">Time zone</span><select class="quiet" value=${zone.value} title=${`Times are those of ${zoneWord()}`} onChange=${choose}>
    <option value="local">local time</option><option value="UTC">UTC</option>${named.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}<option value="another">another zone …</option></select></label>`;
}

/** A button and what it opens; it closes on a click elsewhere, on Escape, and once something was chosen. */
function Menu({ label, sign, name, children }) {
  const box = useRef(null);
  useEffect(() => {
    const leave = (event) => { if (!box.current.contains(event.target)) box.current.open = false; };
    const escape = (event) => { if (event.key === "Escape" && box.current.open) { box.current.open = false; box.current.querySelector("summary").focus(); } };
    document.addEventListener("click", leave);
    box.current.addEventListener("keydown", escape);
    return () => document.removeEventListener("click", leave);
  }, []);
  return html`<details class=${`menu ${name}`} ref=${box}><summary aria-label=${label}>${sign}</summary>
    <div class="menu-list" onClick=${(event) => { if (event.target.closest("a, button")) box.current.open = false; }}>${children}</div></details>`;
}

const Me = () => html`<${Menu} name="me" label=${`You are ${me.value.actor}`} sign=${html`<${Icon} of="me" /><span class="wide-only">${me.value.actor}</span>`}>
  <p class="muted small">${me.value.actor}<br />may ${me.value.scopes.join(", ")}</p>
  <a href=${place("/preferences")}>Preferences</a>
  <button onClick=${nextTheme}>Theme: ${theme.value}</button>
  <button onClick=${showHelp}>Keys</button>
  ${may("admin") && html`<a href=${place("/system/tokens")}>Tokens</a>`}
  <button onClick=${() => logOut()}>Log out</button><//>`;

const Rail = () => html`<nav class="rail" aria-label="Pages">
  ${PAGES.map(([to, word, icon]) => html`<a key=${to} class=${ON_PHONES.includes(to) ? "" : "wide-only"} href=${place(to)} title=${word} aria-current=${isAt(to) ? "page" : undefined}>
    <${Icon} of=${icon} /><span class="word">${word}</span>${to === "/dead" && dead.value > 0 && html`<span class="count" aria-label=${`${dead.value} open`}>${dead.value > 999 ? "999+" : dead.value}</span>`}</a>`)}
  <${Menu} name="more phone-only" label="More pages" sign=${html`<${Icon} of="more" /><span class="word">More</span>`}>
    ${PAGES.filter(([to]) => !ON_PHONES.includes(to)).map(([to, word, icon]) => html`<a key=${to} href=${place(to)} aria-current=${isAt(to) ? "page" : undefined}><${Icon} of=${icon} />${word}</a>`)}
    <a href=${place("/preferences")}><${Icon} of="me" />Preferences</a><//>
  <button class="fold wide-only" aria-label=${rail.value === "wide" ? "Make the list of pages narrow" : "Make the list of pages wide"} onClick=${() => { rail.value = rail.value === "wide" ? "narrow" : "wide"; }}><${Icon} of=${rail.value === "wide" ? "narrow" : "wide"} /></button>
</nav>`;

/** The frame of a job that is shared: nowhere to go, and nothing to do. */
export const SharedShell = ({ job, children }) => html`<div class="shell shared">
  <header class="top"><img src=${new URL("../icon.svg", import.meta.url).href} alt="" /><div class="crumbs">accsd / <a href=${place(`/jobs/${job}`)}>${job.slice(-8)}</a> <span class="muted">shared by ${me.value.actor}, to look at only</span></div>
    <${Light} /><${Zone} /><button class="plain" onClick=${nextTheme} aria-label=${`Theme: ${theme.value}`} title=${`Theme: ${theme.value}`}>◑</button></header>
  <main id="main" tabindex="-1" class=${light.value.state === "lost" ? "stale" : ""}>${children}</main><${Outage} /><${Notices} /></div>`;

export function Shell({ children, crumbs }) {
  useEffect(keepWatch, []);
  useEffect(() => subscribe(["overview"], (kind, said) => { if (kind === "dead") dead.value = said.open ?? 0; }), []);
  return html`<div class="shell">
    <a class="brand" href=${place("/")}><img src=${new URL("../icon.svg", import.meta.url).href} alt="" /><span class="word">accsd</span></a>
    <header class="top">
      <div class="crumbs">${crumbs}</div>
      ${version.value && version.value !== me.value.version && html`<button class="plain" onClick=${() => location.reload()}>New version: reload</button>`}
      <button class="finds" onClick=${openPalette} aria-label="Search or do Ctrl K"><${Icon} of="search" /><span class="wide-only">Search or do <kbd>Ctrl K</kbd></span></button>
      <${Light} /><${Zone} />
      <button class="plain wide-only" onClick=${nextTheme} aria-label=${`Theme: ${theme.value}`} title=${`Theme: ${theme.value}`}>◑</button>
      <${Me} />
    </header>
    <${Rail} />
    <main id="main" tabindex="-1" class=${light.value.state === "lost" ? "stale" : ""}>${children}</main>
    <${Outage} /><${Notices} /><${Sheet} /><${Palette} /><${KeysHelp} />
  </div>`;
}
