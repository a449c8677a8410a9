// Instants and durations in words, counted by the database's clock.
import { signal } from "./html.js";
import { hours, zone } from "./prefs.js";

const offset = signal(0); // how far the database's clock is ahead of this one, in ms
export const tick = signal(Date.now());
setInterval(() => { if (!document.hidden) tick.value = Date.now(); }, 1000);

export const setClock = (iso) => { offset.value = Date.parse(iso) - Date.now(); };
export const now = () => tick.value + offset.value;

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)}m ${String(Math.floor(s % 60)).padStart(2, "0")}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")}m`;
  return `${Math.floor(s / 86400)}d ${Math.floor((s % 86400) / 3600)}h`;
}

export function ago(iso) {
  if (!iso) return "";
  const seconds = (now() - Date.parse(iso)) / 1000;
  const about = (s) => (s < 60 ? `${Math.round(s)} s` : s < 3600 ? `${Math.round(s / 60)} min` : s < 86400 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`);
  if (seconds < -1) return `in ${about(-seconds)}`;
  return seconds < 2 ? "now" : `${about(seconds)} ago`;
}

const zoneName = () => (zone.value === "local" ? undefined : zone.value);
const formats = new Map();
function format(options) {
  const key = JSON.stringify([zoneName(), hours.value, options]);
  if (!formats.has(key)) formats.set(key, new Intl.DateTimeFormat("en-GB", { timeZone: zoneName(), hourCycle: hours.value === "12" ? "h12" : "h23", ...options }));
  return formats.get(key);
}
const shown = (options) => (iso) => (iso ? format(options).format(new Date(iso)) : "");
const TIME = { hour: "2-digit", minute: "2-digit" };
const DAY = { year: "numeric", month: "short", day: "2-digit" };
export const clock = shown({ ...TIME, second: "2-digit" });
export const brief = shown(TIME);
export const dayShort = shown({ weekday: "short", day: "numeric" });
export const exact = shown({ ...DAY, ...TIME, second: "2-digit", timeZoneName: "short" });
export const hover = (iso) => (iso ? `${exact(iso)}\n${new Date(iso).toISOString()}` : "");

/** The zone that everything is shown in, in a word. */
export const zoneWord = () => (zone.value === "local" ? Intl.DateTimeFormat().resolvedOptions().timeZone : zone.value);

/** How far the chosen zone's clock is ahead of UTC at a moment, in ms; axes begin their days and hours by it. */
export function ahead(ms) {
  const parts = Object.fromEntries(format({ year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" })
    .formatToParts(new Date(ms)).map(({ type, value }) => [type, Number(value)]));
  return Date.UTC(parts.year, parts.month - 1, parts.day, parts.hour, parts.minute, parts.second) - Math.floor(ms / 1000) * 1000;
}

const DAY_MS = 86_400_000;

/** The day, as 2026-11-18, that a moment in ms is of; and the instant at which such a day begins, or one so many days later. */
export const dayOf = (ms) => new Date(ms + ahead(ms)).toISOString().slice(0, 10);
export function dayBegins(day, later = 0) {
  const midnight = Date.parse(`${day}T00:00:00Z`) + later * DAY_MS;
  return new Date(midnight - ahead(midnight - ahead(midnight))).toISOString().replace(".000Z", "Z");
}
