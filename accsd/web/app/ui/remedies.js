// What keeps a job, in the words of `accsd why`, and what can be done about it, as buttons.
import { place } from "../api.js";
import { html, useState } from "../html.js";
import { When, Copy } from "./parts.js";
import { Action } from "./sheet.js";

const enc = encodeURIComponent;
const ACTIONS = {
  resume_service: (name) => ({ title: `Resume service ${name}`, path: `/services/${enc(name)}/resume`, scope: "operate", verb: "Resume", effect: () => [`Tasks of ${name} begin again.`] }),
  resume_workflow: (name) => ({ title: `Resume workflow ${name}`, path: `/workflows/${enc(name)}/resume`, scope: "operate", verb: "Resume", effect: () => [`Tasks of ${name} begin again.`] }),
  resume_node: (name) => ({ title: `Resume node ${name}`, path: `/nodes/${enc(name)}/resume`, scope: "operate", verb: "Resume", effect: () => [`${name} takes work again.`] }),
  wake_node: (name) => ({ title: `Wake node ${name}`, path: `/nodes/${enc(name)}/wake`, scope: "operate", verb: "Wake", effect: () => [`${name} is called now, by its wake method.`] }),
  retry_job: (job) => ({ title: `Retry ${job.slice(-8)}`, path: `/jobs/${job}/retry`, scope: "submit", verb: "Retry", effect: (preview) => [`Runs again: ${preview.runs_again?.join(", ") || "nothing"}`, `Keeps its result: ${preview.kept?.join(", ") || "nothing"}`] }),
};
const LINKS = {
  open_node: (name) => `/fleet/${enc(name)}`,
  open_nodes: () => "/fleet",
  open_why: (subject) => ofStep(subject),
  open_log: (subject) => ofStep(subject, "log"),
  follow_log: (subject) => ofStep(subject, "log"),
  open_artifacts: (job) => `/jobs/${job}?tab=artifacts`,
};

/** JOB or JOB/STEP */
function ofStep(subject, tab) {
  const [job, ...step] = subject.split("/");
  const asked = new URLSearchParams({ ...(tab ? { tab } : {}), ...(step.length ? { step: step.join("/") } : {}) });
  return `/jobs/${job}${String(asked) ? `?${asked}` : ""}`;
}

/** A button where the API can do it, a link where it is elsewhere on this page, else the command. */
export function Remedy({ of }) {
  if (ACTIONS[of.kind]) return html`<${Action} label=${of.label} action=${{ ...ACTIONS[of.kind](of.target), cli: of.cli }} />`;
  if (LINKS[of.kind]) return html`<a class="button" href=${place(LINKS[of.kind](of.target))}>${of.label}</a>`;
  return html`<span class="command"><code>${of.cli}</code><${Copy} text=${of.cli} /></span>`;
}

const SHOWN = 2;

/** Rows of `/why`: of each task what keeps it, the task on which the most depends first. */
export function Blockers({ of }) {
  const [isOpen, open] = useState(false);
  const waits = [...of.filter((each) => each.is_critical), ...of.filter((each) => !each.is_critical)];
  const doubled = new Set();
  return html`<ul class="blockers">${waits.slice(0, isOpen ? 50 : SHOWN).map((each, n) => html`<li key=${n}>
      <div><strong>${each.task_key ? `${each.task_key}: ` : ""}${each.text}</strong>${each.since && html` <span class="muted small">since <${When} at=${each.since} /></span>`}</div>
      ${each.next && html`<div class="muted">${each.next}</div>`}
      ${each.remedies.length > 0 && html`<div class="remedies">${each.remedies.filter((remedy) => !doubled.has(remedy.cli) && doubled.add(remedy.cli)).map((remedy) => html`<${Remedy} key=${remedy.cli} of=${remedy} />`)}</div>`}</li>`)}
    ${waits.length > SHOWN && html`<li><button class="link" aria-expanded=${isOpen} onClick=${() => open(!isOpen)}>${isOpen ? "Show less" : `and ${waits.length - SHOWN} more`}</button></li>`}</ul>`;
}
