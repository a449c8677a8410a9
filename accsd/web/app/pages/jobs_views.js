// Saved views: a query of the list under a name, one's own or shared.
import { call, place, query } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { go } from "../router.js";
import { may } from "../session.js";
import { notice } from "../ui/notices.js";
import { Trouble } from "../ui/parts.js";

export function Views({ q, order }) {
  const [views, set] = useState([]);
  const [isOpen, open] = useState(false);
  const [name, setName] = useState("");
  const [shared, share] = useState(false);
  const [problem, setProblem] = useState(null);
  const load = () => call("/views").then(({ items }) => set(items), setProblem);
  useEffect(() => { load(); }, []);
  const to = (view) => `/jobs${query({ q: view.query.q, order: view.query.order })}`;
  const shown = views.find((view) => (view.query.q ?? "") === q && (view.query.order ?? undefined) === order);
  const doing = (work, said) => async (event) => {
    event?.preventDefault();
    try {
      await work();
      notice(said);
      setProblem(null);
      setName("");
      open(false);
      await load();
    } catch (refusal) { setProblem(refusal); }
  };
  const same = views.find((view) => view.name === name && view.is_shared === shared);
  const save = doing(() => call(`/views/${encodeURIComponent(name)}${query({ shared: shared || undefined })}`, { method: "PUT", body: { query: { q, ...(order ? { order } : {}) } }, headers: same ? { "If-Match": `"${same.revision}"` } : {} }), `The view ${name} is saved`);
  const drop = (view) => doing(() => call(`/views/${encodeURIComponent(view.name)}${query({ shared: view.is_shared || undefined })}`, { method: "DELETE" }), `The view ${view.name} is dropped`);
  return html`<div class="views"><label><span class="visually-hidden">Saved view</span><select value=${shown ? `${shown.is_shared} ${shown.name}` : ""} onChange=${(event) => { const view = views.find((each) => `${each.is_shared} ${each.name}` === event.target.value); go(view ? to(view) : "/jobs"); }}>
      <option value="">${views.length ? "Views" : "No saved views"}</option>${views.map((view) => html`<option key=${`${view.is_shared} ${view.name}`} value=${`${view.is_shared} ${view.name}`}>${view.name}${view.is_shared ? " (shared)" : ""}</option>`)}</select></label>
    ${shown ? html`<button onClick=${drop(shown)} disabled=${shown.is_shared && !may("operate")}>Drop the view</button>` : q && html`<button aria-expanded=${isOpen} onClick=${() => open(!isOpen)}>Save</button>`}
    <a class="button" href=${place("/workflows")}>Submit</a>
    ${isOpen && html`<form class="panel pop" onSubmit=${save}><${Trouble} problem=${problem} /><label>Name<input required maxlength="100" value=${name} onInput=${(event) => setName(event.target.value)} /></label>
      <label class="check" title=${may("operate") ? undefined : "needs the scope operate"}><input type="checkbox" checked=${shared} disabled=${!may("operate")} onChange=${(event) => share(event.target.checked)} />for all</label><button class="primary">Save the view</button></form>`}</div>`;
}
