// The list of runs: filter, sort, group by seed, select, label, archive, delete.

import { get, known, latest, listen } from "./api.js";
import { buildChooser, shownColumns } from "./columns.js";
import { element, heading, number, progress } from "./elements.js";
import { archive, askToDelete, editLabels } from "./labels.js";
import { readPreference, setTarget, target, writePreference } from "./preferences.js";
import { parseQuery, setDefaults, setTimes, valueOf } from "./query.js";
import { collect, groupSeeds, mean } from "./seeds.js";

const FIRST_ROWS = 100;
const selected = new Set();
const openGroups = new Set();  // keys of groups whose runs are shown
const lines = new Map();  // table row by run id
let study = "";  // show only the runs of this study; empty: all runs
let most = FIRST_ROWS;  // rows in the table
let shown = [];  // the runs that pass the filter
let columns = [];
let version = 0;  // grows when the columns or the times change
const byId = (id) => document.getElementById(id);

function sortOrder() {
  const text = readPreference("sort", "-started");
  return { key: text.replace(/^-/, ""), down: text.startsWith("-") };
}

function buildHeader() {
  columns = shownColumns();
  version += 1;
  const row = byId("table").tHead.rows[0];
  const all = element("input", { type: "checkbox", id: "select-all", "aria-label": "Select all runs that are listed" });
  all.addEventListener("change", () => {
    for (const one of shown) if (all.checked) selected.add(one.id); else selected.delete(one.id);
    show();
  });
  row.replaceChildren(element("th", { scope: "col" }, all));
  for (const column of [{ key: "method", heading: "run" }, { key: "status", heading: "status" }, ...columns]) {
    const { key } = column;
    const button = element("button", { type: "button", textContent: heading(column.heading) });
    button.addEventListener("click", () => {
      const sort = sortOrder();
      writePreference("sort", (sort.key === key ? !sort.down : false) ? `-${key}` : key, "-started");
      show();
      byId("table").querySelector(`[data-key="${CSS.escape(key)}"] button`).focus();
    });
    const head = element("th", { scope: "col" }, button);
    head.dataset.key = key;
    row.append(head);
  }
}

// Rows without a value, such as runs that did not converge, are last in both directions.
function compare(x, y, down) {
  const empty = (value) => value === null || value === undefined || value === "";
  if (empty(x) || empty(y)) return empty(x) - empty(y);
  const [a, b] = [x, y].map((value) => (Array.isArray(value) ? value.join(" ") : value));
  if (a === b) return 0;
  const less = typeof a === "number" && typeof b === "number" ? a < b : String(a) < String(b);
  return (less ? -1 : 1) * (down ? -1 : 1);
}

function filteredRows() {
  const every = [...known.runs.values()];
  const query = parseQuery(byId("filter").value, every);
  byId("filter-problem").textContent = query.problem;
  const status = byId("status").value;
  const members = study && new Set(known.studies.find((one) => one.name === study)?.ids ?? []);
  const rows = every.filter((row) => {
    if (members && !members.has(row.id)) return false;
    if (!query.archived && Boolean(row.archived) !== (status === "archived")) return false;
    return (!status || status === "archived" || row.status === status) && query.test(row);
  });
  const { key, down } = sortOrder();
  return rows.sort((a, b) => compare(valueOf(a, key), valueOf(b, key), down) || (a.id < b.id ? -1 : 1));
}

function sortGroups(groups) {
  const { key, down } = sortOrder();
  const value = (group) => mean(collect(group, key)) ?? valueOf(group.runs[0], key);
  return groups.map((group) => [value(group), group]).sort(([a], [b]) => compare(a, b, down)).map(([, group]) => group);
}

function selectBox(ids, label) {
  const chosen = ids.filter((id) => selected.has(id)).length;
  const box = element("input", { type: "checkbox", checked: chosen === ids.length, indeterminate: chosen > 0 && chosen < ids.length,
    "aria-label": label });
  box.addEventListener("change", () => {
    for (const id of ids) if (box.checked) selected.add(id); else selected.delete(id);
    show();
  });
  return element("td", {}, box);
}

