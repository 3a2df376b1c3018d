// The page of one run, or of several runs compared; redrawn while one of them is running.

import { get, known, latest, listen, post } from "./api.js";
import { element, number, progress, sentence, silence, stopLabel, table } from "./elements.js";
import { archive, askToDelete, editLabels } from "./labels.js";
import { setTarget, target } from "./preferences.js";

const byId = (id) => document.getElementById(id);
let shown = [];

export const loadFigures = (ids, complete) => {
  const query = new URLSearchParams(ids.map((id) => ["id", id]));
  if (complete) query.set("complete", "1");
  query.set("target", target());
  return get(`/api/figures?${query}`);
};

export const hasEnded = (id) => !["running", undefined].includes(known.runs.get(id)?.status);

const draw = latest(async (ids) => {
  try {
    const page = await loadFigures(ids, ids.every(hasEnded));
    if (ids !== shown) return;
    byId("detail-status").classList.remove("error");
    table(byId("detail-table"), page.columns, page.rows, page.summary_note);
    byId("detail-notes").textContent = page.notes.join(" ");
    byId("detail-notes").hidden = !page.notes.length;
    if (page.selected > 1) byId("detail-title").textContent = countRuns(page);
    showDifferences(page.differences);
    showWorkers(page.workers);
    straggler.gallery(byId("detail-figures"), page.figures);
    byId("detail-tools").hidden = !page.figures.length;
    showCommands(page);
  } catch (error) {
    byId("detail-status").textContent = error.message;
    byId("detail-status").classList.add("error");
  }
});

function countRuns(page) {
  const count = page.runs.length;
  return count < page.selected ? `${count} of ${page.selected} runs` : `${count} runs`;
}

const cells = (tag, texts, properties = {}) => texts.map((text) => element(tag, { textContent: text, ...properties }));

// Of a few settings, a column for each; of many, a row for each.
function showDifferences({ labels, ids, keys, values, same }) {
  const place = byId("detail-differences");
  place.hidden = labels.length < 2;
  if (place.hidden) return;
  const links = labels.map((label, position) => element("a", { textContent: label, href: `#/run/${ids[position].map(encodeURIComponent).join(",")}` }));
  const corner = element("th", { scope: "col", textContent: "setting" });
  let head = [corner, ...links.map((link) => element("th", { scope: "col" }, link))];
  let rows = keys.map((key, row) => [element("th", { scope: "row", textContent: key }), ...cells("td", values[row])]);
  if (labels.length > 4) {
    corner.textContent = "run";
    head = [corner, ...cells("th", keys, { scope: "col" })];
    rows = links.map((link, column) => [element("th", { scope: "row" }, link), ...cells("td", values.map((row) => row[column]))]);
  }
  const shared = same.map(([key, value]) => `${key} ${value}`).join(", ");
  place.replaceChildren(element("summary", { textContent: `Settings that differ: ${keys.join(", ") || "only the seed"}` }),
    element("table", {}, element("thead", {}, element("tr", {}, ...head)),
      element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row)))),
    element("details", {}, element("summary", { textContent: `${same.length} settings are the same` }),
      element("p", { className: "muted", textContent: shared })));
}

const WORKER_COLUMNS = ["worker", "computing", "delayed", "waiting", "gradients", "dropped", "cancelled", "mean staleness", "restarts",
  "last sign of life"];

function showWorkers(workers) {
  const place = byId("detail-workers");
  place.hidden = !workers.length;
  if (place.hidden) return;
  const open = place.open || !place.children.length;
  const share = (value) => element("td", { className: "number" }, element("meter", { min: 0, max: 100, value, "aria-hidden": "true" }), ` ${number(value, 1)} %`);
  const lines = workers.map((one) => {
    const last = one.last === null ? "none" : `${number(one.last, 1)} s (${number(one.quiet, 1)} s before the end)`;
    const restarts = one.restarts ? `${one.restarts}: ${one.reason}` : "0";
    return element("tr", {}, element("th", { scope: "row", textContent: one.worker }), share(one.computing), share(one.delayed), share(one.waiting),
      ...cells("td", [number(one.gradients), number(one.dropped), number(one.cancelled), number(one.staleness, 2)], { className: "number" }),
      element("td", { textContent: restarts, className: one.restarts ? "bad" : "" }), element("td", { className: "number", textContent: last }));
  });
  const busy = workers.reduce((sum, one) => sum + one.computing, 0) / workers.length;
  const restarts = workers.reduce((sum, one) => sum + one.restarts, 0);
  place.replaceChildren(
    element("summary", { textContent: `Workers: utilisation ${number(busy, 1)} %, ${number(restarts)} restarts` }),
    element("p", { className: "muted", textContent: "Utilisation is the share of the time in which a worker computes jobs that arrived; the last job of a worker may still be computed at the end." }),
    element("table", {}, element("thead", {}, element("tr", {}, ...cells("th", WORKER_COLUMNS, { scope: "col" }))), element("tbody", {}, ...lines)));
  place.open = open;
}

