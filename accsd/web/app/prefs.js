// What a person has chosen, kept in this browser.
import { effect, signal } from "./html.js";

const KEPT = "accsd.prefs";
const chosen = { theme: "system", density: "compact", zone: "local", keys: true, ...JSON.parse(localStorage.getItem(KEPT) ?? "{}") };

export const theme = signal(chosen.theme); // system | light | dark
export const density = signal(chosen.density); // compact | comfortable
export const zone = signal(chosen.zone); // local | UTC | a name such as Europe/Berlin
export const keys = signal(chosen.keys); // whether single keys do something

effect(() => {
  const root = document.documentElement;
  if (theme.value === "system") delete root.dataset.theme;
  else root.dataset.theme = theme.value;
  root.dataset.density = density.value;
  localStorage.setItem(KEPT, JSON.stringify({ theme: theme.value, density: density.value, zone: zone.value, keys: keys.value }));
});
