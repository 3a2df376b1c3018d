// The page of one run, or of several runs compared; redrawn while one of them is running.

import { get, known, latest, listen, post } from "./api.js";
import { element, progress, sentence, silence, stopLabel, table } from "./elements.js";

const byId = (id) => document.getElementById(id);
let shown = [];

export const loadFigures = (ids, complete) => {
  const query = new URLSearchParams(ids.map((id) => ["id", id]));
  if (complete) query.set("complete", "1");
  return get(`/api/figures?${query}`);
};

export const hasEnded = (id) => !["running", undefined].includes(known.runs.get(id)?.status);

const draw = latest(async (ids) => {
  try {
    const page = await loadFigures(ids, ids.every(hasEnded));
    if (ids !== shown) return;
    byId("detail-status").classList.remove("error");
    table(byId("detail-table"), page.columns, page.rows);
    byId("detail-notes").textContent = page.notes.join(" ");
    straggler.gallery(byId("detail-figures"), page.figures);
    showCommands(page);
  } catch (error) {
    byId("detail-status").textContent = error.message;
    byId("detail-status").classList.add("error");
  }
});

function showCommands(page) {
  const place = byId("detail-commands");
  const open = new Set([...place.querySelectorAll("details[open]")].map((one) => one.dataset.id));
  place.replaceChildren(element("h2", { textContent: "How to run it again" }));
  for (const run of page.runs) {
    const details = element("details", { className: "card", open: page.runs.length === 1 || open.has(run.id) },
      element("summary", { textContent: `${run.label} (${run.id}, ${run.status})` }),
      run.remark ? element("p", { className: "muted", textContent: run.remark })
        : element("pre", { tabIndex: 0 }, element("code", { textContent: run.command || run.original })),
      element("pre", { tabIndex: 0 }, element("code", { textContent: run.toml })));
    details.dataset.id = run.id;
    place.append(details);
  }
  for (const line of page.problems) place.append(element("p", { className: "error", textContent: line }));
}

function showStatus() {
  const rows = shown.map((id) => known.runs.get(id)).filter(Boolean);
  const one = rows.length === 1 && shown.length === 1 ? rows[0] : null;
  const several = shown.length === 1 ? `Run ${shown[0]}` : `${shown.length} runs`;
  byId("detail-title").textContent = one ? `${one.method ?? "?"} × ${one.workers ?? "?"}, ${one.dataset ?? "?"}` : several;
  byId("detail-status").textContent = one ? sentence(one) + silence(known.started[one.id]) : rows.map((row) => `${row.method}: ${row.status}`).join(" · ");
  progress(byId("detail-progress"), one);
  byId("detail-stop").hidden = !(one && known.started[one.id]?.running);
  byId("detail-stop").textContent = stopLabel(known.started[one?.id]);
}

export function open(ids) {
  if (ids.join() !== shown.join()) {  // another selection: remove the old figures
    for (const child of [...byId("detail-figures").children]) straggler.forget(child);
    byId("detail-table").replaceChildren();
    byId("detail-commands").replaceChildren();
  }
  shown = ids;
  const names = ids.map(encodeURIComponent).join(",");
  byId("detail-report").href = `/reports/runs/${names}`;
  byId("detail-download").href = `/reports/runs/${names}?download=1`;
  showStatus();
  draw(shown);
}

export function begin() {
  listen((changed, changes) => {
    if (!byId("detail").hidden && changes.started) showStatus();
    if (byId("detail").hidden || !shown.some((id) => changed.has(id))) return;
    showStatus();
    draw(shown);
  });
  byId("detail-stop").addEventListener("click", async () => {
    try {
      await post(`/api/runs/${encodeURIComponent(shown[0])}/stop`);
    } catch (error) {
      byId("detail-status").textContent = error.message;
    }
  });
}
