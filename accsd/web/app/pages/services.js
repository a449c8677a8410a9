// What waits for each service, what runs, who offers it.
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { Action } from "../ui/sheet.js";
import { Nothing, Table, Trouble } from "../ui/parts.js";

export function Services() {
  const { data, problem, again } = useLoaded("/services", { topics: ["overview"], concerns: (kind) => kind === "counts" || kind === "node" });
  const verb = (service, name, title, effect) => ({ title: `${title} ${service}`, path: `/services/${encodeURIComponent(service)}/${name}`, scope: "operate", verb: title, cli: `accsd ${name} service ${service}`, effect });
  return html`<div class="head"><h1>Services</h1></div><${Trouble} problem=${problem} again=${again} />
    ${data && (data.items.length ? html`<${Table} label="Services" rows=${data.items} keyOf=${(each) => each.service} columns=${[
      ["Service", (each) => each.service], ["Waiting", (each) => each.claimable, "right"], ["In backoff", (each) => each.in_backoff, "right"], ["Held by a key", (each) => each.held_by_key, "right"],
      ["Running", (each) => `${each.live} of ${each.slots}`, "right"], ["Machines", (each) => each.nodes.join(", "), "cut"], ["State", (each) => each.state],
      ["", (each) => (each.paused_at ? html`<${Action} label="Resume" action=${verb(each.service, "resume", "Resume", () => ["Its tasks begin again."])} />` : html`<${Action} label="Pause" action=${verb(each.service, "pause", "Pause", () => [`${each.claimable} waiting tasks stay where they are; ${each.live} running ones end.`])} />`), "right"],
    ]} />` : html`<${Nothing}>No service is known. A machine that runs <code>accsd</code> offers the services of its compose file.<//>`)}`;
}
