// Who did what, when, by which way and why.
import { call, query } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { useLoaded } from "../load.js";
import { ask, params } from "../router.js";
import { may } from "../session.js";
import { At, Json, Nothing, State, Table, Trouble } from "../ui/parts.js";
import { SystemTabs } from "./system.js";

const ANSWERS = { accepted: "done", repeated: "skipped", refused: "error" };

export function Audit() {
  const { actor = "", target = "", since = "" } = params.value;
  const asked = { actor, target, since: since && `${since}T00:00:00Z`, limit: 100 };
  const { data, problem, again } = useLoaded(`/audit${query(asked)}`);
  const [older, setOlder] = useState({ rows: [], next: undefined });
  const [open, show] = useState(null);
  useEffect(() => setOlder({ rows: [], next: undefined }), [actor, target, since]);
  const known = new Set();
  const rows = [...(data?.items ?? []), ...older.rows].filter((each) => !known.has(each.id) && known.add(each.id));
  const next = older.next === undefined ? data?.next : older.next;
  const more = async () => { const page = await call(`/audit${query({ ...asked, before: next })}`); setOlder({ rows: [...older.rows, ...page.items], next: page.next }); };
  const field = (name, label, type, value, hint) => html`<label><span class="visually-hidden">${label}</span><input type=${type} title=${label} placeholder=${hint} value=${value} onChange=${(event) => ask({ [name]: event.target.value.trim() })} /></label>`;
  return html`<div class="head"><h1>Audit</h1>${!may("admin") && html`<span class="muted">what you did; everybody's needs the scope admin</span>`}</div><${SystemTabs} now="audit" />
    <div class="head filters">${may("admin") && field("actor", "Who", "search", actor, "who")}${field("target", "What it was done to", "search", target, "what it was done to")}${field("since", "Since", "date", since, "since")}</div>
    <${Trouble} problem=${problem} again=${again} />
    ${data && (rows.length ? html`<${Table} label="Audit" rows=${rows} keyOf=${(each) => each.id} opens=${(each) => show(open === each.id ? null : each.id)} selected=${open} columns=${[
      ["At", (each) => html`<${At} at=${each.ts} />`, "nowrap"], ["Who", (each) => each.actor ?? ""], ["By", (each) => each.via], ["Did", (each) => html`<button class="link" aria-expanded=${open === each.id} onClick=${() => show(open === each.id ? null : each.id)}>${each.action}</button>`, "nowrap"], ["To", (each) => html`${each.kind}${each.target ? html` <span class="mono">${each.target}</span>` : ""}`],
      ["Answer", (each) => html`<${State} of=${ANSWERS[each.answer] ?? "queued"} word=${each.answer} />`], ["Why", (each) => (open === each.id ? html`<div>${each.reason}</div><${Json} value=${each.detail} />${each.request_id && html`<div class="muted small">request ${each.request_id}</div>`}` : html`<span title=${each.reason}>${each.reason ?? ""}</span>`), open === null ? "cut" : "wraps"],
    ]} />` : html`<${Nothing}>${actor || target || since ? "Nothing fits." : "Nobody has done anything yet."}<//>`)}
    ${next && html`<p><button onClick=${more}>Show older ones</button></p>`}`;
}
