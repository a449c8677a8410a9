// What can be done to a job: each with what it will do, before it is done.
import { call, place } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { ENDED } from "../job_words.js";
import { OptionsForm } from "../ui/options.js";
import { useKeys } from "../keys.js";
import { hindrance } from "../session.js";
import { act, Action } from "../ui/sheet.js";
import { leave, permission, watch, watched } from "../watch.js";
import { Share } from "./job_share.js";

const MOST_NAMED = 12;
const named = (keys) => (keys?.length ? `${keys.slice(0, MOST_NAMED).join(", ")}${keys.length > MOST_NAMED ? ` and ${keys.length - MOST_NAMED} more` : ""}` : "nothing");
const counted = (word, keys) => `${word}${keys?.length ? ` (${keys.length})` : ""}: ${named(keys)}`;

export const retryOf = (job, step) => {
  const name = `${job.workflow} ${job.id.slice(-8)}`;
  return {
    title: `Retry ${name}`, path: `/jobs/${job.id}/retry`, scope: "submit", verb: "Retry",
    begin: step ?? "", form: (given) => html`<${FromStep} job=${job} ...${given} />`, bodyOf: (from) => (from ? { from_step: from } : {}),
    cli: (from) => `accsd retry ${job.id}${from ? ` --from ${from}` : ""}`,
    effect: (preview) => (preview.answer === "refused" ? [`It would be refused: ${preview.reason}`] : [counted("Runs again", preview.runs_again), counted("Keeps its result", preview.kept)]),
    done: () => `${name} runs again`,
  };
};

function FromStep({ job, value, change }) {
  const [steps, set] = useState([]);
  useEffect(() => { call(`/jobs/${job.id}/tasks?limit=1000`).then(({ items }) => set(items.filter((task) => !task.parent))); }, [job.id]);
  return html`<label>Begin with<select value=${value} onChange=${(event) => change(event.target.value)}>
    <option value="">what has not succeeded</option>${[...new Set([value, ...steps.map((task) => task.task_key)])].filter(Boolean).map((key) => html`<option key=${key} value=${key}>${key}, and what comes after it</option>`)}</select></label>`;
}

export const cancelOf = (job) => {
  const name = `${job.workflow} ${job.id.slice(-8)}`;
  return {
    title: `Cancel ${name}`, path: `/jobs/${job.id}/cancel`, scope: "submit", verb: "Cancel the job", danger: true, cli: `accsd cancel ${job.id}`,
    effect: (preview) => [counted("Stops", preview.stops), counted("Never begins", preview.never_begins), counted("Stays as it is", preview.stays)],
    done: () => `${name} is cancelled`,
  };
};

/** A new job with other options; the schema of its workflow's version says which there are. */
const rerunOf = (job) => ({
  title: `Run ${job.workflow} again, with other options`, path: `/jobs/${job.id}/rerun`, scope: "submit", verb: "Submit the new job", takesReason: false,
  begin: job.options, form: (given) => html`<${Options} job=${job} ...${given} />`, bodyOf: (options) => ({ options }),
  cli: (options) => `accsd retry ${job.id}${changes(job.options, options).map(([key, , to]) => ` -o ${key}=${to}`).join("")}`,
  effect: (preview, options) => [`A new job of ${preview.workflow} version ${preview.version}; this one stays as it is.`,
    ...(changes(job.options, options).map(([key, from, to]) => `${key}: ${from} → ${to}`)), ...(changes(job.options, options).length ? [] : ["The options are the same."])],
  done: (made) => ({ text: `${made.workflow} was submitted again`, link: `/jobs/${made.id}` }),
});

function Options({ job, value, change }) {
  const [schema, setSchema] = useState(undefined);
  useEffect(() => { call(`/workflows/${encodeURIComponent(job.workflow)}/versions/${job.version}`).then((found) => setSchema(found.options_schema), () => setSchema(null)); }, [job.id]);
  return schema === undefined ? null : html`<${OptionsForm} schema=${schema} value=${value} change=${(options) => change(options)} />`;
}

function changes(before, after) {
  const said = (value) => (value === undefined ? "(none)" : typeof value === "string" ? value : JSON.stringify(value));
  return [...new Set([...Object.keys(before), ...Object.keys(after)])].filter((key) => JSON.stringify(before[key]) !== JSON.stringify(after[key])).map((key) => [key, said(before[key]), said(after[key])]);
}

/** Whether the end of this job is told, by the browser where it may. */
function Tell({ job }) {
  const isWatched = watched.value.includes(job.id);
  const how = { granted: "The browser tells you", default: "The browser tells you, if you allow it" }[permission()] ?? "It is told in every tab of this page and in its title (notifications of the browser are off, or need HTTPS)";
  return html`<button aria-pressed=${isWatched} title=${`${how}, as long as a tab of this page is open.`} onClick=${() => (isWatched ? leave(job.id) : watch(job.id))}>${isWatched ? "You are told when it ends" : "Tell me when it ends"}</button>`;
}

export function Actions({ job, tasks }) {
  const failed = tasks.find((task) => task.status === "error" && !task.tolerated);
  const hasEnded = ENDED.includes(job.status);
  const may = !hindrance("submit");
  useKeys({
    ...(may && hasEnded ? { r: ["retry the job", () => act(retryOf(job, ""))] } : {}),
    ...(may && !hasEnded ? { c: ["cancel the job", () => act(cancelOf(job))] } : {}),
  });
  return html`<div class="actions">
    ${hasEnded && html`<${Action} label=${failed ? `Retry from ${failed.task_key.replace(/\[.*$/, "")}` : "Retry"} kind="primary" action=${retryOf(job, "")} />`}
    ${!hasEnded && html`<${Tell} job=${job} />`}<${Share} job=${job} /><${Action} label="Rerun with edits" action=${rerunOf(job)} />
    ${hasEnded && html`<a class="button" href=${place(`/compare?a=${job.id}&b=last_good`)}>Compare with the last good run</a>`}
    ${!hasEnded && html`<${Action} label="Cancel" kind="danger" action=${cancelOf(job)} />`}</div>`;
}
