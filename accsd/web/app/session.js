// Who is logged in, and what they may.
import { call } from "./api.js";
import { signal } from "./html.js";
import { hangUp } from "./live.js";
import { setClock } from "./time.js";

export const me = signal(undefined); // undefined: not known yet; null: nobody

export async function begin() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (code) {
    history.replaceState(null, "", location.pathname + location.search); // it works once: nobody needs it in the address
    await call("/session", { method: "POST", body: { code } });
  }
  const found = await call("/session");
  if (found.actor) setClock(found.clock);
  me.value = found.actor ? found : null;
}

export async function logIn(token) {
  await call("/session", { method: "POST", body: { token } });
  await begin();
}

export async function logOut() {
  await call("/session", { method: "DELETE" });
  hangUp();
  me.value = null;
}

export const may = (scope) => me.value?.scopes.includes(scope) ?? false;
