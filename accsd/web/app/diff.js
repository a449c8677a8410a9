// What differs between two JSON values, and between two lists of steps. Pure.

const isTable = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const equal = (a, b) => a === b || ordered(a) === ordered(b);
const ordered = (value) => JSON.stringify(value, (_, each) => (isTable(each) ? Object.fromEntries(Object.entries(each).sort(([a], [b]) => (a < b ? -1 : 1))) : each));

/** [{path, before, after}]; undefined: it is not there. Lists are compared as wholes where their lengths differ. */
export function differences(before, after, path = "") {
  if (equal(before, after)) return [];
  const below = (key) => (path ? `${path}.${key}` : String(key));
  if (isTable(before) && isTable(after)) return [...new Set([...Object.keys(before), ...Object.keys(after)])].flatMap((key) => differences(before[key], after[key], below(key)));
  if (Array.isArray(before) && Array.isArray(after) && before.length === after.length) return before.flatMap((each, n) => differences(each, after[n], `${path}[${n}]`));
  return [{ path, before, after }];
}

/** [{key, kind: added | removed | changed, changes}] of things that have a key, in the order of the newer list. */
export function changed(before, after, keyOf) {
  const old = new Map(before.map((each) => [keyOf(each), each])), young = new Map(after.map((each) => [keyOf(each), each]));
  const of = (key) => {
    if (!old.has(key)) return { key, kind: "added", changes: [] };
    if (!young.has(key)) return { key, kind: "removed", changes: [] };
    const changes = differences(old.get(key), young.get(key));
    return changes.length ? { key, kind: "changed", changes } : null;
  };
  return [...new Set([...young.keys(), ...old.keys()])].map(of).filter(Boolean);
}
