// The daemons, the database, and how the gateway hears of news.
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { duration } from "../time.js";
import { Facts, Json, Table, Trouble } from "../ui/parts.js";

export function System() {
  const { data, problem, again } = useLoaded("/system");
  if (!data) return html`<${Trouble} problem=${problem} again=${again} />`;
  return html`<div class="head"><h1>System</h1></div><div class="grid">
    <section class="panel half"><h2>accsd</h2><${Facts} of=${[["version", data.version], ["schema", data.schema.found], ["hears", data.hearing.state], ["streams", data.hub.streams], ["waiting requests", data.hub.waiters], ["mode", data.hub.mode]]} /></section>
    <section class="panel half"><h2>Work</h2><${Facts} of=${Object.entries(data.scheduler).map(([key, value]) => [key.replaceAll("_", " "), typeof value === "boolean" ? (value ? "yes" : "no") : value])} /></section>
    <section class="panel"><h2>Builders</h2><${Table} label="Builders" rows=${data.builders} keyOf=${(each) => each.name} columns=${[["Name", (each) => each.name], ["Last seen", (each) => `${duration(each.unseen_for_seconds)} ago`], ["Obstacles", (each) => html`<${Json} value=${each.obstacles} />`]]} /></section></div>`;
}
