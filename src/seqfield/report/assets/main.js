// Puts the parts together: theme, sections that there is something for, navigation.

function startTheme() {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let stored = null;
  try { stored = localStorage.getItem("seqfield-theme"); } catch { /* storage may be closed */ }
  if (stored === "light" || stored === "dark") root.dataset.theme = stored;
  byId("theme").addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    try { localStorage.setItem("seqfield-theme", root.dataset.theme); } catch { /* as above */ }
  });
}

function startNavigation() {
  const sections = [...document.querySelectorAll("main > section")].filter((section) => !section.hidden);
  const links = new Map(sections.map((section) => {
    const link = element("a", { href: `#${section.id}`, text: section.querySelector("h2").textContent });
    byId("sections").append(element("li", {}, link));
    return [section, link];
  }));
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) links.get(target).classList.toggle("here", isIntersecting);
  }, { rootMargin: "-30% 0px -65% 0px" });
  sections.forEach((section) => watcher.observe(section));
}

startTheme();
startHeadlines();
startFacts();
startConfusion();
startTables();
for (const [part, id, start] of [
  [content.reliability, "confidence", startReliability],
  [content.learning, "learning", startLearning],
  [content.features, "features", startFeatures],
]) {
  if (!part) continue;
  byId(id).hidden = false;
  start();
}
if (content.coverage) startCoverage();
else byId("second-threshold-field").remove();
startNavigation();
redraw();
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
startSequences();
if (content.coverage) threshold.set(0);
