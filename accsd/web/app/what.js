// What tells jobs of one workflow apart: the options that differ most among those that are shown. Pure.
import { said } from "./job_words.js";

const MOST = 3;

/** For each workflow the keys whose values differ most, the ones that differ in most jobs first. */
export function tellingKeys(jobs) {
  const byWorkflow = new Map();
  for (const job of jobs) (byWorkflow.get(job.workflow) ?? byWorkflow.set(job.workflow, []).get(job.workflow)).push(job.options ?? {});
  return new Map([...byWorkflow].map(([workflow, options]) => [workflow, keysOf(options)]));
}

function keysOf(options) {
  const values = new Map();
  for (const each of options) for (const [key, value] of Object.entries(each)) (values.get(key) ?? values.set(key, new Set()).get(key)).add(JSON.stringify(value));
  const differs = [...values].filter(([, found]) => found.size > 1).sort((a, b) => b[1].size - a[1].size);
  return (differs.length ? differs : [...values]).slice(0, MOST).map(([key]) => key);
}

export const what = (job, keys) => (keys ?? []).filter((key) => key in (job.options ?? {})).map((key) => `${key} ${said(job.options[key])}`).join(" · ");

/** The filter that the server understood, as [what is shown, the query without it]; null: it can't be taken out. */
export function chips(q) {
  const words = q.match(/(?:[^\s"]|"(?:[^"\\]|\\.)*")+/g) ?? [];
  return words.map((word, n) => [word, words.filter((_, other) => other !== n).join(" ")]);
}
