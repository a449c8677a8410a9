// Marks of an axis of time: at full hours and days of the clock that the page shows, whatever its zone.
import { html } from "../html.js";
import { ahead, brief, dayShort, zoneWord } from "../time.js";

const MINUTE = 60_000, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const STEPS = [5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY];
const MOST = 9;

/** [[ms, word]]: moments at which the clock shows a round time. A day may have 23 or 25 hours. */
export function ticks(from, to) {
  const step = STEPS.find((each) => (to - from) / each <= MOST) ?? 30 * DAY;
  const found = [];
  let wall = Math.ceil((from + ahead(from)) / step) * step; // as the clock shows it, in ms
  for (let n = 0; n < 40; n++, wall += step) {
    let at = wall - ahead(from);
    at = wall - ahead(at); // the offset that holds there
    if (ahead(at) + at !== wall) continue; // the clock jumps over this time
    if (at >= to) break;
    if (at >= from) found.push([at, step >= DAY || wall % DAY === 0 ? dayShort(at) : brief(at)]);
  }
  return found;
}

/** `part(ms)`: where a moment lies, as a CSS length. */
export const Axis = ({ from, to, part }) => html`<div class="axis" aria-hidden="true" title=${`Times are those of ${zoneWord()}`}>${ticks(from, to).map(
  ([at, word]) => html`<span key=${at} style=${{ left: part(at) }}>${word}</span>`)}</div>`;
