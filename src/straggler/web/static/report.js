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

// A link to a folded section opens it, and printing opens all.
(() => {
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", reveal);
  window.addEventListener("load", reveal);
  for (const link of document.querySelectorAll('.contents a')) {
    link.addEventListener("click", () => { if (link.hash === location.hash) reveal(); });
  }
  window.addEventListener("beforeprint", () => { for (const one of document.querySelectorAll("details")) one.open = true; });
})();
