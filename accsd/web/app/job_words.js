// Words about jobs that several pages use.

export const ENDED = ["done", "error", "cancelled"];
export const said = (value) => (typeof value === "string" ? value : JSON.stringify(value));
export const told = (options) => Object.entries(options ?? {}).map(([key, value]) => `${key}=${said(value)}`).join(" ");
export const bytes = (size) => {
  if (size === null || size === undefined) return "";
  for (const [unit, factor] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (size >= factor) return `${(size / factor).toFixed(1)} ${unit}`;
  return `${size} B`;
};
