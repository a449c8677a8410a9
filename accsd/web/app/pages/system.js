// The daemons, the database, what is told to others, and how the gateway hears of news.
import { place, query } from "../api.js";
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { params } from "../router.js";
import { duration, exact } from "../time.js";
import { Action } from "../ui/sheet.js";
import { Facts, JobLink, Nothing, State, Table, Tabs, Trouble, When } from "../ui/parts.js";

export const SYSTEM_TABS = [["", "Daemons and database"], ["outbox", "Outbox"], ["audit", "Audit"], ["tokens", "Tokens"]];
export const SystemTabs = ({ now }) => html`<${Tabs} of=${SYSTEM_TABS} now=${now} href=${(key) => place(`/system${key ? `/${key}` : ""}`)} />`;
const size = (bytes) => (bytes === null ? "" : bytes < 1024 ? `${bytes} B` : bytes < 1048576 ? `${(bytes / 1024).toFixed(0)} KiB` : `${(bytes / 1048576).toFixed(1)} MiB`);
const SEEN_LATELY_S = 60;

export function System() {
  const { data, problem, again } = useLoaded("/system");
  if (!data) return html`<h1 class="visually-hidden">System</h1><${Trouble} problem=${problem} again=${again} />`;
  const { scheduler, hub, hearing } = data;
  return html`<div class="head"><h1>System</h1><span class="muted">accsd ${data.version}</span></div><${SystemTabs} now="" /><${Trouble} problem=${problem} again=${again} />
    <div class="grid">
      <section class="panel"><h2>Daemons</h2>${data.daemons.length ? html`<${Table} label="Daemons" rows=${data.daemons} keyOf=${(each) => `${each.name} ${each.roles.join()}`} columns=${[
        ["Name", (each) => each.name, "nowrap"], ["Roles", (each) => each.roles.join(", ")], ["State", (each) => (each.unseen_for_seconds < SEEN_LATELY_S ? html`<${State} of=${Object.keys(each.problems).length ? "backoff" : "ready"} word=${Object.keys(each.problems).length ? "hindered" : "here"} />` : html`<${State} of="away" word="not seen" />`)],
        ["Last seen", (each) => `${duration(each.unseen_for_seconds)} ago`, "nowrap"], ["Since", (each) => html`<${When} at=${each.since} />`, "nowrap"], ["Version", (each) => each.version], ["Hears", (each) => each.hearing],
        ["What keeps it", (each) => html`<span title=${Object.entries(each.problems).map(([role, said]) => `${role}: ${said}`).join("\n")}>${Object.entries(each.problems).map(([role, said]) => `${role}: ${said}`).join("; ")}</span>`, "cut"],
      ]} />` : html`<${Nothing}>No daemon was seen within a day. <code>accsd up</code> starts everything here; <code>accsd --role builder</code> the part that makes and fires.<//>`}</section>
      <section class="panel half"><h2>Work</h2><${Facts} of=${[["pending", scheduler.pending], ["running", scheduler.running], ["open dead letters", scheduler.failed], ["stuck", scheduler.stuck_running], ["a builder is here", scheduler.poller_running ? "yes" : "no"],
        ["due and not settled", scheduler.overdue], ["schedules without a plan", scheduler.unplanned], ["broken schedules", scheduler.broken], ["held", scheduler.hold]]} /></section>
      <section class="panel half"><h2>This gateway</h2><${Facts} of=${[["hears", hearing.state], ["because", hearing.reason], ["streams", hub.streams], ["waiting requests", hub.waiters], ["mode", hub.mode], ["events awaited", hub.holes], ["kept for resuming", hub.ring], ["database's clock", exact(data.clock)]]} /></section>
      <section class="panel half"><h2>Database</h2><${Facts} of=${[["schema", data.schema.found], ["this version wants", data.schema.wanted], ...Object.entries(data.schema).filter(([key, value]) => !["found", "wanted"].includes(key) && ["string", "number", "boolean"].includes(typeof value)).map(([key, value]) => [key.replaceAll("_", " "), String(value)])]} />
        <h3>Kept</h3><ul class="plain-list">${data.retention.map((each) => html`<li key=${each}>${each}</li>`)}</ul></section>
      <section class="panel half"><h2>Months of history</h2><div class="tall"><${Table} label="Months" rows=${[...data.months].reverse()} keyOf=${(each) => each.month} columns=${[
        ["Month", (each) => html`<code>${each.month}</code>`, "nowrap"], ["State", (each) => html`<${State} of=${each.is_well ? (each.rows === null ? "ready" : "done") : "error"} word=${each.state} />`], ["Rows", (each) => each.rows?.toLocaleString() ?? "", "right"], ["Size", (each) => size(each.size_bytes), "right"], ["Found well", (each) => html`<${When} at=${each.verified_at} />`, "nowrap"],
      ]} /></div></section></div>`;
}

export function Outbox() {
  const { target = "", state = "" } = params.value;
  const targets = useLoaded("/outbox/targets");
  const { data, problem, again } = useLoaded(`/outbox${query({ target, state, limit: 100 })}`);
  const reload = () => { again(); targets.again(); };
  const redrive = (title, body, n) => ({ title, path: "/outbox/redrive", body, scope: "operate", verb: "Send again", takesReason: false, cli: body.ids ? `accsd outbox redrive ${body.ids.join(" ")}` : `accsd outbox redrive --target ${body.target}`, effect: (preview) => [`${preview.items?.length ?? n} ${preview.items?.length === 1 ? "event is" : "events are"} sent again, as if they were new.`], done: () => { reload(); return "They are sent again."; } });
  const STATES = { waiting: "queued", delivered: "done", dead: "error" };
  return html`<div class="head"><h1>Outbox</h1><span class="muted">what others are told about jobs</span></div><${SystemTabs} now="outbox" /><${Trouble} problem=${problem} again=${again} />
    <section class="panel more-below"><h2>Targets</h2>${targets.data && (targets.data.items.length ? html`<${Table} label="Targets" rows=${targets.data.items} keyOf=${(each) => each.name} columns=${[
      ["Target", (each) => html`<a href=${place(`/system/outbox?target=${encodeURIComponent(each.name)}`)}>${each.name}</a>`], ["Address", (each) => each.address, "cut"], ["Told of", (each) => each.events.join(", ")], ["Waiting", (each) => each.waiting, "right"], ["Given up", (each) => each.dead, "right"],
      ["State", (each) => html`<${State} of=${each.is_open ? "error" : each.failures ? "backoff" : "ready"} word=${each.is_open ? `not called until ${exact(each.open_until)}` : each.failures ? `${each.failures} failures in a row` : "called"} />`], ["Last error", (each) => html`<span title=${each.last_error}>${each.last_error ?? ""}</span>`, "cut"],
      ["", (each) => each.dead > 0 && html`<${Action} label="Send again" action=${redrive(`Send again what ${each.name} was not told`, { target: each.name }, each.dead)} />`, "right"],
    ]} />` : html`<${Nothing}>Nobody is told anything. <code>[outbox.targets.NAME]</code> in the settings of a builder names whom.<//>`)}</section>
    ${data && (data.items.length ? html`<${Table} label="Outgoing events" rows=${data.items} keyOf=${(each) => each.id} columns=${[
      ["Made", (each) => html`<${When} at=${each.created_at} />`, "nowrap"], ["Target", (each) => each.target], ["Event", (each) => each.event], ["Job", (each) => each.job_id && html`<${JobLink} id=${each.job_id} />`], ["State", (each) => html`<${State} of=${STATES[each.state]} word=${each.state} />`], ["Tries", (each) => each.attempts, "right"], ["Last error", (each) => html`<span title=${each.last_error}>${each.last_error ?? ""}</span>`, "cut"],
      ["", (each) => each.state !== "waiting" && html`<${Action} label="Send again" kind="plain small" action=${redrive(`Send event ${each.id} again`, { ids: [each.id] }, 1)} />`, "right"],
    ]} />` : html`<${Nothing}>Nothing was told yet.<//>`)}`;
}
