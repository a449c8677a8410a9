// The part of a log's rows that is in view: by row, however many there are and however high each of them is.
import { useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { even, Heights, measures, ROW } from "./heights.js";

/**
 * `count` rows; `of` says which (rows of something else are measured anew); `wraps`: they differ in height.
 * Gives {frame, lines} for the elements, {sizes, top, first, last} of what is shown, and what moves it. `first` stays
 * where it is while rows above it turn out to be higher than they were thought to be.
 */
export function useScroll({ count, wraps, of }) {
  const frame = useRef(null), lines = useRef(null), heights = useRef(null);
  const [top, setTop] = useState(0);
  const [view, setView] = useState({ height: 400, width: 0 });
  const [, redraw] = useState(0);
  const is = useRef({ follows: false, wanted: null, row: 1, within: 0, moved: false });
  const key = `${wraps} ${of} ${wraps ? view.width : ""}`;
  if (heights.current?.key !== key) {
    heights.current = { key, rows: wraps ? new Heights(count) : null };
    is.current.moved = true;
  }
  if (wraps && heights.current.rows.count !== count) heights.current.rows.grow(count);
  const rows = wraps ? heights.current.rows : even(count);
  const sizes = measures(rows, view.height);
  const first = Math.max(1, Math.min(sizes.first(top), count)), last = Math.min(count, first + Math.ceil(view.height / ROW) + 1);

  const put = (scrollTop) => { frame.current.scrollTop = scrollTop; setTop(frame.current.scrollTop); };
  useEffect(() => {
    const seen = new ResizeObserver(() => frame.current && setView({ height: frame.current.clientHeight, width: frame.current.clientWidth }));
    seen.observe(frame.current);
    return () => seen.disconnect();
  }, []);
  useLayoutEffect(() => {
    const here = is.current;
    let isOther = false;
    if (wraps && count) [...lines.current.children].forEach((line, n) => { if (rows.set(first - 1 + n, line.getBoundingClientRect().height)) isOther = true; });
    if (isOther) { here.moved = true; redraw((n) => n + 1); return; }
    if (here.wanted !== null && count) {
      Object.assign(here, { row: Math.min(here.wanted, count), within: 0, wanted: null, moved: true });
    }
    if (here.follows) { if (frame.current.scrollTop + frame.current.clientHeight < frame.current.scrollHeight - 1) put(frame.current.scrollHeight); }
    else if (here.moved) put(sizes.back(here.row, here.within));
    here.moved = false;
  });
  return {
    frame, lines, sizes, top, first, last, is: is.current,
    /** Brings a row to the top. */
    goTo: (row) => { Object.assign(is.current, { follows: false, wanted: Math.max(1, row) }); redraw((n) => n + 1); },
    toEnd: () => { is.current.follows = true; redraw((n) => n + 1); },
    scrolled: () => {
      const { scrollTop, clientHeight, scrollHeight } = frame.current;
      const row = Math.max(1, Math.min(sizes.first(scrollTop), count));
      Object.assign(is.current, { follows: scrollTop + clientHeight >= scrollHeight - 4, row, within: sizes.within(scrollTop, row) });
      setTop(scrollTop);
    },
  };
}
