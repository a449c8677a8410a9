// Who is logged in, and what they may.
import { call, whenUnknown } from "./api.js";
import { signal } from "./html.js";
import { hangUp, light, watchOnly } from "./live.js";
import { brief, setClock } from "./time.js";

export const me = signal(undefined); // undefined: not known yet; null: nobody
export const ended = signal(null); // why somebody who was logged in no longer is, or a link did not log in

whenUnknown(() => {
  if (!me.value) return;
  hangUp();
  ended.value = { message: "Your session has ended.", hint: "Log in again: this page is still here." };
  me.value = null;
});

const PASSED = { message: "This link does not log in any more.", hint: "Each works once: `accsd open` on the control host prints another." };
const NOT_SHARED = { message: "This link shows nothing any more.", hint: "It has ended or was revoked: whoever sent it can make another." };

/** What a link carries lets somebody in once, so nobody needs it in the address. A share is for whoever is not logged in, and nobody becomes another one by a link unasked. */
async function enter() {
  const { code, share } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (!code && !share) return;
  history.replaceState(null, "", location.pathname + location.search);
  const known = await call("/session");
  if (known.actor && !known.subject && (share || !confirm(`This link logs in as somebody. You are logged in as ${known.actor}: go on as whoever the link is of?`))) return;
  try {
    await call("/session", { method: "POST", body: code ? { code } : { share } });
  } catch (refusal) {
    if (refusal.status !== 401) throw refusal;
    ended.value = code ? PASSED : NOT_SHARED;
  }
}

// such a link may be opened where its page is shown already
addEventListener("hashchange", () => { if (/[#&](code|share)=/.test(location.hash)) location.reload(); });

export async function begin() {
  await enter();
  const found = await call("/session");
  if (found.actor) setClock(found.clock);
  watchOnly(found.subject?.replace("job:", "") ?? null);
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

/** The job that a link shows, and nothing else; null: somebody is logged in. */
export const sharedJob = () => me.value?.subject?.replace("job:", "") ?? null;

/** A link may be without the job's files. */
export const showsFiles = () => !sharedJob() || Boolean(me.value.limited_to.artifacts);

export const may = (scope) => me.value?.scopes.includes(scope) ?? false;
