// What starts work without a time: events, with what each one caused, and conditions, with how they stand.
import { place, query } from "../api.js";
import { html, useState } from "../html.js";
import { useLoaded } from "../load.js";
import { ask, go, params } from "../router.js";
import { hindrance } from "../session.js";
import { ConditionState, valueWords } from "../ui/condition.js";
import { Outcome } from "../ui/ledger.js";
import { JobLink, Json, Nothing, Table, Tabs, Trouble, When } from "../ui/parts.js";
import { act } from "../ui/sheet.js";

const TABS = [["events", "Events"], ["conditions", "Conditions"]];
const to = (name) => `/triggers/${encodeURIComponent(name)}`;

export function Triggers() {
  const { tab = "events" } = params.value;
  const why = hindrance("submit");
  return html`<div class="head"><h1>Triggers</h1><span class="grow"></span><button disabled=${Boolean(why)} title=${why} onClick=${emit}>Emit an event</button></div>
    <${Tabs} of=${TABS} now=${tab} href=${(key) => place(`/triggers?tab=${key}`)} />
    ${tab === "conditions" ? html`<${Conditions} />` : html`<${Feed} />`}`;
}

const emit = () => act({
  title: "Emit an event", path: "/events", scope: "submit", verb: "Emit", takesReason: false, form: EmitForm, begin: { topic: params.value.topic ?? "", payload: "{}", key: "" },
  bodyOf: ({ topic, payload, key }) => ({ topic, payload: objectOf(payload) ?? payload, ...(key ? { key } : {}) }),
  cli: ({ topic, payload, key }) => `accsd emit ${topic || "TOPIC"} --payload '${payload.replaceAll("'", "'\\''")}'${key ? ` --key ${key}` : ""}`,
  effect: (preview) => [preview.matched === 1 ? "One schedule listens to it." : preview.matched ? `${preview.matched} schedules listen to it.` : "No schedule listens to it; it is kept all the same."],
  done: (answer) => ({ text: `Event ${answer.event_id}: ${answer.matched ? `${answer.matched} listen` : "nobody listens"}`, link: "/triggers" }),
});
function objectOf(text) { try { return JSON.parse(text); } catch { return undefined; } }

const EmitForm = ({ value, change }) => html`<label>Topic<input class="wide" required placeholder="shop.order.created" value=${value.topic} onInput=${(event) => change({ ...value, topic: event.target.value })} /></label>
  <label>Payload, as JSON<textarea class="mono wide" rows="5" spellcheck="false" aria-invalid=${objectOf(value.payload) === undefined} value=${value.payload} onInput=${(event) => change({ ...value, payload: event.target.value })}></textarea></label>
  <label>Key<input class="wide" value=${value.key} onInput=${(event) => change({ ...value, key: event.target.value })} /><span class="muted small">The same topic and key again is the same event.</span></label>`;

/** Events, the newest first. A click shows what one carried. */
export function Feed({ topic = params.value.topic ?? "", fixed = false }) {
  const [typed, type] = useState(topic);
  const [open, show] = useState(null);
  const { data, problem, again } = useLoaded(`/events${query({ topic, limit: 100 })}`, { topics: ["overview"], concerns: (kind) => kind === "counts" || kind === "job" });
  return html`${!fixed && html`<form class="head" role="search" onSubmit=${(event) => { event.preventDefault(); ask({ topic: typed }); }}><input type="search" class="wide" aria-label="Topic" placeholder="shop.order.* or shop.**" value=${typed} onInput=${(event) => type(event.target.value)} /><button>Filter</button></form>`}
    <${Trouble} problem=${problem} again=${again} />
    ${data && (data.items.length ? html`<${Table} label="Events" rows=${data.items} keyOf=${(each) => each.id} opens=${(each) => show(open === each.id ? null : each.id)} selected=${open} columns=${[
      ["At", (each) => html`<${When} at=${each.at} />`, "nowrap"], ["Topic", (each) => html`<button class="link" aria-expanded=${open === each.id} onClick=${() => show(open === each.id ? null : each.id)}>${each.topic}</button>`, "nowrap"],
      ["What it carried", (each) => (open === each.id ? html`<${Json} value=${{ payload: each.payload, key: each.key, source: each.source, occurred_at: each.occurred_at, id: each.id }} />` : html`<code title=${JSON.stringify(each.payload)}>${JSON.stringify(each.payload)}</code>`), open === null ? "cut" : "wraps"],
      ["From", (each) => html`${each.source ?? ""}${each.job_id && html` <${JobLink} id=${each.job_id} />`}`],
      ["What it caused", (each) => html`<${Caused} of=${each} />`],
    ]} />` : html`<${Nothing}>${topic ? "No event of this topic." : html`No event has come yet. <code>accsd emit TOPIC</code> emits one, and so does the button.`}<//>`)}`;
}

function Caused({ of }) {
  if (!of.caused.length) return html`<span class="muted">${of.matched ? `${of.matched} listen, none has settled it yet` : "nobody listened"}</span>`;
  return of.caused.map((each) => html`<div key=${each.schedule + each.outcome}><${Outcome} of=${{ ...each, late_seconds: 0 }} /> <a href=${place(`/schedules/${encodeURIComponent(each.schedule)}`)}>${each.schedule}</a>${each.reason && each.reason !== "event" ? html` <span class="muted">${each.reason.replaceAll("_", " ")}</span>` : ""}${each.job_id && html` <${JobLink} id=${each.job_id} />`}</div>`);
}

function Conditions() {
  const { data, problem, again } = useLoaded("/conditions", { topics: ["overview"], concerns: (kind) => kind === "counts" || kind === "job" });
  return html`<${Trouble} problem=${problem} again=${again} />${data && (data.items.length ? html`<${Table} label="Conditions" rows=${data.items} keyOf=${(each) => `${each.name} ${each.schedule}`} opens=${(each) => go(to(each.name))} columns=${[
    ["Condition", (each) => html`<a href=${place(to(each.name))}>${each.name}</a>`], ["State", (each) => html`<${ConditionState} of=${each} />`], ["For", (each) => html`<${When} at=${each.since} />`, "nowrap"],
    ["Last value", (each) => valueWords(each), "right"], ["Measured", (each) => html`<${When} at=${each.last_at} />`, "nowrap"], ["Starts", (each) => html`<a href=${place(`/schedules/${encodeURIComponent(each.schedule)}`)}>${each.schedule}</a>`],
    ["Last fired", (each) => html`<${When} at=${each.last_fired_at} />`, "nowrap"], ["What is wrong", (each) => each.last_error ?? each.schedule_reason ?? "", "cut"],
  ]} />` : html`<${Nothing}>No schedule waits for a value. <code>accsd schedules create NAME --workflow W --condition disk.used --above 90</code> makes one.<//>`)}`;
}
