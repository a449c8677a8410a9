// The frame of every page: where one can go, whether what is shown is fresh, who is logged in.
import { place } from "./api.js";
import { html } from "./html.js";
import { light, version } from "./live.js";
import { path } from "./router.js";
import { theme, zone } from "./prefs.js";
import { logOut, me } from "./session.js";
import { clock } from "./time.js";
import { Notices } from "./ui/notices.js";
import { Sheet } from "./ui/sheet.js";

const PAGES = [
  ["/", "Overview"], ["/jobs", "Jobs"], ["/fleet", "Fleet"], ["/services", "Services"], ["/dead", "Dead letters"],
  ["/schedules", "Schedules"], ["/workflows", "Workflows"], ["/system", "System"],
];
const isAt = (to) => (to === "/" ? path.value === "/" : path.value === to || path.value.startsWith(`${to}/`));
const THEMES = { system: "light", light: "dark", dark: "system" };

function Light() {
  const { state, reason, since } = light.value;
  const words = {
    live: "● live", polling: `◐ polling${reason ? ` (${reason})` : ""}`, lost: `○ lost since ${clock(since)}`, off: "○ not connected",
  };
  return html`<span class="light" data-state=${state} role="status" title=${reason}>${words[state]}</span>`;
}

export const Shell = ({ children, crumbs }) => html`<div class="shell">
  <a class="brand" href=${place("/")}><img src=${new URL("../icon.svg", import.meta.url).href} alt="" />accsd</a>
  <header class="top">
    <div class="crumbs">${crumbs}</div>
    ${version.value && version.value !== me.value.version && html`<button class="plain" onClick=${() => location.reload()}>New version: reload</button>`}
    <${Light} />
    <label class="wide-only"><span class="visually-hidden">Time zone</span><select value=${zone.value} onChange=${(event) => { zone.value = event.target.value; }}>
      <option value="local">local time</option><option value="UTC">UTC</option></select></label>
    <button class="plain wide-only" onClick=${() => { theme.value = THEMES[theme.value]; }} aria-label=${`Theme: ${theme.value}`}>◑ ${theme.value}</button>
    <span class="muted wide-only" title=${me.value.scopes.join(", ")}>${me.value.actor}</span>
    <button class="plain" onClick=${() => logOut()}>Log out</button>
  </header>
  <nav class="rail" aria-label="Pages">${PAGES.map(([to, word]) => html`<a key=${to} href=${place(to)} aria-current=${isAt(to) ? "page" : undefined}>${word}</a>`)}</nav>
  <main id="main" tabindex="-1">${children}</main>
  <${Notices} /><${Sheet} />
</div>`;
