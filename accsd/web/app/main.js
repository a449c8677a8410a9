// Where the page begins: who is there, and which page the address names.
import { html, render } from "./html.js";
import { go, path } from "./router.js";
import { begin, me } from "./session.js";
import { Shell } from "./shell.js";
import { Trouble } from "./ui/parts.js";
import { place } from "./api.js";
import { Compare } from "./pages/compare.js";
import { Dead } from "./pages/dead.js";
import { Fleet } from "./pages/fleet.js";
import { Job } from "./pages/job.js";
import { Jobs } from "./pages/jobs.js";
import { Log } from "./pages/log.js";
import { Login } from "./pages/login.js";
import { Missing } from "./pages/missing.js";
import { Preferences } from "./pages/preferences.js";
import { Node } from "./pages/node.js";
import { Operation, Operations } from "./pages/operations.js";
import { Overview } from "./pages/overview.js";
import { Schedule } from "./pages/schedule.js";
import { Schedules } from "./pages/schedules.js";
import { Service, Services } from "./pages/services.js";
import { Outbox, System } from "./pages/system.js";
import { Audit } from "./pages/audit.js";
import { Tokens } from "./pages/tokens.js";
import { Tool, Tools } from "./pages/tools.js";
import { Trigger } from "./pages/condition.js";
import { Triggers } from "./pages/triggers.js";
import { Workflow } from "./pages/workflow.js";
import { Workflows } from "./pages/workflows.js";

// A page: the pattern of its path, what it is called, and what shows it.
const PAGES = [
  [/^\/$/, () => "Overview", Overview],
  [/^\/jobs$/, () => "Jobs", Jobs],
  [/^\/jobs\/([0-9a-f-]{36})$/, (id) => [["Jobs", "/jobs"], id.slice(-8)], Job],
  [/^\/jobs\/([0-9a-f-]{36})\/log$/, (id) => [["Jobs", "/jobs"], [id.slice(-8), `/jobs/${id}`], "log"], Log],
  [/^\/fleet$/, () => "Fleet", Fleet],
  [/^\/fleet\/([^/]+)$/, (name) => [["Fleet", "/fleet"], name], Node],
  [/^\/services$/, () => "Services", Services],
  [/^\/services\/([^/]+)$/, (name) => [["Services", "/services"], name], Service],
  [/^\/dead$/, () => "Dead letters", Dead],
  [/^\/schedules$/, () => "Schedules", Schedules],
  [/^\/schedules\/([^/]+)$/, (name) => [["Schedules", "/schedules"], name], Schedule],
  [/^\/triggers$/, () => "Triggers", Triggers],
  [/^\/triggers\/([^/]+)$/, (name) => [["Triggers", "/triggers"], name], Trigger],
  [/^\/tools$/, () => "Tools", Tools],
  [/^\/tools\/([^/]+)$/, (name) => [["Tools", "/tools"], name], Tool],
  [/^\/workflows$/, () => "Workflows", Workflows],
  [/^\/workflows\/([^/]+)$/, (name) => [["Workflows", "/workflows"], name], Workflow],
  [/^\/compare$/, () => "Compare", Compare],
  [/^\/operations$/, () => "Operations", Operations],
  [/^\/operations\/([0-9a-f-]{36})$/, (id) => [["Operations", "/operations"], id.slice(-8)], Operation],
  [/^\/system$/, () => "System", System],
  [/^\/system\/outbox$/, () => [["System", "/system"], "Outbox"], Outbox],
  [/^\/system\/audit$/, () => [["System", "/system"], "Audit"], Audit],
  [/^\/system\/tokens$/, () => [["System", "/system"], "Tokens"], Tokens],
  [/^\/preferences$/, () => "Preferences", Preferences],
];

const Crumbs = ({ of }) => (Array.isArray(of) ? [...of.slice(0, -1).map(([word, to]) => html`<a key=${to} href=${place(to)}>${word}</a> / `), of.at(-1)] : of);

function App() {
  if (me.value === undefined) return null;
  if (me.value === null) { document.title = "Log in · accsd"; return html`<${Login} />`; }
  if (path.value === "/login") { go("/", { replace: true }); return null; }
  for (const [pattern, title, Page] of PAGES) {
    const found = pattern.exec(path.value);
    if (!found) continue;
    const subject = found[1] === undefined ? undefined : decodeURIComponent(found[1]);
    const crumbs = title(subject);
    document.title = `${Array.isArray(crumbs) ? crumbs.at(-1) : crumbs} · accsd`;
    return html`<${Shell} crumbs=${html`<${Crumbs} of=${crumbs} />`}><${Page} key=${path.value} subject=${subject} /><//>`;
  }
  return html`<${Shell} crumbs="Not found"><${Missing} /><//>`;
}

const root = document.getElementById("app");
begin().then(
  () => render(html`<${App} />`, root),
  (problem) => render(html`<div class="login"><${Trouble} problem=${problem} again=${() => location.reload()} /></div>`, root),
);
