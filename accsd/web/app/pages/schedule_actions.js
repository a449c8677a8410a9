// What can be done to a schedule, each as it is rehearsed and said elsewhere.
import { exact } from "../time.js";

const word = (text) => (/^[\w.:/@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

export function actions(schedule, reload) {
  const at = `/schedules/${encodeURIComponent(schedule.name)}`, name = word(schedule.name);
  const done = (said) => () => { reload(); return said; };
  const because = (body) => (body.reason ? ` --reason ${word(body.reason)}` : "");
  const verb = (path, title, rest) => ({ title: `${title} ${schedule.name}`, path: `${at}/${path}`, scope: "submit", verb: title, done: done(`${title} ${schedule.name}: done`), ...rest });
  const due = (each) => ({ nominal: each.nominal, ...(each.fold ? { nominal: each.due_at } : {}) });
  return {
    run: verb("run_now", "Run now", { cli: (body) => `accsd schedules run ${name}${body.force === "true" ? " --force" : ""}${because(body)}`, effect: () => [`A job of ${schedule.workflow} starts at once.`, "No due time moves."],
      done: (answer) => { reload(); return { text: `${schedule.name} runs`, link: answer.job_id && `/jobs/${answer.job_id}` }; },
      fields: [{ name: "force", label: "If its last run has not ended", choices: [["", "do not run"], ["true", "run beside it"]] }] }),
    pause: verb("pause", "Pause", { cli: (body) => `accsd schedules pause ${name}${body.until ? ` --until ${word(body.until)}` : ""}${because(body)}`, effect: () => ["What falls due meanwhile is skipped, and the ledger says so.", "Its jobs that run go on."],
      fields: [{ name: "until", label: "Until (it goes on by itself then)", placeholder: "2027-01-31T06:00:00Z", hint: "An instant with its offset; empty: until somebody resumes it." }] }),
    resume: verb("resume", "Resume", { cli: (body) => `accsd schedules resume ${name} --recover ${body.recover}${because(body)}`, effect: (preview) => ["It fires again.", preview.recovered ? `Of what the pause skipped ${preview.recovered} run now.` : "Of what the pause skipped nothing runs."],
      fields: [{ name: "recover", label: "Of what this pause has skipped, run", value: "none", choices: [["none", "nothing"], ["one", "the latest"], ["all", "all that is not too old"]] }] }),
    snooze: verb("snooze", "Snooze", { cli: (body) => `accsd schedules snooze ${name} --for ${body.for ?? ""}${because(body)}`, effect: (preview) => [`The next one (${preview.nominal?.replace("T", " ")}) is due at ${exact(preview.due_at)} instead.`, "Those after it stay."],
      fields: [{ name: "for", label: "By", value: "1h", needed: true, hint: "30m, 2h, 1d: counted from when it is due now." }] }),
    unsnooze: verb("unsnooze", "Unsnooze", { cli: `accsd schedules unsnooze ${name}`, effect: () => ["It has its own due time back; if that has passed, it is settled at once."] }),
    skip: (each) => verb("skip", "Skip", { title: `Skip ${each.nominal.replace("T", " ")} of ${schedule.name}`, body: due(each), cli: (body) => `accsd schedules skip ${name} ${body.nominal}${because(body)}`, effect: () => ["This one does not run; the others stay."] }),
    unskip: (each) => verb("unskip", "Unskip", { title: `Let ${each.nominal.replace("T", " ")} of ${schedule.name} run`, body: due(each), cli: (body) => `accsd schedules unskip ${name} ${body.nominal}`, effect: () => ["This one runs after all."] }),
    end: { title: `End ${schedule.name}`, path: at, method: "DELETE", scope: "submit", verb: "End it", danger: true, done: done(`${schedule.name} has ended`), cli: (body) => `accsd schedules end ${name}${body.cancel === "true" ? " --cancel" : ""}${because(body)}`,
      effect: (preview) => ["Nothing follows. It stays with its ledger.", preview.cancelled_jobs ? `${preview.cancelled_jobs} of its jobs are cancelled.` : "Its jobs that run go on."],
      fields: [{ name: "cancel", label: "Its open jobs", choices: [["", "go on"], ["true", "are cancelled"]] }] },
  };
}
