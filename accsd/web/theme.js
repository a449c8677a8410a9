// Before the first paint, so that the page does not flash.
{
  const kept = JSON.parse(localStorage.getItem("accsd.prefs") ?? "{}");
  if (kept.theme === "light" || kept.theme === "dark") document.documentElement.dataset.theme = kept.theme;
  document.documentElement.dataset.density = kept.density === "comfortable" ? "comfortable" : "compact";
}