function runCells(row) {
  const link = element("a", { href: `#/run/${encodeURIComponent(row.id)}`, textContent: row.name || (row.method ?? "?") });
  const name = element("td", { className: "name", title: row.notes || "" }, link);
  if (row.name) name.append(element("span", { className: "muted", textContent: ` ${row.method}` }));
  return [selectBox([row.id], `Select run ${row.name || row.id}`), name, statusCell(row),
    ...columns.map(({ key, text }) => element("td", { className: `column-${key}`, textContent: text(row), title: text(row) }))];
}

function statusCell(row) {
  const cell = element("td", {}, element("span", { className: `status-${row.status}`, textContent: row.status }));
  if (row.status === "running") {
    const bar = element("div", { className: "progress", role: "progressbar", "aria-label": "progress" }, element("div"));
    progress(bar, row);
    cell.append(bar);
  }
  if (row.problems?.length) cell.title = row.problems[0];
  return cell;
}

function runLine(row) {
  const before = lines.get(row.id);
  if (before && before.row === row && before.version === version && before.chosen === selected.has(row.id)) return before.made;
  const made = before?.made ?? element("tr");
  const focused = made.contains(document.activeElement) && document.activeElement.tagName;
  made.replaceChildren(...runCells(row));
  if (focused) made.querySelector(focused)?.focus();
  lines.set(row.id, { row, made, version, chosen: selected.has(row.id) });
  return made;
}

function groupLines(group) {
  const [first] = group.runs;
  const ids = group.members.map((row) => row.id);
  const open = openGroups.has(group.key);
  const link = element("a", { href: `#/run/${ids.map(encodeURIComponent).join(",")}`, textContent: first.method ?? "?" });
  const name = element("td", { className: "name" }, link);
  if (ids.length > 1) {
    const more = element("button", { type: "button", className: "quiet small", textContent: `${open ? "▾" : "▸"} ${ids.length} runs`,
      "aria-expanded": String(open), "aria-label": `${open ? "Hide" : "Show"} the ${ids.length} runs of ${first.method}` });
    more.addEventListener("click", () => {
      if (open) openGroups.delete(group.key); else openGroups.add(group.key);
      show();
      byId("table").querySelector(`tr[data-group="${CSS.escape(ids[0])}"] button`)?.focus();
    });
    name.append(" ", more);
  }
  const states = [...new Set(group.members.map((row) => row.status))];
  const made = element("tr", {}, selectBox(ids, `Select the ${ids.length} runs of ${first.method}`), name,
    element("td", { textContent: states.join(", "), className: states.length === 1 ? `status-${states[0]}` : "" }),
    ...columns.map(({ key, group: text }) => element("td", { className: `column-${key}`, textContent: text(group), title: text(group) })));
  made.dataset.group = ids[0];
  if (!open || ids.length === 1) return [made];
  const inner = group.members.map(runLine);
  for (const line of inner) line.classList.add("member");
  return [made, ...inner];
}

