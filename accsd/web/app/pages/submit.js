// The form that submits a job: the options that the workflow's schema names, or all of them as JSON.
import { call } from "../api.js";
import { html, useState } from "../html.js";
import { go } from "../router.js";
import { hindrance } from "../session.js";
import { Trouble } from "../ui/parts.js";
import { defaults, OptionsForm } from "../ui/options.js";

/** `last`: the newest job of the workflow, whose options may be taken over. */
export function Submit({ workflow, last }) {
  const [options, set] = useState(defaults(workflow.options_schema));
  const [round, setRound] = useState(0); // the form begins anew with other options
  const [fault, setFault] = useState(null);
  const [problem, setProblem] = useState(null);
  const [more, setMore] = useState({ priority: "", at: "" });
  const [busy, setBusy] = useState(false);
  const why = hindrance("submit");
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      const body = { workflow: workflow.name, version: workflow.version, options, ...(more.priority === "" ? {} : { priority: Number(more.priority) }), ...(more.at ? { scheduled_at: new Date(more.at).toISOString() } : {}) };
      const job = await call("/jobs", { method: "POST", body });
      go(`/jobs/${job.id}`);
    } catch (refusal) {
      setProblem(refusal);
      setBusy(false);
    }
  };
  return html`<form class="submit" onSubmit=${submit}><${Trouble} problem=${problem} />
    ${problem?.errors?.length > 0 && html`<ul class="fault">${problem.errors.map((each, n) => html`<li key=${n}><code>${each.pointer}</code> ${each.detail}</li>`)}</ul>`}
    ${last && html`<button type="button" onClick=${() => { set(last.options); setRound(round + 1); }}>Take the options of ${last.id.slice(-8)}</button>`}
    <${OptionsForm} key=${round} schema=${workflow.options_schema} value=${options} change=${(next, wrong) => { setFault(wrong); if (!wrong) set(next); }} />
    <details><summary>Priority and time</summary><label>Priority<input type="number" step="1" placeholder="0" value=${more.priority} onInput=${(event) => setMore({ ...more, priority: event.target.value })} /></label>
      <label>Not before (local time)<input type="datetime-local" value=${more.at} onInput=${(event) => setMore({ ...more, at: event.target.value })} /></label></details>
    <p><button class="primary" disabled=${Boolean(why) || busy || !!fault} title=${why}>Submit</button></p></form>`;
}
