// What lets programs and people in: made here, shown once, revoked.
import { call, place } from "../api.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { useLoaded } from "../load.js";
import { may, me } from "../session.js";
import { Action } from "../ui/sheet.js";
import { At, Copy, Nothing, State, Table, Trouble, When } from "../ui/parts.js";
import { SystemTabs } from "./system.js";

const SCOPES = [["read", "looks, and changes nothing: a dashboard, a monitor"], ["submit", "submits jobs, and acts on its own: a program that wants work done"], ["operate", "acts on everybody's jobs, machines and schedules: a person on duty"], ["admin", "also makes tokens: who runs this"], ["agent", "carries tasks out: a worker"]];
const STATES = { live: "ready", expired: "away", revoked: "cancelled", disabled: "away" };

export function Tokens() {
  const allowed = may("admin");
  const { data, problem, again } = useLoaded(allowed ? "/tokens" : null);
  const [made, setMade] = useState(null);
  return html`<div class="head"><h1>Tokens</h1></div><${SystemTabs} now="tokens" />
    ${!allowed && html`<${Nothing}>To see and make tokens needs the scope admin. <code>accsd tokens list</code> on the control host shows them, too.<//>`}
    <${Trouble} problem=${problem} again=${again} />
    ${allowed && html`<div class="grid"><section class="panel"><${Make} done=${(token) => { setMade(token); again(); }} /></section>
      <section class="panel"><h2>All tokens</h2>${data && html`<${Table} label="Tokens" rows=${data.items} keyOf=${(each) => each.id} columns=${[
        ["Name", (each) => each.name], ["Acts as", (each) => html`${each.actor} <span class="muted">${each.kind}</span>`], ["May", (each) => each.scopes.join(", ")], ["Limited to", (each) => Object.entries(each.limits).map(([what, names]) => `${what}: ${[names].flat().join(", ")}`).join("; ") + (each.subject ? ` ${each.subject}` : ""), "cut"],
        ["Last used", (each) => (each.last_used_at ? html`<${When} at=${each.last_used_at} />` : html`<span class="muted">never</span>`), "nowrap"], ["Expires", (each) => (each.expires_at ? html`<${When} at=${each.expires_at} />` : html`<span class="muted">never</span>`), "nowrap"], ["Made", (each) => html`<${At} at=${each.created_at} /> <span class="muted">${each.created_by}</span>`],
        ["State", (each) => html`<${State} of=${STATES[each.state] ?? "queued"} word=${each.state} />`],
        ["", (each) => each.state === "live" && html`<${Action} label="Revoke" kind="danger small" action=${{ title: `Revoke ${each.name}`, path: `/tokens/${each.id}`, method: "DELETE", previews: false, scope: "admin", verb: "Revoke", danger: true, cli: `accsd tokens revoke ${each.id}`, done: () => { again(); return `${each.name} is revoked`; },
          effect: () => ["Whoever uses it is refused from now on; its sessions and streams end.", ...(each.id === me.value.token_id ? ["You are logged in by it: this logs you out."] : [])] }} />`, "right"],
      ]} />`}</section></div>`}
    ${made && html`<${Once} made=${made} leave=${() => setMade(null)} />`}`;
}

function Make({ done }) {
  const [given, give] = useState({ name: "", scope: "read", actor: "", kind: "", workflows: "", expires_in: "90d" });
  const [problem, setProblem] = useState(null);
  const put = (name) => (event) => give({ ...given, [name]: event.target.value });
  const names = given.workflows.split(/[\s,]+/).filter(Boolean);
  const body = { name: given.name, scopes: [given.scope], expires_in: given.expires_in, ...(given.actor ? { actor: given.actor } : {}), ...(given.kind ? { kind: given.kind } : {}), ...(names.length ? { limits: { workflows: names } } : {}) };
  const make = (event) => {
    event.preventDefault();
    call("/tokens", { method: "POST", body }).then((token) => { setProblem(null); give({ ...given, name: "" }); done(token); }, setProblem);
  };
  return html`<form class="form" onSubmit=${make}><h2>Make a token</h2><${Trouble} problem=${problem} />
    <div class="row"><label>Name<input required maxlength="100" value=${given.name} onInput=${put("name")} /></label>
      <label>May<select value=${given.scope} onChange=${put("scope")}>${SCOPES.map(([scope]) => html`<option key=${scope} value=${scope}>${scope}</option>`)}</select></label>
      <label>Acts as<input placeholder="an actor of its name" value=${given.actor} onInput=${put("actor")} /></label>
      <label>Who is a<select value=${given.kind} onChange=${put("kind")}><option value="">as it is</option><option value="person">person</option><option value="service">service</option><option value="assistant">assistant</option></select></label>
      <label>Only workflows<input placeholder="media-*" value=${given.workflows} onInput=${put("workflows")} /></label>
      <label>For<select value=${given.expires_in} onChange=${put("expires_in")}>${["1d", "7d", "30d", "90d", "365d", "never"].map((each) => html`<option key=${each} value=${each}>${each === "never" ? "ever" : each}</option>`)}</select></label>
      <button class="primary end">Make it</button></div>
    <p class="muted small">${given.scope}: ${SCOPES.find(([scope]) => scope === given.scope)[1]}.</p></form>`;
}

/** Its text is shown this once; nobody can read it afterwards. */
function Once({ made, leave }) {
  const dialog = useRef(null);
  useEffect(() => { dialog.current.showModal(); }, []);
  const api = `${location.origin}${place("/api/v1")}`;
  const lines = [["The token", made.token], ["In a shell", `export ACC_TOKEN=${made.token}`], ["With curl", `curl -H "Authorization: Bearer $ACC_TOKEN" ${api}/me`], ["In Python", `accsd.client.Client("${location.origin}${place("")}", token=os.environ["ACC_TOKEN"])`], ["For an assistant", "accsd mcp"]];
  return html`<dialog ref=${dialog} aria-labelledby="token-title" onClose=${leave}><header id="token-title">${made.name} is made</header>
    <div class="body"><p class="hint waits"><strong>This is shown once.</strong> Only a digest of it is kept: whoever loses it makes another.</p>
      ${lines.map(([word, line]) => html`<div key=${word}><div class="muted small">${word}</div><div class="also"><div><code>${line}</code><${Copy} text=${line} label="Copy" /></div></div></div>`)}</div>
    <footer><button class="primary" onClick=${() => dialog.current.close()}>I have it</button></footer></dialog>`;
}
