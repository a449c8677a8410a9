// Options of a job: a field for each that the workflow's schema or an earlier job names, or all of them as JSON.
import { html, useState } from "../html.js";

const DEEP = new Set(["object", "array"]);

/** `value`: the options; `change(options, fault)`: `fault` says what is not JSON, and the options are the last good ones. */
export function OptionsForm({ schema, value, change }) {
  const properties = schema?.properties ?? {};
  const names = [...new Set([...Object.keys(properties), ...Object.keys(value)])];
  const [asJson, setAsJson] = useState(names.length === 0);
  const needed = new Set(schema?.required ?? []);
  const put = (name, given) => {
    const next = { ...value };
    if (given === undefined) delete next[name];
    else next[name] = given;
    change(next, null);
  };
  return html`<div class="options">
    <div class="choice" role="group" aria-label="How options are given">
      <button type="button" class="plain" aria-pressed=${!asJson} onClick=${() => setAsJson(false)} disabled=${names.length === 0}>Fields</button>
      <button type="button" class="plain" aria-pressed=${asJson} onClick=${() => setAsJson(true)}>JSON</button></div>
    ${asJson ? html`<${AsJson} label="Options, as JSON" value=${value} change=${change} rows=${8} />`
      : names.map((name) => html`<${Field} key=${name} name=${name} schema=${properties[name] ?? guessed(value[name])} isNeeded=${needed.has(name)} value=${value[name]} put=${(given) => put(name, given)} />`)}</div>`;
}

const guessed = (value) => ({ type: value === null ? "null" : Array.isArray(value) ? "array" : typeof value });

/** The options that a schema fills in by itself. */
export const defaults = (schema) =>
  Object.fromEntries(Object.entries(schema?.properties ?? {}).filter(([, each]) => each && typeof each === "object" && "default" in each).map(([name, each]) => [name, each.default]));

function Field({ name, schema, isNeeded, value, put }) {
  const type = [schema.type].flat()[0];
  const label = html`${schema.title ?? name}${schema.title && schema.title !== name ? html` <code class="muted">${name}</code>` : ""}${isNeeded ? html` <span class="muted">(needed)</span>` : ""}`;
  const hint = schema.description && html`<span class="muted small">${schema.description}</span>`;
  if (type === "boolean") return html`<label class="check"><input type="checkbox" checked=${value === true} onChange=${(event) => put(event.target.checked)} />${label}${hint}</label>`;
  if (schema.enum) {
    return html`<label>${label}<select value=${value === undefined ? "" : String(schema.enum.indexOf(value))} required=${isNeeded} onChange=${(event) => put(event.target.value === "" ? undefined : schema.enum[Number(event.target.value)])}>
      ${(!isNeeded || value === undefined) && html`<option value=""></option>`}${schema.enum.map((each, n) => html`<option key=${n} value=${String(n)}>${typeof each === "string" ? each : JSON.stringify(each)}</option>`)}</select>${hint}</label>`;
  }
  if (DEEP.has(type) || (type === undefined && typeof value === "object" && value)) return html`<div><${AsJson} label=${label} value=${value} change=${(given, fault) => fault ?? put(given)} rows=${3} />${hint}</div>`;
  if (type === "integer" || type === "number") {
    return html`<label>${label}<input type="number" step=${type === "integer" ? 1 : "any"} min=${schema.minimum} max=${schema.maximum} required=${isNeeded} value=${value ?? ""}
      onInput=${(event) => put(event.target.value === "" ? undefined : Number(event.target.value))} />${hint}</label>`;
  }
  return html`<label>${label}<input class="wide" type="text" required=${isNeeded} maxlength=${schema.maxLength} value=${value ?? ""} onInput=${(event) => put(event.target.value === "" && !isNeeded ? undefined : event.target.value)} />${hint}</label>`;
}

function AsJson({ label, value, change, rows }) {
  const [text, setText] = useState(value === undefined ? "" : JSON.stringify(value, null, 2));
  const [fault, setFault] = useState(null);
  const put = (event) => {
    setText(event.target.value);
    try {
      const read = event.target.value.trim() === "" ? undefined : JSON.parse(event.target.value);
      setFault(null);
      change(read ?? (value && Array.isArray(value) ? [] : {}), null);
    } catch (error) {
      setFault(error.message);
      change(value, error.message);
    }
  };
  return html`<label>${label}<textarea class="mono wide" rows=${rows} value=${text} onInput=${put} aria-invalid=${fault ? "true" : undefined}></textarea>
    ${fault && html`<span class="fault small" role="alert">${fault}</span>`}</label>`;
}
