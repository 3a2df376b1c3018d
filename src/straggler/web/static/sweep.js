// The results of a sweep or study: heatmap, parallel coordinates, accuracy against time, and a table.

import { get, known, latest, listen } from "./api.js";
import { element, heading } from "./elements.js";
import { target } from "./preferences.js";

const byId = (id) => document.getElementById(id);
const NOTE = "Mean ± half-width of the 95 % confidence interval over seeds, from three seeds on. NC: no convergence.";
let shown = "";

function line(row, keys) {
  const ids = [...new Set(row.ids)].filter((id) => known.runs.has(id));
  return element("tr", {}, ...row.cells.map((cell, position) => {
    if (position) return element("td", { className: position < keys.length ? "" : "number", textContent: cell });
    if (!ids.length) return element("th", { scope: "row", textContent: cell });
    const address = `#/run/${ids.map(encodeURIComponent).join(",")}`;
    return element("th", { scope: "row" }, element("a", { href: address, textContent: cell || "runs" }));
  }));
}

const draw = latest(async (name) => {
  try {
    const page = await get(`/api/sweeps/${encodeURIComponent(name)}?target=${target()}`);
    if (name !== shown) return;
    byId("sweep-status").classList.remove("error");
    byId("sweep-status").textContent = page.note;
    straggler.gallery(byId("sweep-figures"), page.figures);
    const heads = page.columns.map((column) => element("th", { scope: "col", textContent: heading(column.replaceAll("_", " ")) }));
    byId("sweep-table").replaceChildren(element("table", {},
      element("caption", {}, "Results ", element("span", { className: "muted", textContent: NOTE })),
      element("thead", {}, element("tr", {}, ...heads)),
      element("tbody", {}, ...page.rows.map((row) => line(row, page.keys)))));
  } catch (error) {
    byId("sweep-status").textContent = error.message;
    byId("sweep-status").classList.add("error");
  }
});

export function open(name) {
  if (name !== shown) {
    for (const child of [...byId("sweep-figures").children]) straggler.forget(child);
    byId("sweep-table").replaceChildren();
    byId("sweep-status").textContent = "Loading the results…";
  }
  shown = name;
  byId("sweep-title").textContent = name;
  byId("sweep-runs").href = `#/runs/${encodeURIComponent(name)}`;
  draw(name);
}

export function begin() {
  listen((changed, changes) => {
    if (byId("sweep").hidden) return;
    const ids = known.studies.find((study) => study.name === shown)?.ids ?? [];
    if (changes.studies || ids.some((id) => changed.has(id))) draw(shown);
  });
}
