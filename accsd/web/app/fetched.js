// Parts of the page that are fetched when they are first wanted: pages, and what of a page is not shown at once.
import { Problem } from "./api.js";
import { html, signal } from "./html.js";
import { Trouble } from "./ui/parts.js";

const fetched = new Map(); // by the function that fetches: a module, or null while it is under way
const arrived = signal(0);

/** The component of this name in what `fetches` imports; nothing until it is there. */
export function shown(fetches, name) {
  if (!fetched.has(fetches)) {
    fetched.set(fetches, null);
    fetches().catch(() => ({ [name]: Unfetched })).then((module) => { fetched.set(fetches, module); arrived.value += 1; });
  }
  return arrived.value >= 0 && fetched.get(fetches)?.[name];
}

const Unfetched = () => html`<${Trouble} problem=${new Problem({ detail: "this part of the page could not be fetched" }, 0)} again=${() => location.reload()} />`;
