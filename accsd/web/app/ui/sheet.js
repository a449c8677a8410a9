// An action: what it will do is shown before it is done, and how the same is said elsewhere.
import { call, place } from "../api.js";
import { html, signal, useEffect, useRef, useState } from "../html.js";
import { may } from "../session.js";
import { notice } from "./notices.js";
import { Copy, Trouble } from "./parts.js";

const open = signal(null);

/**
 * act({title, path, body, scope, cli, effect(preview), verb, done(answer), danger})
 * effect: what the dry run answered, as lines. done: a sentence, or {text, link}.
 * form({value, change}) asks for more, from `begin` on; bodyOf(value) is the body then, and the preview follows it.
 */
export const act = (action) => { open.value = action; };

/** A button of an action. Who may not sees it all the same, and why not. */
export const Action = ({ label, action, kind = "" }) => {
  const allowed = may(action.scope);
  return html`<button class=${kind} disabled=${!allowed} title=${allowed ? undefined : `needs the scope ${action.scope}`}
    onClick=${() => act(action)}>${label}</button>`;
};

export const Sheet = () => open.value && html`<${Opened} key=${open.value.path} action=${open.value} />`;

function Opened({ action }) {
  const dialog = useRef(null);
  const [preview, setPreview] = useState(null);
  const [problem, setProblem] = useState(null);
  const [reason, setReason] = useState("");
  const [busy, setBusy] = useState(false);
  const [value, change] = useState(action.begin);
  const body = (why) => ({ ...(action.bodyOf?.(value) ?? action.body ?? {}), ...(why && action.takesReason !== false ? { reason: why } : {}) });
  const separator = action.path.includes("?") ? "&" : "?";
  useEffect(() => dialog.current.showModal(), []);
  useEffect(() => {
    if (action.previews === false) { setPreview({}); return undefined; }
    let isOld = false;
    const ask = setTimeout(() => call(`${action.path}${separator}dry_run=true`, { method: action.method ?? "POST", body: body("") }).then(
      (found) => { if (!isOld) { setPreview(found); setProblem(null); } },
      (refusal) => { if (!isOld) { setPreview(null); setProblem(refusal); } }), preview || problem ? 300 : 0);
    return () => { isOld = true; clearTimeout(ask); };
  }, [value]);
  const close = () => { open.value = null; };
  const confirm = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const answer = await call(action.path, { method: action.method ?? "POST", body: body(reason) });
      const said = action.done?.(answer) ?? `${action.title}: ${answer?.answer ?? "done"}`;
      notice(said.text ?? said, said.link);
      close();
    } catch (refusal) {
      setProblem(refusal);
      setBusy(false);
    }
  };
  const lines = preview ? action.effect?.(preview, value) ?? [] : ["Working out what it would do …"];
  const cli = typeof action.cli === "function" ? action.cli(value) : action.cli;
  const curl = `curl -X ${action.method ?? "POST"} -H "Authorization: Bearer $ACC_TOKEN" -H "Content-Type: application/json" -d '${JSON.stringify(body(reason)).replaceAll("'", "'\\''")}' ${location.origin}${place(`/api/v1${action.path}`)}`;
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="sheet-title"><form onSubmit=${confirm}>
    <header id="sheet-title">${action.title}</header>
    <div class="body">
      ${action.form && html`<${action.form} value=${value} change=${change} />`}
      <${Trouble} problem=${problem} />
      ${!problem && html`<ul>${lines.map((line) => html`<li key=${line}>${line}</li>`)}</ul>`}
      ${action.takesReason !== false && html`<label>Reason, for the history
        <input class="wide" value=${reason} maxlength="500" onInput=${(event) => setReason(event.target.value)} /></label>`}
      <div class="also small"><span class="muted">Also as</span>
        ${cli && html`<div><code>${cli}</code><${Copy} text=${cli} /></div>`}
        <div><code>${curl}</code><${Copy} text=${curl} /></div></div>
    </div>
    <footer><button type="button" onClick=${close}>Leave it</button>
      <button class=${action.danger ? "danger" : "primary"} disabled=${busy || !preview || preview.answer === "refused"}>${action.verb}</button></footer>
  </form></dialog>`;
}
