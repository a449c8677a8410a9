// Who is logged in, and what they may.
import { call, whenUnknown } from "./api.js";
import { signal } from "./html.js";
import { hangUp, light } from "./live.js";
import { brief, setClock } from "./time.js";

export const me = signal(undefined); // undefined: not known yet; null: nobody
export const ended = signal(null); // why somebody who was logged in no longer is, or a link did not log in

whenUnknown(() => {
  if (!me.value) return;
  hangUp();
  ended.value = { message: "Your session has ended.", hint: "Log in again: this page is still here." };
  me.value = null;
});

export async function begin() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (code) {
    history.replaceState(null, "", location.pathname + location.search); // it works once: nobody needs it in the address
    try {
      await call("/session", { method: "POST", body: { code } });
    } catch (refusal) {
      if (refusal.status !== 401) throw refusal;
      ended.value = { message: "This link does not log in any more.", hint: "Each works once: `accsd open` on the control host prints another." };
    }
  }
  const found = await call("/session");
  if (found.actor) setClock(found.clock);
  me.value = found.actor ? found : null;
}

export async function logIn(token) {
  await call("/session", { method: "POST", body: { token } });
  ended.value = null;
  await begin();
}

export async function logOut() {
  await call("/session", { method: "DELETE" });
  hangUp();
  ended.value = null;
  me.value = null;
}

/** Why an action that needs a scope can't be done now; undefined: it can. */
export function hindrance(scope) {
  if (!may(scope)) return `needs the scope ${scope}`;
  return light.value.state === "lost" ? `no connection since ${brief(light.value.since)}: nothing can be changed` : undefined;
}

export const may = (scope) => me.value?.scopes.includes(scope) ?? false;
