// A report: draw each figure when it becomes visible.
"use strict";

(() => {
  straggler.themeButton(document.getElementById("theme"));
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const byName = new Map(figures.map((figure) => [figure.name, figure]));
  const waiting = new Set(document.querySelectorAll("[data-figure]"));
  const draw = (element) => {
    if (waiting.delete(element)) straggler.show(element, byName.get(element.dataset.figure));
  };
  const seen = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
    { rootMargin: "400px" },
  );
  for (const element of waiting) seen.observe(element);
  window.addEventListener("beforeprint", () => { for (const element of [...waiting]) draw(element); });
})();
