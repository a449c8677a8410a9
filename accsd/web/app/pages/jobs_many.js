// One action on many: what is selected, or everything that matches. What the preview froze is what is done.
import { call, newKey, place } from "../api.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { useLoaded } from "../load.js";
import { hindrance } from "../session.js";
import { Trouble } from "../ui/parts.js";
import { OperationFacts } from "./operations.js";

const VERBS = { cancel: "Cancel", retry: "Retry", set_priority: "Set the priority of", redrive: "Redrive", dismiss: "Dismiss" };

/** The bar of what is selected. `filter`: the query of the list; `chosen`: ids. */
export function Many({ chosen, filter, clear }) {
  const [wanted, want] = useState(null);
  const [isAll, setAll] = useState(false);
  const why = hindrance("operate");
  const target = isAll ? { filter: { q: filter } } : { ids: [...chosen] };
  const button = (action, word) => html`<button disabled=${Boolean(why)} title=${why} onClick=${() => want({ action, target, ...(action === "set_priority" ? { priority: 10 } : {}) })}>${word}</button>`;
  return html`<div class="many" role="region" aria-label="What is selected"><strong>${isAll ? "All that match" : `${chosen.size} selected`}</strong>
    ${button("cancel", "Cancel")}${button("retry", "Retry")}${button("set_priority", "Priority")}
    ${!isAll ? html`<button class="link" onClick=${() => setAll(true)}>Select everything that matches${filter ? ` ${filter}` : ""}</button>` : html`<button class="link" onClick=${() => setAll(false)}>Only the ${chosen.size} selected</button>`}
    <span class="grow"></span><button class="plain" onClick=${clear}>Clear</button>
    ${wanted && html`<${OperationSheet} asked=${wanted} close=${() => want(null)} done=${clear} />`}</div>`;
}

/** asked: {action, target, priority}. First its dry run, then the real one on what that has frozen, then its progress. */
export function OperationSheet({ asked, close, done = () => {}, thing = "job" }) {
  const dialog = useRef(null);
  const key = useRef(null);
  const [preview, setPreview] = useState(null);
  const [problem, setProblem] = useState(null);
  const [reason, setReason] = useState("");
  const [priority, setPriority] = useState(asked.priority);
  const [begun, begin] = useState(null);
  const [busy, setBusy] = useState(false);
  const body = { action: asked.action, target: asked.target, ...(priority !== undefined ? { priority } : {}) };
  useEffect(() => dialog.current.showModal(), []);
  useEffect(() => { call("/operations?dry_run=true", { method: "POST", body }).then(setPreview, setProblem); }, []);
  const confirm = async (event) => {
    event.preventDefault();
    setBusy(true);
    key.current ??= newKey();
    const real = { ...body, target: asked.target.ids ? asked.target : preview.target, ...(reason ? { reason } : {}) };
    try {
      begin(await call("/operations", { method: "POST", body: real, headers: { "Idempotency-Key": key.current } }));
    } catch (refusal) { setProblem(refusal); }
    setBusy(false);
  };
  const count = preview && `${preview.count_is === "exact" ? "" : "at least "}${preview.count.toLocaleString()} ${thing}${preview.count === 1 ? "" : "s"}`;
  const end = () => { close(); if (begun) done(); };
  return html`<dialog ref=${dialog} onClose=${end} aria-labelledby="many-title"><form onSubmit=${confirm}>
    <header id="many-title">${VERBS[asked.action]} ${count ?? `${thing}s`}</header>
    <div class="body"><${Trouble} problem=${problem} />
      ${begun ? html`<${Progress} begun=${begun} />` : preview ? html`<p>${preview.count === 0 ? "Nothing matches." : `${VERBS[asked.action]} ${count}. What is newer than this preview is not touched.`}</p>
        ${asked.action === "set_priority" && html`<label>Priority<input type="number" step="1" value=${priority} onInput=${(event) => setPriority(Math.trunc(Number(event.target.value)))} /></label>`}
        <${Examples} of=${preview.examples} count=${preview.count} />
        <label>Reason, for the history<input class="wide" maxlength="500" value=${reason} onInput=${(event) => setReason(event.target.value)} /></label>` : !problem && html`<p class="muted">Working out what it would do …</p>`}</div>
    <footer><button type="button" onClick=${end}>${begun ? "Close" : "Leave it"}</button>
      ${!begun && html`<button class=${asked.action === "cancel" || asked.action === "dismiss" ? "danger" : "primary"} disabled=${busy || !preview || !preview.count}>${VERBS[asked.action]} ${count ?? ""}</button>`}</footer></form></dialog>`;
}

function Examples({ of, count }) {
  if (!of.length) return null;
  return html`<details open=${of.length <= 5}><summary>${of.length < count ? `The first ${of.length}` : "These"}</summary><ul class="examples">${of.map((each) => {
    const id = typeof each === "string" ? each : String(each.id);
    return html`<li key=${id}><span class="mono">${id.slice(-8)}</span> ${each.workflow ?? ""} ${each.status ?? each.task_key ?? ""} <span class="muted">${each.error_message ?? ""}</span></li>`;
  })}</ul></details>`;
}

function Progress({ begun }) {
  const { data } = useLoaded(`/operations/${begun.id}`, { topics: [`operation:${begun.id}`], concerns: (kind, said) => kind === "operation" && said.id === begun.id });
  return html`<${OperationFacts} of=${data ?? begun} /><p><a href=${place(`/operations/${begun.id}`)}>The operation</a></p>`;
}

