// Before the first paint, so that the page does not flash.
{
  let kept = {};
  try { kept = JSON.parse(localStorage.getItem("accsd.prefs")) ?? {}; } catch { /* then as if nothing was chosen */ }
  const root = document.documentElement;
  if (kept.theme === "light" || kept.theme === "dark") root.dataset.theme = kept.theme;
  root.dataset.density = kept.density === "comfortable" ? "comfortable" : "compact";
  root.dataset.rail = kept.rail === "narrow" ? "narrow" : "wide";
}
