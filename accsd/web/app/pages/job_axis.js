// The axis of a time line on which long gaps, in which nothing ran, may be folded. Pure.

const GAP = 0.2; // of the whole: a longer gap is folded
const FOLDED = 0.04; // of the width, for a folded gap
const BUSY = new Set(["starting", "running", "lost"]);

/** {part(ms): 0 to 1, ticks: [{at, part}], gaps: [{from, to, seconds, part}]} of the time from `from` to `to`. */
export function axisOf(from, to, segments) {
  const gaps = gapsOf(from, to, segments);
  const room = 1 - gaps.length * FOLDED;
  const left = Math.max(1, to - from - gaps.reduce((sum, gap) => sum + gap.to - gap.from, 0));
  const part = (ms) => {
    const at = Math.max(from, Math.min(to, ms));
    let gone = at - from, folded = 0;
    for (const gap of gaps) {
      if (at <= gap.from) break;
      const within = Math.min(at, gap.to) - gap.from;
      gone -= within;
      folded += (within / (gap.to - gap.from)) * FOLDED;
    }
    return Math.max(0, Math.min(1, (gone / left) * room + folded));
  };
  const ticks = [0, 0.5, 1].map((share) => moment(from + share * (to - from), gaps)).map((at) => ({ at, part: part(at) }));
  return {
    part,
    ticks: ticks.filter((each, n) => n !== 1 || (each.part > 0.25 && each.part < 0.75)),
    gaps: gaps.map((gap) => ({ ...gap, seconds: (gap.to - gap.from) / 1000, part: part((gap.from + gap.to) / 2) })),
  };
}

const moment = (at, gaps) => gaps.find((gap) => at > gap.from && at < gap.to)?.to ?? at;

/** Stretches in which no task ran, longer than a fifth of the whole. */
export function gapsOf(from, to, segments) {
  const busy = segments.filter((each) => BUSY.has(each.kind)).map((each) => [Date.parse(each.from), Date.parse(each.to)]).filter(([a, b]) => b > from && a < to).sort((a, b) => a[0] - b[0]);
  if (!busy.length) return [];
  const gaps = [];
  let until = from;
  for (const [begins, ends] of [...busy, [to, to]]) {
    if (begins - until > GAP * (to - from)) gaps.push({ from: until, to: begins });
    until = Math.max(until, ends);
  }
  return gaps;
}
