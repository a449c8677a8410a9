// What failed for good, the same failures together, and the way back.
import { html } from "../html.js";
import { useLoaded } from "../load.js";
import { Action } from "../ui/sheet.js";
import { JobLink, Nothing, Table, Trouble, When } from "../ui/parts.js";

export function Dead() {
  const { data, problem, again } = useLoaded("/dead-letters/groups", { topics: ["overview"], concerns: (kind) => kind === "dead" });
  const verb = (each, name, title, letters, effect) => ({ title: `${title} ${letters.length} of ${each.group.service} ${each.group.error_code}`, path: `/dead-letters/${name}`, body: { ids: letters }, scope: "operate", verb: title, cli: `accsd dead-letters ${name} ${letters.slice(0, 5).join(" ")}`, effect });
  return html`<div class="head"><h1>Dead letters</h1></div><${Trouble} problem=${problem} again=${again} />
    ${data && (data.items.length ? html`<${Table} label="Groups of dead letters" rows=${data.items} keyOf=${(each) => JSON.stringify(each.group)} columns=${[
      ["Count", (each) => each.count, "right"], ["Service", (each) => each.group.service], ["Step", (each) => each.group.step], ["Error", (each) => each.group.error_code], ["What was said", (each) => each.group.message, "cut"],
      ["First", (each) => html`<${When} at=${each.first} />`], ["Last", (each) => html`<${When} at=${each.last} />`], ["Jobs", (each) => each.jobs.slice(0, 3).map((id) => html`<${JobLink} key=${id} id=${id} /> `)],
      ["", (each) => html`<${Action} label="One first" action=${verb(each, "redrive", "Redrive", each.letters.slice(0, 1), () => ["One of them runs again; the others wait for what you see."])} />
        <${Action} label="Redrive" action=${verb(each, "redrive", "Redrive", each.letters, () => [`${each.letters.length} tasks run again.`])} />
        <${Action} label="Dismiss" kind="danger" action=${{ ...verb(each, "dismiss", "Dismiss", each.letters, () => [`${each.letters.length} leave the list; their jobs stay as they are.`]), danger: true }} />`],
    ]} />` : html`<${Nothing}>No task has failed for good.<//>`)}`;
}
