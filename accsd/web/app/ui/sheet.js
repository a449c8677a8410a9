// An action: what it will do is shown before it is done, and how the same is said elsewhere.
import { call, place } from "../api.js";
import { html, signal, useEffect, useRef, useState } from "../html.js";
import { hindrance } from "../session.js";
import { notice } from "./notices.js";
import { Copy, Trouble } from "./parts.js";

const open = signal(null);

/**
 * act({title, path, body, method, scope, cli, sql, effect(preview), verb, done(answer), danger, previews, takesReason, fields})
 * effect: what the dry run answered, as lines. done: a sentence, or {text, link}. cli: a line, or what makes one of the
 * body. fields: what is asked for first, [{name, label, type, choices: [[value, word]], value, hint, needed}]; they
 * become members of the body, and each change is rehearsed again. form({value, change}) asks for more than fields can,
 * from `begin` on: bodyOf(value) is the body then, and cli and effect get the value, too.
 */
export const act = (action) => { open.value = action; };

/** A button of an action. Who may not sees it all the same, and why not. */
export const Action = ({ label, action, kind = "" }) => {
  const why = hindrance(action.scope);
  return html`<button class=${kind} disabled=${Boolean(why)} title=${why} onClick=${() => act(action)}>${label}</button>`;
};

export const Sheet = () => open.value && html`<${Opened} key=${open.value.path} action=${open.value} />`;

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
export const asCurl = (method, path, body) =>
  `curl -X ${method} -H "Authorization: Bearer $ACC_TOKEN" -H "Content-Type: application/json" -d ${quoted(JSON.stringify(body))} ${location.origin}${place(`/api/v1${path}`)}`;

/** What the dry run says, once nobody has typed for a moment. */
function useRehearsal(action, method, body) {
  const [said, set] = useState({ preview: null, problem: null });
  const asked = JSON.stringify(body);
  const first = useRef(true);
  useEffect(() => {
    if (action.previews === false) { set({ preview: {}, problem: null }); return undefined; }
    const missing = (action.fields ?? []).some((each) => each.needed && !JSON.parse(asked)[each.name]);
    if (missing) { set({ preview: null, problem: null }); return undefined; }
    const separator = action.path.includes("?") ? "&" : "?";
    const rehearse = () => call(`${action.path}${separator}dry_run=true`, { method, body: JSON.parse(asked) }).then(
      (preview) => set({ preview, problem: null }), (problem) => set({ preview: null, problem }));
    const planned = setTimeout(rehearse, first.current ? 0 : 300);
    first.current = false;
    return () => clearTimeout(planned);
  }, [asked]);
  return said;
}

function Opened({ action }) {
  const dialog = useRef(null);
  const [given, give] = useState(Object.fromEntries((action.fields ?? []).map((each) => [each.name, each.value ?? ""])));
  const [value, change] = useState(action.begin);
  const [reason, setReason] = useState("");
  const [refused, setRefused] = useState(null);
  const [busy, setBusy] = useState(false);
  const method = action.method ?? "POST";
  const filled = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== ""));
  const asked = { ...(action.bodyOf?.(value) ?? action.body ?? {}), ...filled };
  const body = { ...asked, ...(reason && action.takesReason !== false ? { reason } : {}) };
  const { preview, problem } = useRehearsal(action, method, asked);
  useEffect(() => { dialog.current.showModal(); }, []);
  const leave = () => dialog.current.close(); // which gives the focus back
  const confirm = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const answer = await call(action.path, { method, body });
      const said = action.done?.(answer) ?? `${action.title}: ${answer?.answer ?? "done"}`;
      notice(said.text ?? said, said.link);
      leave();
    } catch (refusal) {
      setRefused(refusal);
      setBusy(false);
    }
  };
  const cli = typeof action.cli === "function" ? action.cli(action.form ? value : body) : action.cli;
  const ways = [cli, asCurl(method, action.path, body), action.sql].filter(Boolean);
  const why = hindrance(action.scope); // the connection may be lost meanwhile
  return html`<dialog ref=${dialog} onClose=${() => { open.value = null; }} aria-labelledby="sheet-title"><form onSubmit=${confirm}>
    <header id="sheet-title">${action.title}</header>
    <div class="body">
      ${action.form && html`<${action.form} value=${value} change=${(next) => { setRefused(null); change(next); }} />`}
      <${Trouble} problem=${refused ?? problem} />
      ${(action.fields ?? []).map((field) => html`<${Field} key=${field.name} field=${field} value=${given[field.name]} put=${(value) => { setRefused(null); give({ ...given, [field.name]: value }); }} />`)}
      ${!problem && html`<ul class="effect" aria-live="polite">${(preview ? action.effect?.(preview, value) ?? [] : ["Working out what it would do …"]).map((line) => html`<li key=${line}>${line}</li>`)}</ul>`}
      ${action.takesReason !== false && html`<label>Reason, for the history
        <input class="wide" value=${reason} maxlength="500" onInput=${(event) => setReason(event.target.value)} /></label>`}
      <div class="also small"><span class="muted">Also as</span>
        ${ways.map((way) => html`<div key=${way}><code>${way}</code><${Copy} text=${way} /></div>`)}</div>
    </div>
    <footer>${why && html`<span class="muted small grow">${why}</span>`}<button type="button" onClick=${leave}>Leave it</button>
      <button class=${action.danger ? "danger" : "primary"} disabled=${busy || Boolean(why) || !preview || preview.answer === "refused"}>${action.verb}</button></footer>
  </form></dialog>`;
}

function Field({ field, value, put }) {
  const typed = (event) => put(event.target.value);
  const entry = field.choices
    ? html`<select value=${value} onChange=${typed}>${field.choices.map(([key, word]) => html`<option key=${key} value=${key}>${word}</option>`)}</select>`
    : html`<input type=${field.type ?? "text"} class="wide" value=${value} required=${field.needed} placeholder=${field.placeholder} onInput=${typed} />`;
  return html`<label>${field.label}${entry}${field.hint && html`<span class="muted small">${field.hint}</span>`}</label>`;
}
