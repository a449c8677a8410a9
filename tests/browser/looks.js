// What test_axe.py asks of a page. Run in it after axe.js; each answer names the elements that are wrong, or all that are meant.
globalThis.looks = {
  barriers: (rules) => axe.run(document, { runOnly: rules, resultTypes: ["violations"] }).then(({ violations }) =>
    violations.flatMap(({ id, nodes }) => nodes.slice(0, 4).map((node) =>
      `${id}: ${node.html.slice(0, 160)} — ${(node.any[0] ?? node.all[0] ?? node.none[0])?.message ?? ""}`))),

  /** What the tab key has to reach, each marked with its number. Of radio buttons it reaches one of each group. */
  stops() {
    const all = document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]");
    const groups = new Set();
    const isFirst = (each) => each.type !== "radio" || (!groups.has(each.name) && groups.add(each.name));
    const meant = [...all].filter((each) =>
      each.tabIndex >= 0 && !each.disabled && each.checkVisibility({ visibilityProperty: true }) && isFirst(each));
    return meant.map((each, n) => {
      each.dataset.stop = n;
      return each.outerHTML.slice(0, 120);
    });
  },

  /** Where the focus is: {stop, shows, name}; null: outside of the page. */
  focus() {
    const here = document.activeElement;
    if (!here || here === document.body) return null;
    const style = getComputedStyle(here);
    const shows = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
    return { stop: here.dataset.stop ?? null, shows, name: here.outerHTML.slice(0, 120) };
  },

  /** What makes the page wider than the screen. */
  wide() {
    if (document.scrollingElement.scrollWidth <= innerWidth) return [];
    const scrolls = (element) => element && element !== document.body
      && (getComputedStyle(element).overflowX !== "visible" || scrolls(element.parentElement));
    const beyond = [...document.querySelectorAll("body *")].filter((each) =>
      each.getBoundingClientRect().right > innerWidth + 1 && !scrolls(each.parentElement));
    return ["the page", ...beyond.slice(0, 4).map((each) => each.outerHTML.slice(0, 160))];
  },

  /** How far what was shown has moved since the page was opened, by itself: the sum that browsers call layout shift. */
  shift: () => new Promise((told) => {
    let sum = 0;
    new PerformanceObserver((list) => { for (const each of list.getEntries()) if (!each.hadRecentInput) sum += each.value; })
      .observe({ type: "layout-shift", buffered: true });
    setTimeout(() => told(sum), 200);
  }),

  /** Of what matches, what has no room for all that is in it. */
  cut: (what) => [...document.querySelectorAll(what)].filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.outerHTML.slice(0, 160)),

  moving: () => [...document.querySelectorAll("*")].filter((each) => {
    const { transitionDuration, animationName, animationDuration } = getComputedStyle(each);
    const lasts = (times) => times.split(",").some((time) => parseFloat(time) > 0.01);
    return lasts(transitionDuration) || (animationName !== "none" && lasts(animationDuration));
  }).slice(0, 4).map((each) => each.outerHTML.slice(0, 160)),

  /** How each kind of bar is drawn. */
  fills: () => Object.fromEntries([...document.querySelectorAll("[data-kind]")].map((bar) => {
    const { backgroundColor, backgroundImage } = getComputedStyle(bar);
    return [bar.dataset.kind, `${backgroundColor} ${backgroundImage}`];
  })),
};
