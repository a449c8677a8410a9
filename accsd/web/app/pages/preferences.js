// How this browser shows the page. Nothing here is known to anybody else.
import { html, useState } from "../html.js";
import { GOES } from "../keys.js";
import { chooseZone, density, hours, keys, rail, theme, zone } from "../prefs.js";
import { exact, now, zoneWord } from "../time.js";
import { me } from "../session.js";
import { Facts } from "../ui/parts.js";
import { permission, watched } from "../watch.js";

const Choice = ({ label, of, choices, hint }) => html`<fieldset><legend>${label}</legend><div class="row">
  ${choices.map(([value, word]) => html`<label class="row" key=${value}><input type="radio" name=${label} checked=${of.value === value} onChange=${() => { of.value = value; }} /> ${word}</label>`)}</div>
  ${hint && html`<p class="muted small">${hint}</p>`}</fieldset>`;

function Zone() {
  const [typed, type] = useState(zone.value === "local" ? "" : zone.value);
  const [refused, refuse] = useState(false);
  const choose = (event) => { event.preventDefault(); refuse(!chooseZone(typed.trim() || "local")); };
  return html`<fieldset id="zone"><legend>Time zone</legend>
    <form class="row" onSubmit=${choose}><input list="zones" aria-label="Time zone" placeholder="local" value=${typed} onInput=${(event) => { type(event.target.value); refuse(false); }} aria-invalid=${refused} />
      <button>Use it</button>${zone.value !== "local" && html`<button type="button" onClick=${() => { type(""); chooseZone("local"); }}>Local time</button>`}</form>
    <datalist id="zones">${(Intl.supportedValuesOf?.("timeZone") ?? []).map((each) => html`<option key=${each} value=${each} />`)}</datalist>
    <p class=${refused ? "state" : "muted small"} data-state=${refused ? "error" : undefined} role="status">${refused ? "The browser knows no such zone. Names are those of IANA, such as Asia/Kolkata." : `Times are those of ${zoneWord()}: it is ${exact(new Date(now()).toISOString())}.`}</p></fieldset>`;
}

const ALLOWED = {
  granted: "The browser may tell you when a job ends that you watch.",
  default: "The browser asks whether it may tell you, when you watch a job for the first time.",
  denied: "The browser may not tell you: you have told it so, and its settings can change that. The page and its title do.",
};

function Notifications() {
  const count = watched.value.length;
  return html`<p>${ALLOWED[permission()] ?? "The browser tells only on pages over HTTPS or of this machine. Here the page and its title do."}</p>
    <p class="muted small">Press <em>Tell me when it ends</em> on a job. A tab has to be open; a hidden one looks every 15 s to a minute. ${count ? `${count} ${count === 1 ? "job is" : "jobs are"} watched. ` : "No job is watched."}${count > 0 && html`<button onClick=${() => { watched.value = []; }}>Watch none</button>`}</p>`;
}

export const Preferences = () => html`<div class="head"><h1>Preferences</h1><span class="muted">kept in this browser</span></div>
  <div class="grid">
    <section class="panel half form"><h2>Looks</h2>
      <${Choice} label="Theme" of=${theme} choices=${[["system", "as the system has it"], ["light", "light"], ["dark", "dark"]]} />
      <${Choice} label="Density" of=${density} choices=${[["compact", "compact"], ["comfortable", "comfortable"]]} />
      <${Choice} label="List of pages" of=${rail} choices=${[["wide", "with words"], ["narrow", "signs only"]]} /></section>
    <section class="panel half form"><h2>Time</h2><${Zone} />
      <${Choice} label="Clock" of=${hours} choices=${[["24", "24 hours"], ["12", "12 hours"]]} /></section>
    <section class="panel half form"><h2>Keys</h2>
      <label class="row"><input type="checkbox" checked=${keys.value} onChange=${(event) => { keys.value = event.target.checked; }} /> Single keys do something</label>
      <p class="muted small">${Object.entries(GOES).map(([key, [word]]) => `g ${key}: ${word}`).join(" · ")}. Ctrl K always works; ? shows all.</p></section>
    <section class="panel half form"><h2>Notifications</h2><${Notifications} /></section>
    <section class="panel half"><h2>You</h2><${Facts} of=${[["actor", me.value.actor], ["kind", me.value.kind], ["may", me.value.scopes.join(", ")], ["by", me.value.token_id ? `token ${me.value.token_id}` : "a link that logged in once"]]} />
      ${Object.entries(me.value.limited_to ?? {}).map(([what, names]) => html`<p key=${what}>limited to ${what}: ${[names].flat().join(", ")}</p>`)}</section></div>`;
