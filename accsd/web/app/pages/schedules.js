// What starts by itself: when next, and what became of each due time.
import { place } from "../api.js";
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { go } from "../router.js";
import { exact } from "../time.js";
import { Action } from "../ui/sheet.js";
import { At, Facts, JobLink, Nothing, State, Table, Trouble, When } from "../ui/parts.js";

export function Schedules() {
  const { data, problem, again } = useLoaded("/schedules");
  return html`<div class="head"><h1>Schedules</h1></div><${Trouble} problem=${problem} again=${again} />
    ${data && (data.items.length ? html`<${Table} label="Schedules" rows=${data.items} keyOf=${(each) => each.id} opens=${(each) => go(`/schedules/${encodeURIComponent(each.name)}`)} columns=${[
      ["Schedule", (each) => html`<a href=${place(`/schedules/${encodeURIComponent(each.name)}`)}>${each.name}</a>`], ["Workflow", (each) => each.workflow], ["In words", (each) => each.words, "cut"],
      ["Next", (each) => html`<${When} at=${each.next_due} />`], ["State", (each) => html`<${State} of=${each.state === "active" ? "ready" : "paused"} word=${each.state_words} />`],
    ]} />` : html`<${Nothing}>Nothing starts by itself. <code>accsd schedules create NAME --cron '30 2 * * *' --workflow WORKFLOW</code> makes a schedule.<//>`)}`;
}

export function Schedule({ subject: name }) {
  const at = `/schedules/${encodeURIComponent(name)}`;
  const { data, problem, again } = useLoaded(at);
  if (!data) return html`<${Trouble} problem=${problem} again=${again} />`;
  const verb = (path, title, effect) => ({ title: `${title} ${name}`, path: `${at}/${path}`, scope: "submit", verb: title, cli: `accsd schedules ${path === "run_now" ? "run" : path} ${name}`, effect, done: () => { again(); return `${title} ${name}: done`; } });
  return html`<div class="head"><h1>${name}</h1><${State} of=${data.state === "active" ? "ready" : "paused"} word=${data.state_words} /><span class="grow"></span>
      <${Action} label="Run now" action=${verb("run_now", "Run now", () => [`A job of ${data.workflow} starts at once.`])} />
      ${data.state === "paused" ? html`<${Action} label="Resume" action=${verb("resume", "Resume", () => ["It fires again."])} />` : html`<${Action} label="Pause" action=${verb("pause", "Pause", () => ["It starts nothing until it is resumed."])} />`}</div>
    <p>${data.words}</p>
    <${Facts} of=${[["workflow", html`<a href=${place(`/workflows/${encodeURIComponent(data.workflow)}`)}>${data.workflow}</a>`], ["runs", data.runs], ["by", data.created_by]]} /><p></p>
    <div class="grid"><section class="panel half"><h2>Next</h2><ul>${data.next.map((each) => html`<li key=${each.due_at}>${exact(each.due_at)}${each.fires ? "" : " (will not fire)"}${each.notes.length ? `: ${each.notes.join(", ")}` : ""}</li>`)}</ul></section>
    <section class="panel half"><h2>Ledger</h2>${data.ledger.length ? html`<${Table} label="Ledger" rows=${data.ledger} keyOf=${(each) => each.due_at + each.nominal} columns=${[
      ["Due", (each) => html`<${At} at=${each.due_at} />`], ["Outcome", (each) => each.outcome], ["Reason", (each) => each.reason], ["Job", (each) => (each.job_id ? html`<${JobLink} id=${each.job_id} />` : "")]]} />` : html`<${Nothing}>It has not been due yet.<//>`}</section></div>`;
}
