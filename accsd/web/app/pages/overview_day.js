// How attempts ended, hour by hour: a column for each, done below, what failed above it.
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { clock, duration } from "../time.js";
import { Nothing } from "../ui/parts.js";

const HOUR = 3600_000, HEIGHT = 44;

export function LastDay() {
  const { data } = useLoaded("/overview/outcomes?hours=24", { topics: ["overview"], concerns: (kind) => kind === "job", gather: 10_000 });
  return data && html`<${Hours} of=${data} />`;
}

function Hours({ of, hours = 24 }) {
  const until = Date.parse(of.as_of);
  const at = new Map(of.items.map((each) => [Math.round((until - Date.parse(each.at)) / HOUR), each]));
  const columns = Array.from({ length: hours }, (_, n) => ({ at: until - (hours - n) * HOUR, ...at.get(hours - n) }));
  const sum = (name) => of.items.reduce((total, each) => total + each[name], 0);
  const ended = sum("done") + sum("error") + sum("retried") + sum("lost");
  if (!ended) return html`<${Nothing}>Nothing has ended.<//>`;
  const failed = (each) => (each.error ?? 0) + (each.retried ?? 0) + (each.lost ?? 0);
  const most = Math.max(1, ...columns.map((each) => (each.done ?? 0) + failed(each)));
  const words = `${sum("done").toLocaleString()} done, ${sum("error").toLocaleString()} failed for good${sum("retried") ? `, ${sum("retried").toLocaleString()} tried again` : ""}${sum("lost") ? `, ${sum("lost").toLocaleString()} lost` : ""}; a task waited ${duration(sum("wait_s") / ended)} on average`;
  return html`<div class="hours" role="img" aria-label=${words}>${columns.map((each) => html`<i key=${each.at} title=${`from ${clock(new Date(each.at).toISOString())}: ${each.done ?? 0} done, ${each.error ?? 0} failed, ${each.retried ?? 0} tried again, ${each.lost ?? 0} lost`}>
      <b data-run="error" style=${{ height: `${(failed(each) / most) * HEIGHT}px` }}></b><b data-run="done" style=${{ height: `${((each.done ?? 0) / most) * HEIGHT}px` }}></b></i>`)}</div><div class="small muted">${words}.</div>`;
}
