// Two jobs side by side: only what differs, the first step that differs on top; what is the same is counted.
import { call, place, query } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { differences } from "../diff.js";
import { bytes } from "../job_words.js";
import { ask, go, params } from "../router.js";
import { duration } from "../time.js";
import { Changes } from "../ui/changes.js";
import { At, JobLink, Nothing, State, Trouble } from "../ui/parts.js";
import { Slider } from "../ui/slider.js";
import { contentOf, kindOf } from "./job_artifacts.js";

const SAME_TIME = 1.25; // a step that took no more than so many times as long took as long
const FACTS = ["workflow", "version", "status", "priority", "created_by", "error_code", "error_message"];
const MOST_IMAGES = 24;
const OF_STEP = ["service", "status", "node", "attempt", "error_code", "params", "results"];

export function Compare() {
  const { a, b = "last_good" } = params.value;
  const [found, set] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    set(null);
    setProblem(null);
    if (a) call(`/jobs/${encodeURIComponent(a)}/compare${query({ with: b })}`).then(set, setProblem);
  }, [a, b]);
  const choose = (event) => {
    event.preventDefault();
    const given = new FormData(event.target);
    ask({ a: given.get("a").trim(), b: given.get("b").trim() || null }, { replace: false });
  };
  return html`<div class="head"><h1>Compare</h1><form class="graph-tools" key=${`${a} ${b}`} onSubmit=${choose}><label>Job <input name="a" required value=${a ?? ""} placeholder="id" /></label>
      <label>with <input name="b" value=${b === "last_good" ? "" : b} placeholder="the last good run" /></label><button>Compare</button>
      ${found && html`<button type="button" onClick=${() => go(`/compare${query({ a: found.with.id, b: found.job.id })}`)}>Swap</button>`}</form></div>
    <${Trouble} problem=${problem} />${!a && html`<${Nothing}>Name a job, by its id or the beginning or end of it. A failed job's page has a button that compares it with the last good run.<//>`}
    ${found && html`<${Both} job=${found.job} beside=${found.with} />`}`;
}

function Both({ job, beside }) {
  const facts = FACTS.filter((name) => job[name] !== beside[name]).map((name) => ({ path: name.replaceAll("_", " "), before: beside[name] ?? undefined, after: job[name] ?? undefined }));
  const options = differences(beside.options, job.options);
  const steps = stepsOf(beside.tasks, job.tasks);
  const differs = steps.filter((each) => each.differs), artifacts = filesOf(beside.artifacts, job.artifacts);
  const other = artifacts.filter((each) => each.differs);
  const longest = Math.max(0.001, ...steps.flatMap((each) => [each.before?.took_seconds ?? 0, each.after?.took_seconds ?? 0]));
  const same = [steps.length - differs.length && `${steps.length - differs.length} steps`, artifacts.length - other.length && `${artifacts.length - other.length} artifacts`, !options.length && "the options"].filter(Boolean);
  return html`<div class="scrolls"><table aria-label="The two jobs" class="pair-of-jobs"><thead><tr><th scope="col"></th><th scope="col">Job</th><th scope="col">Workflow</th><th scope="col">Status</th><th scope="col">Submitted</th><th scope="col" class="right">Took</th></tr></thead><tbody>
      ${[["before", beside], ["after", job]].map(([word, each]) => html`<tr key=${word}><th scope="row">${word}</th><td><${JobLink} id=${each.id} /></td><td>${each.workflow} v${each.version}</td><td><${State} of=${each.status} /></td><td><${At} at=${each.created_at} /></td><td class="right">${duration(each.took_seconds)}</td></tr>`)}</tbody></table></div>
    ${differs[0] && html`<p class="hint">The first step that differs: <strong>${differs[0].key}</strong>, ${inWords(differs[0])}.</p>`}
    ${facts.length > 0 && html`<section class="panel"><h2>The job</h2><${Changes} of=${facts} label="Differences of the jobs" /></section>`}
    ${options.length > 0 && html`<section class="panel"><h2>Options</h2><${Changes} of=${options} label="Differences of the options" /></section>`}
    ${differs.length > 0 && html`<section class="panel"><h2>Steps <span class="note">${differs.length} of ${steps.length} differ</span></h2>${differs.map((each) => html`<${StepPair} key=${each.key} of=${each} longest=${longest} job=${job} beside=${beside} />`)}</section>`}
    ${other.length > 0 && html`<section class="panel"><h2>Artifacts</h2><${Changes} label="Differences of the artifacts" of=${other.map((each) => ({ path: each.key, before: fileInWords(each.before), after: fileInWords(each.after) }))} />
      ${other.filter(isImagePair).slice(0, MOST_IMAGES).map((each, n) => html`<${ImagePair} key=${each.key} of=${each} isOpen=${n === 0} />`)}</section>`}
    ${same.length > 0 && html`<p class="muted">The same: ${same.join(", ")}.</p>`}
    ${!facts.length && !options.length && !differs.length && !other.length && html`<${Nothing}>Nothing differs.<//>`}`;
}

function stepsOf(before, after) {
  const old = new Map(before.map((task) => [task.task_key, task])), young = new Map(after.map((task) => [task.task_key, task]));
  const of = (key) => {
    const one = old.get(key), two = young.get(key);
    const changes = one && two ? OF_STEP.flatMap((name) => differences(some(one[name]), some(two[name]), name.replace("_", " "))) : [];
    const slower = one && two ? ratio(one.took_seconds, two.took_seconds) : null;
    return { key, before: one, after: two, changes, slower, differs: !one || !two || changes.length > 0 || slower !== null };
  };
  return [...new Set([...young.keys(), ...old.keys()])].map(of);
}

/** What says nothing is not there. */
const some = (value) => (value === null || (typeof value === "object" && !Object.keys(value).length) ? undefined : value);

/** How many times as long; null: about as long, or too short to say. */
function ratio(before, after) {
  if (!before || !after || Math.max(before, after) < 1) return null;
  const found = after / before;
  return found > SAME_TIME || found < 1 / SAME_TIME ? found : null;
}

const inWords = (step) => [!step.before && "which is new", !step.after && "which is gone", ...step.changes.slice(0, 3).map((each) => each.path), step.slower && `${step.slower > 1 ? `${step.slower.toFixed(1)} times as long` : `${Math.round(step.slower * 100)} % of the time`}`].filter(Boolean).join(", ");

function StepPair({ of, longest, job, beside }) {
  const bar = (task, side) => html`<div class="mirror" data-side=${side}>${task && html`<span class="small">${duration(task.took_seconds)}</span><i data-run=${task.status} style=${{ width: `${((task.took_seconds ?? 0) / longest) * 70}%` }}></i>`}</div>`;
  const link = (its, task) => task && html`<a href=${place(`/jobs/${its.id}?tab=steps&step=${encodeURIComponent(task.task_key)}`)}><${State} of=${task.status} /></a>`;
  return html`<article class="step-pair" aria-label=${`Step ${of.key}`}><header><strong>${of.key}</strong> ${!of.before ? html`<span class="muted">only after</span>` : !of.after ? html`<span class="muted">only before</span>` : html`${link(beside, of.before)} → ${link(job, of.after)}`} <span class="muted small">${of.slower ? `took ${of.slower > 1 ? `${of.slower.toFixed(1)} times as long` : `${Math.round(of.slower * 100)} % of the time`}` : ""}</span></header>
    <div class="mirrors">${bar(of.before, "before")}${bar(of.after, "after")}</div>${of.changes.length > 0 && html`<${Changes} of=${of.changes} label=${`Differences of ${of.key}`} />`}</article>`;
}

function filesOf(before, after) {
  const keyOf = (file) => `${file.task_key ?? ""}/${file.name}`;
  const old = new Map(before.map((file) => [keyOf(file), file])), young = new Map(after.map((file) => [keyOf(file), file]));
  return [...new Set([...young.keys(), ...old.keys()])].map((key) => ({ key, before: old.get(key), after: young.get(key), differs: old.get(key)?.checksum !== young.get(key)?.checksum || old.get(key)?.size_bytes !== young.get(key)?.size_bytes }));
}
const fileInWords = (file) => file && `${bytes(file.size_bytes)}${file.checksum ? `, ${file.checksum.slice(0, 19)}…` : ""}`;
const isImagePair = ({ before, after }) => [before, after].every((file) => file && kindOf(file.content_type) === "image");

function ImagePair({ of: { key, before, after }, isOpen }) {
  const [isShown, show] = useState(isOpen);
  const side = (file) => ({ src: contentOf(file), word: bytes(file.size_bytes) });
  return html`<details class="image-pair" open=${isShown} onToggle=${(event) => show(event.target.open)}><summary>${key}</summary>${isShown && html`<${Slider} name=${key} before=${side(before)} after=${side(after)} />`}</details>`;
}
