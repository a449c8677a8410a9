// What steps may use: each tool with its versions and schemas, and what machines offer.
import { place } from "../api.js";
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { ask, go, params } from "../router.js";
import { At, Facts, Json, Nothing, State, Table, Trouble } from "../ui/parts.js";
import { Action } from "../ui/sheet.js";
import { Absent } from "./missing.js";

const to = (tool) => `/tools/${encodeURIComponent(tool.name)}`;
const fields = (schema) => Object.entries(schema?.properties ?? {}).map(([key, each]) => `${key}${schema.required?.includes(key) ? "" : "?"}: ${each.type ?? (each.enum ? "one of" : "any")}`).join(", ");

export function Tools() {
  const { q = "" } = params.value;
  const { data, problem, again } = useLoaded("/tools");
  const offers = useLoaded("/tools?offered=true");
  const rows = (data?.items ?? []).filter((each) => !q || `${each.name} ${each.description} ${each.service}`.toLowerCase().includes(q.toLowerCase()));
  return html`<div class="head"><h1>Tools</h1><input type="search" aria-label="Filter tools" placeholder="name, service, words" value=${q} onInput=${(event) => ask({ q: event.target.value })} /></div>
    <${Trouble} problem=${problem} again=${again} />
    ${data && (rows.length ? html`<${Table} label="Tools" rows=${rows} keyOf=${(each) => each.name} opens=${(each) => go(to(each))} columns=${[
      ["Tool", (each) => html`<a href=${place(to(each))}>${each.name}</a>`, "nowrap"], ["Version", (each) => each.version ?? "built in", "right"], ["Kind", (each) => each.kind], ["Runs on", (each) => (each.kind === "service" ? html`<a href=${place(`/services/${encodeURIComponent(each.service)}`)}>${each.service}</a>` : each.service)],
      ["Takes", (each) => html`<code title=${fields(each.input_schema)}>${fields(each.input_schema)}</code>`, "cut"], ["What it does", (each) => html`<span title=${each.description}>${each.description}</span>`, "cut"],
    ]} />` : html`<${Nothing}>${data.items.length ? "No tool fits." : html`There is no tool yet. <code>accsd tools apply FILE</code> writes one.`}<//>`)}
    ${offers.data?.items.length > 0 && html`<section class="panel more-space"><h2>Offered by machines</h2><${Table} label="Offers" rows=${offers.data.items} keyOf=${(each) => `${each.name} ${each.node} ${each.service}`} columns=${[
      ["Tool", (each) => each.name], ["Machine", (each) => html`<a href=${place(`/fleet/${encodeURIComponent(each.node)}`)}>${each.node}</a>`], ["Service", (each) => each.service], ["Since", (each) => html`<${At} at=${each.since} />`], ["What became of it", (each) => each.state, "cut"], ["", (each) => html`<code>accsd tools accept ${each.name}</code>`],
    ]} /></section>`}`;
}

export function Tool({ subject: name }) {
  const version = params.value.version;
  const { data, problem, again } = useLoaded(`/tools/${encodeURIComponent(name)}${version ? `?version=${version}` : ""}`);
  const all = useLoaded("/tools?all_versions=true");
  if (!data) return html`<${Absent} problem=${problem} again=${again} name=${`The tool ${name}`} list=${["/tools", "All tools"]} />`;
  const versions = (all.data?.items ?? []).filter((each) => each.name === name && each.version !== null);
  const retire = { title: `Retire ${name}${data.version ? ` version ${data.version}` : ""}`, path: `/tools/${encodeURIComponent(name)}/retire${data.version ? `?version=${data.version}` : ""}`, scope: "operate", verb: "Retire", danger: true, takesReason: false, cli: `accsd tools retire ${name}${data.version ? `@${data.version}` : ""}`,
    effect: () => ["No new workflow can use it; those that do go on."], done: () => { again(); all.again(); return `${name} is retired`; } };
  return html`<div class="head"><h1>${name}</h1><span class="muted">${data.version ? `version ${data.version}` : "built in"}</span>${!data.is_active && html`<${State} of="cancelled" word="retired" />`}
      ${versions.length > 1 && html`<label><span class="visually-hidden">Version</span><select value=${data.version} onChange=${(event) => ask({ version: event.target.value })}>${versions.map((each) => html`<option key=${each.version} value=${each.version}>version ${each.version}${each.is_active ? "" : ", retired"}</option>`)}</select></label>`}
      <span class="grow"></span>${data.kind !== "builtin" && data.is_active && html`<${Action} label="Retire" kind="danger" action=${retire} />`}</div>
    <p>${data.description}</p>
    <${Facts} of=${[["kind", data.kind], ["runs on", data.service], ["calls", data.request && `${data.request.method} ${data.request.target}${data.request.path}`], ["may be used with", data.scopes.join(", ")], ...Object.entries(data.defaults ?? {}).filter(([, value]) => value !== null).map(([key, value]) => [key.replaceAll("_", " "), typeof value === "object" ? JSON.stringify(value) : value])]} />
    <div class="grid"><section class="panel half"><h2>Takes</h2><${Schema} of=${data.input_schema} /></section><section class="panel half"><h2>Gives</h2>${data.output_schema ? html`<${Schema} of=${data.output_schema} />` : html`<${Nothing}>It does not say.<//>`}</section>
      ${data.examples.length > 0 && html`<section class="panel"><h2>Examples</h2>${data.examples.map((each, n) => html`<${Json} key=${n} value=${each} />`)}</section>`}
      <section class="panel"><h2>In a workflow</h2><pre class="mono">${`- key: STEP\n  uses: ${name}\n  with: ${JSON.stringify(data.examples[0] ?? Object.fromEntries((data.input_schema?.required ?? []).map((key) => [key, "…"])))}`}</pre></section></div>`;
}

function Schema({ of }) {
  const rows = Object.entries(of?.properties ?? {});
  if (!rows.length) return html`<${Json} value=${of} />`;
  return html`<${Table} label="Fields" rows=${rows} keyOf=${([key]) => key} columns=${[["Field", ([key]) => html`<code>${key}</code>`], ["Type", ([, each]) => each.type?.toString() ?? "", ""], ["Needed", ([key]) => (of.required?.includes(key) ? "yes" : "")], ["What it is", ([, each]) => each.description ?? (each.enum ? `one of ${each.enum.join(", ")}` : each.format ?? ""), "cut"]]} />
    <details><summary class="muted small">The whole schema</summary><${Json} value=${of} /></details>`;
}
