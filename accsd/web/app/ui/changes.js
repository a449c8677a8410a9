// What differs, as a table of before and after.
import { html } from "../html.js";
import { said } from "../job_words.js";

const shown = (value) => (value === undefined ? html`<span class="muted">not there</span>` : html`<code>${said(value)}</code>`);

/** `of`: [{path, before, after}] */
export const Changes = ({ of, label, before = "before", after = "after" }) => html`<div class="scrolls"><table class="changes" aria-label=${label}>
  <thead><tr><th scope="col">What</th><th scope="col">${before}</th><th scope="col">${after}</th></tr></thead>
  <tbody>${of.map((each) => html`<tr key=${each.path}><td>${each.path || "all of it"}</td><td class="was">${shown(each.before)}</td><td class="is">${shown(each.after)}</td></tr>`)}</tbody></table></div>`;