function showLabels(row) {
  const parts = (row?.tags ?? []).map((tag) => element("span", { className: "tag", textContent: tag }));
  if (row?.archived) parts.unshift(element("span", { className: "tag", textContent: "archived" }));
  if (row?.notes) parts.push(element("span", { className: "notes", textContent: row.notes }));
  byId("detail-labels").replaceChildren(...parts);
}

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

function countStates(rows) {
  const counts = new Map();
  for (const row of rows) counts.set(row.status, (counts.get(row.status) ?? 0) + 1);
  return [...counts].map(([status, count]) => `${count} ${status}`).join(" · ");
}

async function change(work) {
  try {
    await work();
  } catch (error) {
    byId("detail-status").textContent = error.message;
  }
}

function showStatus() {
  const rows = shown.map((id) => known.runs.get(id)).filter(Boolean);
  const one = rows.length === 1 && shown.length === 1 ? rows[0] : null;
  const several = shown.length === 1 ? `Run ${shown[0]}` : `${shown.length} runs`;
  const title = one && `${one.method ?? "?"} × ${one.workers ?? "?"}, ${one.dataset ?? "?"}`;
  if (one) byId("detail-title").textContent = one.name ? `${one.name}: ${title}` : title;
  else if (!byId("detail-figures").children.length) byId("detail-title").textContent = several;
  byId("detail-status").textContent = one ? sentence(one) + silence(known.started[one.id]) : countStates(rows);
  showLabels(one);
  byId("detail-archive").hidden = byId("detail-delete").hidden = !one;
  byId("detail-archive").textContent = one?.archived ? "Restore" : "Archive";
  byId("detail-label").hidden = !rows.length;
  progress(byId("detail-progress"), one);
  byId("detail-stop").hidden = !(one && known.started[one.id]?.running);
  byId("detail-stop").textContent = stopLabel(known.started[one?.id]);
}

export function open(ids) {
  if (ids.join() !== shown.join()) {  // another selection: remove the old figures
    for (const child of [...byId("detail-figures").children]) straggler.forget(child);
    byId("detail-table").replaceChildren();
    byId("detail-tools").hidden = true;
    for (const name of ["detail-differences", "detail-workers"]) byId(name).hidden = true;
    byId("detail-workers").replaceChildren();
    byId("detail-notes").hidden = true;
    byId("detail-commands").replaceChildren();
  }
  shown = ids;
  const names = ids.map(encodeURIComponent).join(",");
  byId("detail-report").href = `/reports/runs/${names}`;
  byId("detail-download").href = `/reports/runs/${names}?download=1`;
  byId("detail-target").value = target();
  byId("detail-table").textContent ||= "Loading the figures…";
  showStatus();
  draw(shown);
}

export function begin() {
  byId("smoothing").addEventListener("input", () => {
    const strength = Number(byId("smoothing").value);
    byId("smoothing-value").textContent = strength ? strength.toFixed(2) : "none";
    straggler.smooth(strength);
  });
  byId("detail-target").addEventListener("change", () => {
    if (!byId("detail-target").reportValidity()) return;
    setTarget(Number(byId("detail-target").value));
    draw(shown);
  });
  byId("detail-label").addEventListener("click", () => editLabels(shown));
  byId("detail-archive").addEventListener("click", () => change(() => archive(shown, byId("detail-archive").textContent === "Archive")));
  byId("detail-delete").addEventListener("click", () => askToDelete(shown, () => { location.hash = "#/runs"; }));
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
