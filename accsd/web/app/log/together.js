// Two logs that are scrolled together: each shows what it wrote as long after its first line as the other.
import { call, query } from "../api.js";
import { useEffect, useRef } from "../html.js";

const AFTER_MS = 120;

/** {left, right}: handles for two viewers; {leads(side)}: what of a person's doing says which of them the other follows. */
export function useTogether(isOn) {
  const left = useRef({}), right = useRef({}), leader = useRef("left");
  useEffect(() => {
    let planned = null, newest = 0; // an answer may come after that of a later question
    const abort = new AbortController();
    const follow = async (from, to) => {
      const mine = ++newest;
      const line = from.at?.();
      if (!line || !to.goTo) return;
      const moment = Date.parse(line.ts) - (await began(from)) + (await began(to));
      if (Number.isNaN(moment)) return;
      const { lines } = await call(`${to.path}${query({ around: `ts:${new Date(moment).toISOString()}`, limit: 2 })}`, { signal: abort.signal });
      const found = lines.find((each) => Date.parse(each.ts) >= moment) ?? lines.at(-1);
      if (found && mine === newest) to.goTo(found.n);
    };
    const moves = (side, from, to) => () => {
      if (!isOn || leader.current !== side) return;
      clearTimeout(planned);
      planned = setTimeout(() => follow(from.current, to.current).catch(() => {}), AFTER_MS);
    };
    left.current.moved = moves("left", left, right);
    right.current.moved = moves("right", right, left);
    right.current.opened = left.current.moved;
    return () => { clearTimeout(planned); abort.abort(); };
  }, [isOn]);
  const lead = (side) => () => { leader.current = side; };
  return { left, right, leads: (side) => ({ onWheel: lead(side), onPointerDown: lead(side), onTouchStart: lead(side), onFocusIn: lead(side), onKeyDown: lead(side) }) };
}

/** When the first line was written, in ms. */
async function began(handle) {
  if (handle.beganOf !== handle.path) {
    const { lines } = await call(`${handle.path}${query({ from_line: 1, limit: 1 })}`);
    Object.assign(handle, { beganOf: handle.path, began: Date.parse(lines[0]?.ts) });
  }
  return handle.began;
}
