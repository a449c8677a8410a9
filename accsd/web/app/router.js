// The address is the state: the path says which page, the query what it shows.
import { batch, computed, signal } from "./html.js";
import { place } from "./api.js";

const base = place("");
const below = () => (location.pathname.startsWith(base) ? location.pathname.slice(base.length) : location.pathname) || "/";

export const path = signal(below());
export const search = signal(location.search);
export const hash = signal(location.hash);
export const params = computed(() => Object.fromEntries(new URLSearchParams(search.value)));

function read() {
  batch(() => {
    path.value = below();
    search.value = location.search;
    hash.value = location.hash;
  });
}

export function go(to, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", place(to));
  read();
  if (!replace) window.scrollTo(0, 0);
}

/** Changes a part of the query: what the page shows, not which page it is. */
export function ask(changes, { replace = true } = {}) {
  const now = { ...params.value, ...changes };
  const left = Object.entries(now).filter(([, value]) => value !== null && value !== undefined && value !== "");
  go(`${path.value}${left.length ? `?${new URLSearchParams(left)}` : ""}`, { replace });
}

addEventListener("popstate", read);
addEventListener("hashchange", read);
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || link.target || link.hasAttribute("download")) return;
  const to = new URL(link.href);
  if (to.origin !== location.origin || !to.pathname.startsWith(`${base}/`) || to.pathname.startsWith(`${base}/api/`)) return;
  if (to.pathname === location.pathname && to.search === location.search && to.hash) return; // within the page
  event.preventDefault();
  go(to.pathname.slice(base.length) + to.search + to.hash);
});