function show() {
  showStudies();
  const sort = sortOrder();
  for (const head of byId("table").tHead.rows[0].cells) {
    if (head.dataset.key === sort.key) head.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  shown = filteredRows();
  const grouped = byId("group").checked;
  const entries = grouped ? sortGroups(groupSeeds(shown)) : shown;
  const made = entries.slice(0, most).flatMap((entry) => (grouped ? groupLines(entry) : [runLine(entry)]));
  if (!grouped) for (const line of made) line.classList.remove("member");
  const body = byId("table").tBodies[0];
  if (made.length !== body.rows.length || made.some((one, position) => body.rows[position] !== one)) {
    const focused = body.contains(document.activeElement) && document.activeElement.getAttribute("aria-label");
    body.replaceChildren(...made);
    if (focused) body.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
  }
  const left = entries.length - most;
  byId("more").hidden = left <= 0;
  byId("more").textContent = `Show ${number(Math.min(left, 4 * FIRST_ROWS))} more`;
  showCounts(grouped ? entries.length : null);
  updateButtons();
}

function showCounts(groups) {
  const total = known.total ?? known.runs.size;
  const settings = groups === null ? "" : `${number(groups)} settings, `;
  const rest = known.total ? ", reading the others…" : "";
  byId("count").textContent = known.loaded ? `${settings}${number(shown.length)} of ${number(total)} runs${rest}` : "Loading the runs…";
  byId("none").hidden = !known.loaded || known.runs.size > 0;
}

function updateButtons() {
  for (const id of selected) if (!known.runs.has(id)) selected.delete(id);
  const all = byId("select-all");
  const chosen = shown.filter((row) => selected.has(row.id)).length;
  all.checked = shown.length > 0 && chosen === shown.length;
  all.indeterminate = chosen > 0 && chosen < shown.length;
  const count = selected.size;
  byId("compare").disabled = count < 2;
  byId("compare").textContent = count > 1 ? `Compare ${count} runs` : "Compare (select two or more)";
  byId("selection").hidden = !count;
  const archived = [...selected].every((id) => known.runs.get(id)?.archived);
  byId("archive").textContent = archived ? "Restore" : "Archive";
  byId("selected-count").textContent = count === 1 ? "1 run selected" : `${number(count)} runs selected`;
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
  readTimes();
}

const readTimes = latest(async () => {
  try {
    setTimes((await get(`/api/targets?accuracy=${target()}`)).times);
    version += 1;
    show();
  } catch { /* the column stays empty; the next change asks again */ }
  await new Promise((done) => { setTimeout(done, 2000); });  // at most one request in two seconds
});

function columnsChanged() {
  buildHeader();
  show();
}

async function change(work) {
  try {
    await work();
  } catch (error) {
    byId("filter-problem").textContent = error.message;
  }
}

export function begin() {
  byId("filter").value = readPreference("q", "");
  byId("group").checked = readPreference("group", "") === "1";
  byId("target").value = target();
  buildHeader();
  byId("filter").addEventListener("input", () => { writePreference("q", byId("filter").value, "", false); most = FIRST_ROWS; show(); });
  byId("status").addEventListener("change", show);
  byId("group").addEventListener("change", () => { writePreference("group", byId("group").checked ? "1" : "", ""); columnsChanged(); });
  byId("target").addEventListener("change", () => {
    if (!byId("target").reportValidity()) return;
    setTarget(Number(byId("target").value));
    columnsChanged();
    readTimes();
  });
  byId("study").addEventListener("change", (event) => {
    location.hash = event.target.value ? `#/runs/${encodeURIComponent(event.target.value)}` : "#/runs";
  });
  byId("columns").addEventListener("toggle", () => {
    if (byId("columns").open) buildChooser(byId("column-list"), [...known.runs.values()], columnsChanged);
  });
  byId("more").addEventListener("click", () => { most += 4 * FIRST_ROWS; show(); });
  byId("compare").addEventListener("click", () => { location.hash = `#/run/${[...selected].join(",")}`; });
  byId("label").addEventListener("click", () => editLabels([...selected]));
  byId("archive").addEventListener("click", () => change(async () => {
    await archive([...selected], byId("archive").textContent === "Archive");
    selected.clear();
    byId("filter").focus();
    show();
  }));
  byId("delete").addEventListener("click", () => askToDelete([...selected], () => { selected.clear(); byId("filter").focus(); show(); }));
  byId("clear-selection").addEventListener("click", () => { selected.clear(); byId("filter").focus(); show(); });
  listen((changed) => {
    if (byId("runs").hidden) return;
    show();
    if (changed.size) readTimes();
  });
  get("/api/settings").then((settings) => { setDefaults(settings); version += 1; show(); }).catch(() => {});
}
