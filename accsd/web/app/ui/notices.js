// Short notices in the corner, also spoken by screen readers.
import { html, signal } from "../html.js";
import { place } from "../api.js";

const shown = signal([]);
let number = 0;

export function notice(text, link = null) {
  const mine = { number: ++number, text, link };
  shown.value = [...shown.value, mine];
  setTimeout(() => { shown.value = shown.value.filter((each) => each !== mine); }, 8000);
}

export const Notices = () => html`<div class="toasts" role="status" aria-live="polite">${shown.value.map(
  (each) => html`<div class="toast" key=${each.number}>${each.text}${each.link && html` <a href=${place(each.link)}>Open</a>`}</div>`)}</div>`;
