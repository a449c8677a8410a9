// One condition, or one topic of events: by its own name, or by the name of the schedule that waits for it.
import { place } from "../api.js";
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { ConditionState, Curve, valueWords } from "../ui/condition.js";
import { Facts, JobLink, Nothing, Table, Trouble, When, At } from "../ui/parts.js";
import { Action } from "../ui/sheet.js";
import { Absent } from "./missing.js";
import { Feed } from "./triggers.js";

export function Trigger({ subject: name }) {
  const conditions = useLoaded("/conditions");
  const schedules = useLoaded("/schedules?ended=true");
  const problem = conditions.problem ?? schedules.problem;
  if (!conditions.data || !schedules.data) return problem && html`<${Absent} problem=${problem} again=${conditions.again} name=${name} list=${["/triggers", "All triggers"]} />`;
  const condition = conditions.data.items.find((each) => each.name === name || each.schedule === name);
  if (condition) return html`<${Condition} name=${condition.name} />`;
  const schedule = schedules.data.items.find((each) => each.schedule_kind === "event" && (each.name === name || each.schedule_expr === name));
  const topic = schedule?.schedule_expr ?? name;
  return html`<div class="head"><h1>${topic}</h1>${schedule && html`<span class="muted">starts <a href=${place(`/schedules/${encodeURIComponent(schedule.name)}`)}>${schedule.name}</a></span>`}</div><${Feed} topic=${topic} fixed=${true} />`;
}

function Condition({ name }) {
  const at = `/conditions/${encodeURIComponent(name)}`;
  const { data, problem, again } = useLoaded(`${at}?limit=200`, { topics: ["overview"], concerns: (kind) => kind === "counts" || kind === "job" });
  if (!data) return html`<${Absent} problem=${problem} again=${again} name=${`The condition ${name}`} list=${["/triggers?tab=conditions", "All conditions"]} />`;
  const [first] = data.items;
  const report = { title: `Report a value of ${name}`, path: at, scope: "submit", verb: "Report", takesReason: false, form: ReportForm, begin: "", bodyOf: (text) => ({ value: valueOf(text) }), cli: (text) => `accsd conditions report ${name} ${text.startsWith("-") ? "-- " : ""}${text || "VALUE"}`,
    effect: (preview) => preview.items.map((each) => `${each.schedule}: ${each.state}${each.outcome ? `, ${each.outcome} (${each.because})` : each.reason ? ` (${each.reason.replaceAll("_", " ")})` : ""}`), done: () => { again(); return "The value is reported."; } };
  return html`<div class="head"><h1>${name}</h1>${first && html`<${ConditionState} of=${first} />`}<span class="grow"></span><${Action} label="Report a value" action=${report} /></div><${Trouble} problem=${problem} again=${again} />
    ${data.items.map((each) => html`<section key=${each.schedule}><${Facts} of=${[["starts", html`<a href=${place(`/schedules/${encodeURIComponent(each.schedule)}`)}>${each.schedule}</a> (${each.workflow})`], ["since", html`<${When} at=${each.since} />`], ["last value", valueWords(each)], ["measured", html`<${When} at=${each.last_at} />`],
      ["last fired", each.last_fired_at && html`<${When} at=${each.last_fired_at} />`], ["next look", each.next_probe && html`<${When} at=${each.next_probe} />`], ["error", each.last_error], ["rule", html`<code>${JSON.stringify(each.condition)}</code>`]]} /></section>`)}
    <div class="grid"><section class="panel"><h2>Its values</h2>${first && html`<${Curve} samples=${data.samples} condition=${first.condition} />`}
      ${data.samples.length ? html`<div class="tall"><${Table} label="Values" rows=${data.samples} keyOf=${(each) => `${each.id} ${each.schedule}`} columns=${[
        ["At", (each) => html`<${At} at=${each.at} />`, "nowrap"], ["Value", (each) => valueWords({ last_value: each.value }), "right"], ["Taken as", (each) => (each.outcome ? `${each.outcome}${each.because ? ` (${each.because.replaceAll("_", " ")})` : ""}` : each.verdict)], ["Error", (each) => each.error ?? "", "cut"], ["By", (each) => each.by], ["Job", (each) => each.job_id && html`<${JobLink} id=${each.job_id} />`],
      ]} /></div>` : html`<${Nothing}>No value has come yet. <code>accsd conditions report ${name} VALUE</code> reports one.<//>`}</section></div>`;
}

function valueOf(text) {
  const plain = text.trim();
  if (plain === "" || plain === "null") return null;
  return plain === "true" ? true : plain === "false" ? false : Number.isNaN(Number(plain)) ? plain : Number(plain);
}
const ReportForm = ({ value, change }) => html`<label>Value<input class="wide" required value=${value} onInput=${(event) => change(event.target.value)} /><span class="muted small">A number, true, false; null: it could not be measured.</span></label>`;
