// What a person has chosen, kept in this browser.
import { effect, signal } from "./html.js";

const KEPT = "accsd.prefs";
const read = () => { try { return JSON.parse(localStorage.getItem(KEPT)) ?? {}; } catch { return {}; } };
const chosen = { theme: "system", density: "compact", zone: "local", zones: [], hours: "24", keys: true, rail: "wide", wraps: false, ...read() };

/** Whether the browser knows a zone of this name. */
export function isZone(name) {
  try { return Boolean(name) && Boolean(new Intl.DateTimeFormat("en", { timeZone: name })); } catch { return false; }
}

export const theme = signal(chosen.theme); // system | light | dark
export const density = signal(chosen.density); // compact | comfortable
export const zone = signal(chosen.zone === "local" || isZone(chosen.zone) ? chosen.zone : "local"); // local | UTC | a name such as Europe/Berlin
export const zones = signal(chosen.zones.filter(isZone)); // those that were chosen before, the last first
export const hours = signal(chosen.hours); // 24 | 12: how a clock counts
export const keys = signal(chosen.keys); // whether single keys do something
export const rail = signal(chosen.rail); // wide | narrow
export const wraps = signal(chosen.wraps === true); // whether long lines of logs are broken

export function chooseZone(name) {
  if (name !== "local" && !isZone(name)) return false;
  zone.value = name;
  if (name !== "local" && name !== "UTC") zones.value = [name, ...zones.value.filter((each) => each !== name)].slice(0, 5);
  return true;
}

effect(() => {
  const root = document.documentElement;
  if (theme.value === "system") delete root.dataset.theme;
  else root.dataset.theme = theme.value;
  root.dataset.density = density.value;
  root.dataset.rail = rail.value;
  localStorage.setItem(KEPT, JSON.stringify({
    theme: theme.value, density: density.value, zone: zone.value, zones: zones.value, hours: hours.value, keys: keys.value, rail: rail.value, wraps: wraps.value,
  }));
});
