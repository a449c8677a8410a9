// An address that leads nowhere, and a thing that is not there, or not any more.
import { place } from "../api.js";
import { html } from "../html.js";
import { openPalette } from "../palette.js";
import { GOES } from "../keys.js";

export const Missing = () => html`<section class="missing"><h1>There is no such page</h1>
  <p class="muted">The address may be mistyped. <button class="plain" onClick=${openPalette}>Search for what you meant</button> or go to one of these:</p>
  <p>${Object.values(GOES).map(([word, to]) => html`<a class="button" key=${to} href=${place(to)}>${word}</a> `)}</p></section>`;

/** For a page whose thing could not be loaded: what is said of it, and where the others are. */
export const Absent = ({ problem, again, name, list: [to, word] }) => problem && html`<section class="missing"><h1>${problem.status === 404 || problem.status === 410 ? `${name} is not here` : `${name} can't be shown`}</h1>
  <p>${problem.message}</p>${problem.hint && html`<p class="muted">${problem.hint}</p>`}
  <p><a class="button" href=${place(to)}>${word}</a> ${problem.status !== 404 && problem.status !== 410 && html`<button onClick=${again}>Try again</button>`}</p>
  ${problem.requestId && html`<p class="small muted">request ${problem.requestId}</p>`}</section>`;
