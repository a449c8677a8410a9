// Where the page begins: who is there, and which page the address names.
import { shown } from "./fetched.js";
import { html, render } from "./html.js";
import { go, path } from "./router.js";
import { begin, me, sharedJob } from "./session.js";
import { SharedShell, Shell } from "./shell.js";
import { Trouble } from "./ui/parts.js";
import { place } from "./api.js";
import { Login } from "./pages/login.js";
import { Missing } from "./pages/missing.js";
import { badge } from "./watch.js";

// A page: the pattern of its path, what it is called, and what shows it, which is fetched when it is first wanted.
const PAGES = [
  [/^\/$/, () => "Overview", () => import("./pages/overview.js"), "Overview"],
  [/^\/jobs$/, () => "Jobs", () => import("./pages/jobs.js"), "Jobs"],
  [/^\/jobs\/([0-9a-f-]{36})$/, (id) => [["Jobs", "/jobs"], id.slice(-8)], () => import("./pages/job.js"), "Job"],
  [/^\/jobs\/([0-9a-f-]{36})\/log$/, (id) => [["Jobs", "/jobs"], [id.slice(-8), `/jobs/${id}`], "log"], () => import("./pages/log.js"), "Log"],
  [/^\/fleet$/, () => "Fleet", () => import("./pages/fleet.js"), "Fleet"],
  [/^\/fleet\/([^/]+)$/, (name) => [["Fleet", "/fleet"], name], () => import("./pages/node.js"), "Node"],
  [/^\/services$/, () => "Services", () => import("./pages/services.js"), "Services"],
  [/^\/services\/([^/]+)$/, (name) => [["Services", "/services"], name], () => import("./pages/services.js"), "Service"],
  [/^\/dead$/, () => "Dead letters", () => import("./pages/dead.js"), "Dead"],
  [/^\/schedules$/, () => "Schedules", () => import("./pages/schedules.js"), "Schedules"],
  [/^\/schedules\/([^/]+)$/, (name) => [["Schedules", "/schedules"], name], () => import("./pages/schedule.js"), "Schedule"],
  [/^\/triggers$/, () => "Triggers", () => import("./pages/triggers.js"), "Triggers"],
  [/^\/triggers\/([^/]+)$/, (name) => [["Triggers", "/triggers"], name], () => import("./pages/condition.js"), "Trigger"],
  [/^\/tools$/, () => "Tools", () => import("./pages/tools.js"), "Tools"],
  [/^\/tools\/([^/]+)$/, (name) => [["Tools", "/tools"], name], () => import("./pages/tools.js"), "Tool"],
  [/^\/workflows$/, () => "Workflows", () => import("./pages/workflows.js"), "Workflows"],
  [/^\/workflows\/([^/]+)$/, (name) => [["Workflows", "/workflows"], name], () => import("./pages/workflow.js"), "Workflow"],
  [/^\/compare$/, () => "Compare", () => import("./pages/compare.js"), "Compare"],
  [/^\/operations$/, () => "Operations", () => import("./pages/operations.js"), "Operations"],
  [/^\/operations\/([0-9a-f-]{36})$/, (id) => [["Operations", "/operations"], id.slice(-8)], () => import("./pages/operations.js"), "Operation"],
  [/^\/system$/, () => "System", () => import("./pages/system.js"), "System"],
  [/^\/system\/outbox$/, () => [["System", "/system"], "Outbox"], () => import("./pages/system.js"), "Outbox"],
  [/^\/system\/audit$/, () => [["System", "/system"], "Audit"], () => import("./pages/audit.js"), "Audit"],
  [/^\/system\/tokens$/, () => [["System", "/system"], "Tokens"], () => import("./pages/tokens.js"), "Tokens"],
  [/^\/preferences$/, () => "Preferences", () => import("./pages/preferences.js"), "Preferences"],
];

const Crumbs = ({ of }) => (Array.isArray(of) ? [...of.slice(0, -1).map(([word, to]) => html`<a key=${to} href=${place(to)}>${word}</a> / `), of.at(-1)] : of);

const ofJob = () => import("./pages/job.js");

/** What somebody sees who has a link to one job and no account. */
function Shared({ job }) {
  if (path.value === "/login") return html`<${Login} />`;
  const Page = shown(ofJob, "Job");
  document.title = `${job.slice(-8)} · accsd`;
  return html`<${SharedShell} job=${job}>${path.value === `/jobs/${job}` ? Page && html`<${Page} key=${job} subject=${job} />`
    : html`<section class="missing"><h1>This link shows one job</h1><p><a class="button" href=${place(`/jobs/${job}`)}>To the job</a> <a class="button" href=${place("/login")}>Log in</a></p></section>`}<//>`;
}

function App() {
  if (me.value === undefined) return null;
  if (me.value === null) { document.title = "Log in · accsd"; return html`<${Login} />`; }
  if (sharedJob()) return html`<${Shared} job=${sharedJob()} />`;
  if (path.value === "/login") { go("/", { replace: true }); return null; }
  for (const [pattern, title, fetches, name] of PAGES) {
    const found = pattern.exec(path.value);
    if (!found) continue;
    const subject = found[1] === undefined ? undefined : decodeURIComponent(found[1]);
    const crumbs = title(subject);
    document.title = `${badge.value}${Array.isArray(crumbs) ? crumbs.at(-1) : crumbs} · accsd`;
    const Page = shown(fetches, name);
    return html`<${Shell} crumbs=${html`<${Crumbs} of=${crumbs} />`}>${Page && html`<${Page} key=${path.value} subject=${subject} />`}<//>`;
  }
  return html`<${Shell} crumbs="Not found"><${Missing} /><//>`;
}

const root = document.getElementById("app");
begin().then(
  () => render(html`<${App} />`, root),
  (problem) => render(html`<div class="login"><${Trouble} problem=${problem} again=${() => location.reload()} /></div>`, root),
);
