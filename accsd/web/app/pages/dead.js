// What failed for good, the same failures together; the way back leads over one of them first.
import { call, place, query } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { useLoaded } from "../load.js";
import { subscribe } from "../live.js";
import { ask, params } from "../router.js";
import { hindrance } from "../session.js";
import { JobLink, Nothing, State, Table, Tabs, Trouble, When } from "../ui/parts.js";
import { Action } from "../ui/sheet.js";
import { OperationSheet } from "./jobs_many.js";

export function Dead() {
  const { tab = "open" } = params.value;
  return html`<div class="head"><h1>Dead letters</h1><span class="muted">tasks that failed for good, until somebody settles them</span></div>
    <${Tabs} of=${[["open", "Open"], ["settled", "Settled"]]} now=${tab} href=${(to) => place(`/dead${to === "open" ? "" : `?tab=${to}`}`)} />
    ${tab === "settled" ? html`<${Settled} />` : html`<${Open} />`}`;
}

const keyOf = (group) => JSON.stringify([group.service, group.step, group.error_code, group.message]);

function Open() {
  const { data, problem, again } = useLoaded("/dead-letters/groups", { topics: ["overview"], concerns: (kind) => kind === "dead" });
  const [wanted, want] = useState(null);
  const [tried, setTried] = useState({}); // by group: {letter, job, step} of the one that was sent first
  const { group: opened } = params.value;
  const shown = data && [...data.items, ...Object.values(tried).filter((one) => !data.items.some((each) => keyOf(each.group) === keyOf(one.group.group))).map((one) => ({ ...one.group, count: 0 }))];
  return html`<${Trouble} problem=${problem} again=${again} />
    ${data && !data.complete && html`<p class="muted">The newest ${data.looked_at.toLocaleString()} were looked at; there are more.</p>`}
    ${shown && (shown.length ? shown.map((each) => html`<${Group} key=${keyOf(each.group)} of=${each} tried=${tried[keyOf(each.group)]} isOpen=${opened === keyOf(each.group)}
      trying=${(one) => setTried({ ...tried, [keyOf(each.group)]: { ...one, group: each } })} want=${want} />`) : html`<${Nothing}>No task has failed for good.<//>`)}
    ${wanted && html`<${OperationSheet} key=${JSON.stringify(wanted)} asked=${wanted} thing="dead letter" close=${() => { want(null); again(); }} />`}`;
}

function Group({ of, tried, trying, isOpen, want }) {
  const { service, step, error_code: code, message } = of.group;
  const many = (action) => ({ action, target: { filter: { group: of.group } } });
  const why = hindrance("operate");
  const [letter] = of.letters, [job] = of.jobs;
  const first = {
    title: `Redrive one of ${of.count}, and see`, path: "/dead-letters/redrive", body: { ids: [letter] }, scope: "operate", verb: "Redrive one", cli: `accsd dead-letters redrive ${letter}`,
    effect: (preview) => [preview.items[0].answer === "refused" ? `It would be refused: ${preview.items[0].reason}` : `${step} of job ${job.slice(-8)} runs again, with the steps that were skipped because of it.`, "The others wait for what comes of it."],
    done: () => { trying({ letter, job, step }); return { text: "One of them runs again", link: `/jobs/${job}` }; },
  };
  return html`<section class="panel dead" aria-label=${`${service} ${step} ${code ?? ""}`}>
    <header class="step-head"><h2 class="name"><span class="count">${of.count.toLocaleString()}</span> ${service} <span class="muted">step</span> ${step}</h2><span class="mono error-ink">${code}</span>
      <span class="grow"></span>${of.count > 0 && html`<div class="actions">
        ${of.count > 1 && !tried && html`<${Action} label="One first" kind="primary" action=${first} />`}
        <button disabled=${Boolean(why)} title=${why} onClick=${() => want(many("redrive"))}>${tried ? `Redrive the other ${of.count.toLocaleString()}` : of.count > 1 ? "Redrive all" : "Redrive"}</button>
        <button class="danger" disabled=${Boolean(why)} title=${why} onClick=${() => want(many("dismiss"))}>Dismiss</button></div>`}</header>
    <p class="said">${message || "Nothing was said."}</p>
    ${tried && html`<${Tried} one=${tried} left=${of.count} />`}
    <div class="muted small">first <${When} at=${of.first} />, last <${When} at=${of.last} /> · newest jobs ${of.jobs.map((id) => html`<${JobLink} key=${id} id=${id} /> `)}
      <button class="link" aria-expanded=${isOpen} onClick=${() => ask({ group: isOpen ? null : keyOf(of.group) })}>${isOpen ? "Hide the members" : "Show the members"}</button></div>
    ${isOpen && html`<${Members} of=${of} />`}</section>`;
}

/** The one that was sent first, until it has ended: then the rest is a matter of one press. */
function Tried({ one, left }) {
  const [task, set] = useState(null);
  useEffect(() => {
    const look = () => call(`/jobs/${one.job}`).then((job) => set(job.tasks.items.find((each) => each.task_key === one.step) ?? { status: job.status }), () => {});
    look();
    return subscribe([`job:${one.job}`], (kind, said) => { if (kind === "hello" || ((kind === "task" || kind === "job") && (said.job_id ?? said.id) === one.job)) look(); });
  }, [one.job]);
  if (!task) return null;
  const words = { done: left ? "It went well: the others may follow." : "It went well.", error: "It failed again: the others would, too.", cancelled: "It was cancelled." };
  return html`<div class=${`hint ${task.status === "error" ? "failed" : ""}`} role="status">The first one: <${State} of=${task.status} /> ${words[task.status] ?? "Wait for what comes of it."} <${JobLink} id=${one.job} /></div>`;
}

/** A word with a digit in it names one file, one frame: so the gateway groups, and so its members are found. */
const signature = (text) => [...(text ?? "")].slice(0, 400).join("").split("\n")[0].replace(/\S*\d\S*/g, "#");

function Members({ of }) {
  const { service, step, error_code: code, message } = of.group;
  const { data, problem, again } = useLoaded(`/dead-letters${query({ service, step, error_code: code, limit: 500 })}`);
  if (!data) return html`<${Trouble} problem=${problem} again=${again} />`;
  const rows = data.items.filter((each) => signature(each.error_message) === message && each.error_code === code);
  return html`<${Table} label="Members" rows=${rows} keyOf=${(each) => each.id} columns=${columns} />${rows.length < of.count && html`<p class="muted small">The newest ${rows.length} of ${of.count.toLocaleString()}.</p>`}`;
}

const columns = [
  ["Letter", (each) => each.id, "right narrow"], ["Job", (each) => html`<${JobLink} id=${each.job_id} />`], ["Workflow", (each) => each.workflow], ["Step", (each) => each.task_key],
  ["What was said", (each) => html`<span title=${each.because}>${each.error_message ?? each.because}</span>`, "cut"], ["Failed", (each) => html`<${When} at=${each.created_at} />`, "right"],
];

function Settled() {
  const [rows, set] = useState(null);
  const [next, setNext] = useState(null);
  const [problem, setProblem] = useState(null);
  const load = async (cursor) => {
    try {
      const found = await call(`/dead-letters${query({ settled: true, limit: 200, cursor })}`);
      set((before) => [...(cursor ? before : []), ...found.items.filter((each) => each.redriven_at || each.dismissed_at)]);
      setNext(found.next);
    } catch (refusal) { setProblem(refusal); }
  };
  useEffect(() => { load(); }, []);
  return html`<${Trouble} problem=${problem} again=${() => load()} />
    ${rows && (rows.length ? html`<${Table} label="Settled dead letters" rows=${rows} keyOf=${(each) => each.id} columns=${[...columns.slice(0, 4), ["Error", (each) => each.error_code ?? ""], columns[4],
      ["Settled", (each) => html`<${State} of=${each.redriven_at ? "backoff" : "cancelled"} word=${each.redriven_at ? "sent again" : "dismissed"} />`], ["When", (each) => html`<${When} at=${each.redriven_at ?? each.dismissed_at} />`, "right"]]} />` : html`<${Nothing}>Nothing was settled yet.<//>`)}
    ${next && html`<p><button onClick=${() => load(next)}>Show more</button></p>`}`;
}
