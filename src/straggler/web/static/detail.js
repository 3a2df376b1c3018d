// One run, or several laid over one another; redrawn as long as one of them goes on.

import { get, known, latest, listen, post } from "./api.js";
import { element, progress, sentence, table } from "./words.js";

const byId = (id) => document.getElementById(id);
let shown = [];

export const figuresOf = (ids, whole) => {
  const query = new URLSearchParams(ids.map((id) => ["id", id]));
  if (whole) query.set("whole", "1");
  return get(`/api/figures?${query}`);
};

export const over = (id) => !["running", undefined].includes(known.runs.get(id)?.status);

const draw = latest(async (ids) => {
  try {
    const page = await figuresOf(ids, ids.every(over));
    if (ids !== shown) return;
    byId("detail-words").classList.remove("error");
    table(byId("detail-table"), page.columns, page.rows);
    straggler.gallery(byId("detail-figures"), page.figures);
    again(page);
  } catch (error) {
    byId("detail-words").textContent = error.message;
    byId("detail-words").classList.add("error");
  }
});

function again(page) {
  const place = byId("detail-again");
  const open = new Set([...place.querySelectorAll("details[open]")].map((one) => one.dataset.id));
  place.replaceChildren(element("h2", { textContent: "How to run it again" }));
  for (const run of page.runs) {
    const details = element("details", { className: "card", open: page.runs.length === 1 || open.has(run.id) },
      element("summary", { textContent: `${run.label} (${run.id}, ${run.status})` }),
      run.remark ? element("p", { className: "muted", textContent: run.remark })
        : element("pre", { tabIndex: 0 }, element("code", { textContent: run.command || run.given })),
      element("pre", { tabIndex: 0 }, element("code", { textContent: run.toml })));
    details.dataset.id = run.id;
    place.append(details);
  }
  for (const line of page.trouble) place.append(element("p", { className: "error", textContent: line }));
}

function words() {
  const rows = shown.map((id) => known.runs.get(id)).filter(Boolean);
  const one = rows.length === 1 && shown.length === 1 ? rows[0] : null;
  const many = shown.length === 1 ? `run ${shown[0]}` : `${shown.length} runs`;
  byId("detail-title").textContent = one ? `${one.method ?? "?"} × ${one.workers ?? "?"}, ${one.dataset ?? "?"}` : many;
  byId("detail-words").textContent = one ? sentence(one) : rows.map((row) => `${row.method}: ${row.status}`).join(" · ");
  progress(byId("detail-progress"), one);
  byId("detail-stop").hidden = !(one && known.started[one.id]?.going);
}

export function open(ids) {
  if (ids.join() !== shown.join()) {  // who comes back finds what was there
    for (const child of [...byId("detail-figures").children]) straggler.forget(child);
    byId("detail-table").replaceChildren();
    byId("detail-again").replaceChildren();
  }
  shown = ids;
  const names = ids.map(encodeURIComponent).join(",");
  byId("detail-report").href = `/reports/runs/${names}`;
  byId("detail-download").href = `/reports/runs/${names}?download=1`;
  words();
  draw(shown);
}

export function begin() {
  listen((changed) => {
    if (byId("detail").hidden || !shown.some((id) => changed.has(id))) return;
    words();
    draw(shown);
  });
  byId("detail-stop").addEventListener("click", async () => {
    try {
      await post(`/api/runs/${encodeURIComponent(shown[0])}/stop`);
    } catch (error) {
      byId("detail-words").textContent = error.message;
    }
  });
}
