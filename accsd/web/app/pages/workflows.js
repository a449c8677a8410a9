// Workflows, and the form that submits one.
import { call, place } from "../api.js";
import { html, useState } from "../html.js";
import { useLoaded } from "../load.js";
import { go } from "../router.js";
import { may } from "../session.js";
import { Json, Nothing, Table, Trouble, When } from "../ui/parts.js";

export function Workflows() {
  const { data, problem, again } = useLoaded("/workflows");
  return html`<div class="head"><h1>Workflows</h1></div><${Trouble} problem=${problem} again=${again} />
    ${data && (data.items.length ? html`<${Table} label="Workflows" rows=${data.items} keyOf=${(each) => each.id} opens=${(each) => go(`/workflows/${encodeURIComponent(each.name)}`)} columns=${[
      ["Workflow", (each) => html`<a href=${place(`/workflows/${encodeURIComponent(each.name)}`)}>${each.name}</a>`], ["Title", (each) => each.title ?? "", "cut"], ["Version", (each) => each.version, "right"], ["Steps", (each) => each.steps, "right"],
      ["Changed", (each) => html`<${When} at=${each.updated_at} />`], ["By", (each) => each.created_by],
    ]} />` : html`<${Nothing}>There is no workflow yet. <code>accsd workflows apply FILE</code> writes one.<//>`)}`;
}

export function Workflow({ subject: name }) {
  const { data, problem, again } = useLoaded(`/workflows/${encodeURIComponent(name)}`);
  if (!data) return html`<${Trouble} problem=${problem} again=${again} />`;
  return html`<div class="head"><h1>${data.title ?? data.name}</h1><span class="muted">version ${data.version}</span></div><div class="grid">
    <section class="panel half"><h2>Steps</h2><${Table} label="Steps" rows=${data.steps} keyOf=${(step) => step.key} columns=${[
      ["Step", (step) => step.key], ["Service", (step) => step.service ?? step.tool], ["After", (step) => (step.depends_on ?? []).join(", "), "cut"]]} /></section>
    <section class="panel half"><h2>Submit</h2><${Submit} workflow=${data} /></section>
    ${data.options_schema && html`<section class="panel"><h2>Options</h2><${Json} value=${data.options_schema} /></section>`}</div>`;
}

const TYPES = { integer: "number", number: "number", boolean: "checkbox" };

/** A field for each option of the schema; without one, the options as JSON. */
function Submit({ workflow }) {
  const fields = Object.entries(workflow.options_schema?.properties ?? {});
  const [values, set] = useState({});
  const [text, setText] = useState("{}");
  const [problem, setProblem] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      const options = fields.length ? values : JSON.parse(text);
      const job = await call("/jobs", { method: "POST", body: { workflow: workflow.name, options } });
      go(`/jobs/${job.id ?? job.job_id}`);
    } catch (refusal) { setProblem(refusal); }
  };
  const put = (key, schema) => (event) => {
    const given = schema.type === "boolean" ? event.target.checked : TYPES[schema.type] === "number" ? Number(event.target.value) : event.target.value;
    set({ ...values, [key]: given });
  };
  return html`<form onSubmit=${submit}><${Trouble} problem=${problem} />
    ${fields.length ? fields.map(([key, schema]) => html`<label key=${key}>${schema.title ?? key}${workflow.options_schema.required?.includes(key) ? " (needed)" : ""}
      ${schema.enum ? html`<select onChange=${put(key, schema)}><option value=""></option>${schema.enum.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select>`
        : html`<input type=${TYPES[schema.type] ?? "text"} required=${workflow.options_schema.required?.includes(key) && schema.type !== "boolean"} onInput=${put(key, schema)} />`}
      ${schema.description && html`<span class="muted small">${schema.description}</span>`}</label>`)
      : html`<label>Options, as JSON<textarea class="mono wide" rows="6" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>`}
    <p><button class="primary" disabled=${!may("submit")} title=${may("submit") ? undefined : "needs the scope submit"}>Submit</button></p></form>`;
}
