// The list of runs: filter, sort, select.

import { known, listen } from "./api.js";
import { element, fixed, number, progress } from "./elements.js";

const seconds = (row) => (typeof row.seconds !== "number" ? "–"
  : row.engine === "simulator" ? `${number(row.seconds, 0)} s virtual` : `${number(row.seconds, 2)} s`);
const delay = (row) => (row.delay || "none").replaceAll("seconds=", "").replace(/\.0(?!\d)/g, "");
const COLUMNS = [  // key, heading, text, class ("wide": hidden on small screens)
  ["method", "method", (row) => row.method ?? "?"],
  ["test_accuracy", "accuracy (%)", (row) => (row.converged === false ? "NC" : fixed(row.test_accuracy))],
  ["mean_staleness", "mean staleness", (row) => fixed(row.mean_staleness)],
  ["seconds", "time", seconds, "wide"],
  ["workers", "workers", (row) => number(row.workers)],
  ["dataset", "data set", (row) => row.dataset ?? ""],
  ["model", "model", (row) => row.model ?? "", "wide"],
  ["lr", "lr", (row) => number(row.lr, 6), "wide"],
  ["delay", "delay", delay, "wide"],
  ["partition", "data split", (row) => row.partition ?? "", "wide"],
  ["seed", "seed", (row) => String(row.seed ?? ""), "wide"],
  ["started", "started", (row) => (row.started ?? "").replace("T", " ").slice(0, 16), "wide"],
];
const MAX_ROWS = 400;
const selected = new Set();
const lines = new Map();  // table row by run id
let study = "";  // show only the runs of this study; empty: all runs
let sort = { key: "started", down: true };
const byId = (id) => document.getElementById(id);

function buildHeader() {
  const row = byId("table").tHead.rows[0];
  row.replaceChildren(element("th", { scope: "col" }, element("span", { className: "hidden", textContent: "select" })));
  for (const [key, text, , kind] of [["status", "status"], ...COLUMNS]) {
    const button = element("button", { type: "button", textContent: text });
    button.addEventListener("click", () => {
      sort = { key, down: sort.key === key ? !sort.down : false };
      show();
      byId("table").querySelector(`[data-key="${key}"] button`).focus();
    });
    const head = element("th", { scope: "col", className: kind ?? "" }, button);
    head.dataset.key = key;
    row.append(head);
  }
}

function filteredRows() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const status = byId("status").value;
  const members = study && new Set(known.studies.find((one) => one.name === study)?.ids ?? []);
  const rows = [...known.runs.values()].filter((row) => {
    if (members && !members.has(row.id)) return false;
    const text = Object.values(row).join(" ").toLowerCase();
    return (!status || row.status === status) && words.every((word) => text.includes(word));
  });
  const value = (row) => row[sort.key] ?? null;
  rows.sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === y) return a.id < b.id ? -1 : 1;
    if (x === null) return 1;
    if (y === null) return -1;
    return (x < y ? -1 : 1) * (sort.down ? -1 : 1);
  });
  return rows;
}

function buildCells(row) {
  const box = element("input", { type: "checkbox", checked: selected.has(row.id), "aria-label": `Select run ${row.id}` });
  box.addEventListener("change", () => {
    if (box.checked) selected.add(row.id); else selected.delete(row.id);
    updateButtons();
  });
  const made = [element("td", {}, box), buildStatusCell(row)];
  for (const [key, , text, kind] of COLUMNS) {
    const cell = element("td", { className: kind ?? "", title: String(row[key] ?? "") });
    if (key === "method") cell.append(element("a", { href: `#/run/${encodeURIComponent(row.id)}`, textContent: text(row) }));
    else cell.textContent = text(row);
    made.push(cell);
  }
  return made;
}

function buildStatusCell(row) {
  const cell = element("td", {}, element("span", { className: `status-${row.status}`, textContent: row.status }));
  if (row.status === "running") {
    const bar = element("div", { className: "progress", role: "progressbar", "aria-label": "progress" }, element("div"));
    progress(bar, row);
    cell.append(bar);
  }
  if (row.problems?.length) cell.title = row.problems[0];
  return cell;
}

function buildRow(row) {
  const before = lines.get(row.id);
  if (before && before.row === row) return before.made;
  const made = before?.made ?? element("tr");
  const focused = made.contains(document.activeElement) && document.activeElement.tagName;
  made.replaceChildren(...buildCells(row));
  if (focused) made.querySelector(focused)?.focus();
  lines.set(row.id, { row, made });
  return made;
}

function show() {
  showStudies();
  for (const head of byId("table").tHead.rows[0].cells) {
    if (head.dataset.key === sort.key) head.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  const rows = filteredRows();
  const body = byId("table").tBodies[0];
  const made = rows.slice(0, MAX_ROWS).map(buildRow);
  if (made.length !== body.rows.length || made.some((one, position) => body.rows[position] !== one)) {
    body.replaceChildren(...made);
  }
  const cut = rows.length > MAX_ROWS ? ` (the first ${MAX_ROWS} are shown)` : "";
  byId("count").textContent = `${number(rows.length)} of ${number(known.runs.size)} runs${cut}`;
  byId("none").hidden = known.runs.size > 0;
  updateButtons();
}

function updateButtons() {
  for (const id of selected) if (!known.runs.has(id)) selected.delete(id);
  byId("compare").disabled = selected.size < 2;
  byId("compare").textContent = selected.size > 1 ? `Compare ${selected.size} runs` : "Compare (select two or more)";
}

// Fill the list of studies and select the current one.
function showStudies() {
  const names = known.studies.filter((one) => one.ids.some((id) => known.runs.has(id))).map((one) => one.name);
  if (study && !names.includes(study)) names.push(study);
  const select = byId("study");
  if (names.join("\n") !== [...select.options].slice(1).map((one) => one.value).join("\n")) {
    select.replaceChildren(element("option", { value: "", textContent: "all" }),
      ...names.map((name) => element("option", { value: name, textContent: name })));
  }
  select.value = study;
  select.parentElement.hidden = !names.length;
}

export function open(name) {
  study = name;
  show();
}

export function begin() {
  buildHeader();
  byId("filter").addEventListener("input", show);
  byId("status").addEventListener("change", show);
  byId("study").addEventListener("change", (event) => {
    location.hash = event.target.value ? `#/runs/${encodeURIComponent(event.target.value)}` : "#/runs";
  });
  byId("compare").addEventListener("click", () => { location.hash = `#/run/${[...selected].join(",")}`; });
  listen(() => { if (!byId("runs").hidden) show(); });
}
