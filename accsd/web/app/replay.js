// The states of a job's steps at any moment, from the transitions that its history tells. Pure. Moments are microseconds
// since 1970, as the database has them.

/** Of an instant as the API writes it. */
export function micros(iso) {
  const digits = /\.(\d{1,6})/.exec(iso)?.[1] ?? "";
  return Math.floor(Date.parse(iso) / 1000) * 1_000_000 + Number(digits.padEnd(6, "0") || 0);
}

/** {times, task, status, tasks, made}: of a history's columns, in order. */
export function transitions(history) {
  const from = history.from ? micros(history.from) : 0;
  const moments = (column) => column.map((seconds) => from + Math.round(seconds * 1_000_000));
  return { tasks: history.tasks, made: moments(history.made_after_seconds), times: moments(history.after_seconds), task: history.task, status: history.status };
}

/** The status of each step that there was at a moment, by its key: queued from its making on. */
export function statesAt({ tasks, made, times, task, status }, moment) {
  const found = new Map(tasks.flatMap((key, n) => (made[n] <= moment ? [[key, "queued"]] : [])));
  for (let n = 0; n < times.length && times[n] <= moment; n++) found.set(tasks[task[n]], status[n]);
  return found;
}

/** The moment of the next transition in this direction; the same one where there is none. */
export function beside({ times }, moment, step) {
  const found = step > 0 ? times.find((each) => each > moment) : times.findLast((each) => each < moment);
  return found ?? moment;
}
