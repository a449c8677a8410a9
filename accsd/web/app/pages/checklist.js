// The first run: what is still to be done, each with its command; lines check themselves off.
import { html, useEffect } from "../html.js";
import { useLoaded } from "../load.js";
import { Copy } from "../ui/parts.js";

const LOOKS_EACH_MS = 2000; // a workflow that is applied leaves no event

/** What is done and what is not; null while that is not known. Once it `is` decided that this is no first run, nothing is asked. */
export function useFirstRun(overview, is) {
  const works = overview && (overview.running.length > 0 || overview.workflows.length > 0 || overview.failures.length > 0);
  const asks = is !== false && overview && !works;
  const jobs = useLoaded(asks || is ? "/jobs?limit=1" : null, { topics: ["overview"], concerns: (kind) => kind === "job" });
  const workflows = useLoaded(asks || is ? "/workflows" : null);
  const done = useLoaded(asks || is ? "/jobs?status=done&limit=1" : null, { topics: ["overview"], concerns: (kind) => kind === "job" });
  if (works && !is) return { isFirst: false };
  if (!overview || !jobs.data || !workflows.data || !done.data) return null;
  const known = overview.nodes.filter((node) => node.last_seen);
  return {
    isFirst: !jobs.data.items.length && (!known.length || !workflows.data.items.length),
    steps: [
      ["The database answers, and has the schema", true, null, null],
      ["A builder is running", overview.counts.poller_running, "accsd --role builder", "It makes jobs, fires schedules and wakes machines. `accsd up` runs it with everything else."],
      ["A machine is registered", known.length > 0, "accsd --role agent --config accsd.toml", "On each machine that is to work; its compose file says what it offers."],
      ["A workflow is written", workflows.data.items.length > 0, "accsd workflows apply media.yaml", "What a job is made of: steps, their services, and what comes after what."],
      ["A job is done", done.data.items.length > 0, "accsd submit media --follow", "Or by the form on the workflow's page."],
      ["A machine was woken", known.some((node) => node.brought_by), "accsd doctor --node NAME --cycle", "If machines are to sleep: wake_method in the node's settings. This one may wait."],
    ],
    again: () => { jobs.again(); workflows.again(); done.again(); },
  };
}

export function Checklist({ of, again, leave }) {
  useEffect(() => {
    const looks = setInterval(() => { if (!document.hidden) { again(); of.again(); } }, LOOKS_EACH_MS);
    return () => clearInterval(looks);
  });
  const needed = of.steps.slice(0, -1), isReady = needed.every(([, done]) => done);
  return html`<section class="first"><h1>${isReady ? "accsd is ready" : "Four commands to the first job"}</h1>
    <p class="muted">${isReady ? "From here on this page shows what runs, what waits and why, and who is awake." : html`Each line checks itself off. To see it work first, without touching anything: <code>accsd demo</code>`}</p>
    <ol aria-live="polite">${of.steps.map(([what, done, command, more]) => html`<li key=${what} data-done=${done}><span class="state" data-state=${done ? "done" : "queued"}><span class="glyph" aria-hidden="true">${done ? "✓" : "○"}</span><span class="visually-hidden">${done ? "done:" : "to do:"}</span></span>
      <div><strong>${what}</strong>${!done && command && html`<div class="also"><div><code>${command}</code><${Copy} text=${command} /></div></div>`}${!done && more && html`<div class="muted small">${more}</div>`}</div></li>`)}</ol>
    <p><button class=${isReady ? "primary" : ""} onClick=${leave}>Open the overview</button></p></section>`;
}
