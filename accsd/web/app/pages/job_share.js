// A link that shows one job to somebody without an account: made here, shown once, revoked here.
import { call, place } from "../api.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { useLoaded } from "../load.js";
import { hindrance, me } from "../session.js";
import { Copy, Table, Trouble, When } from "../ui/parts.js";

const LIVES = [["1d", "a day"], ["7d", "a week"], ["30d", "30 days"]];

export function Share({ job }) {
  const [isOpen, open] = useState(false);
  const why = hindrance("operate");
  return html`<button disabled=${Boolean(why)} title=${why} onClick=${() => open(true)}>Share</button>${isOpen && html`<${Opened} job=${job} leave=${() => open(false)} />`}`;
}

function Opened({ job, leave }) {
  const dialog = useRef(null);
  const path = `/jobs/${job.id}/shares`;
  const shares = useLoaded(path);
  const [given, give] = useState({ expires_in: "7d", artifacts: false });
  const [made, setMade] = useState(null);
  const [problem, setProblem] = useState(null);
  const isOff = !me.value.features.shares;
  useEffect(() => { dialog.current.showModal(); }, []);
  const does = (asked, then) => asked.then((answer) => { setProblem(null); then(answer); shares.again(); }, setProblem);
  const make = (event) => { event.preventDefault(); does(call(path, { method: "POST", body: given }), setMade); };
  const revoke = (share) => () => does(call(`${path}/${share.id}`, { method: "DELETE" }), () => made?.id === share.id && setMade(null));
  const link = made && `${location.origin}${place(`/jobs/${job.id}`)}#share=${made.token}`;
  const live = shares.data?.items.filter((each) => each.state === "live") ?? [];
  return html`<dialog ref=${dialog} aria-labelledby="share-title" onClose=${leave}><form onSubmit=${make}>
    <header id="share-title">Share ${job.workflow} ${job.id.slice(-8)}</header>
    <div class="body"><${Trouble} problem=${problem ?? shares.problem} />
      ${made ? html`<p class="hint waits"><strong>This link is shown once.</strong> Whoever has it sees this job, and nothing else${made.limits.artifacts ? "" : " (without its files)"}.</p><div class="also"><div><code>${link}</code><${Copy} text=${link} label="Copy" /></div></div>`
        : isOff ? html`<p class="hint waits">Shares are switched off (gateway.shares): none can be made, and no link shows anything.</p>`
        : html`<p>Whoever has the link sees this job's steps, attempts, events, times and results, until then or until it is revoked. No logs by line, no other job, and nothing can be changed.</p>
      <div class="row"><label>For<select value=${given.expires_in} onChange=${(event) => give({ ...given, expires_in: event.target.value })}>${LIVES.map(([length, word]) => html`<option key=${length} value=${length}>${word}</option>`)}</select></label>
        <label class="check"><input type="checkbox" checked=${given.artifacts} onChange=${(event) => give({ ...given, artifacts: event.target.checked })} /> with its files</label></div>`}
      ${live.length > 0 && html`<h3>Links to this job</h3><${Table} label="Links to this job" rows=${live} keyOf=${(each) => each.id} columns=${[["Made by", (each) => each.created_by], ["Ends", (each) => html`<${When} at=${each.expires_at} />`], ["Files", (each) => (each.limits.artifacts ? "with" : "without")],
        ["Last used", (each) => (each.last_used_at ? html`<${When} at=${each.last_used_at} />` : html`<span class="muted">never</span>`)], ["", (each) => html`<button type="button" class="danger small" aria-label=${`Revoke ${each.id}`} onClick=${revoke(each)}>Revoke</button>`, "right"]]} />`}</div>
    <footer><button type="button" onClick=${() => dialog.current.close()}>${made ? "I have it" : "Leave it"}</button>${!made && !isOff && html`<button class="primary">Make a link</button>`}</footer></form></dialog>`;
}
