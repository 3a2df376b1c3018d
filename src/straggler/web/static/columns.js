// The columns of the list of runs: those that matter first, and any setting that the user adds.

import { element, fixed, number } from "./elements.js";
import { readPreference, target, writePreference } from "./preferences.js";
import { settingNames, valueOf } from "./query.js";
import { interval } from "./seeds.js";

const clock = (row) => (row.engine === undefined || row.engine === null ? "" : row.engine === "simulator" ? " virtual" : " real");
const shorten = (text) => String(text ?? "").replaceAll("seconds=", "").replace(/\.0(?!\d)/g, "");
const decimal = (value) => (typeof value === "number" ? value.toLocaleString("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 }) : "–");
const plain = (value) => (value === null || value === undefined || value === "" ? "–"
  : typeof value === "number" ? number(value, 6) : Array.isArray(value) ? value.join(" ") : String(value));

// heading, text of a run, text of a group of seeds (by default that of its first run)
const KNOWN = {
  test_accuracy: { heading: "accuracy (%)", text: (row) => (row.converged === false ? "NC" : fixed(row.test_accuracy)),
    group: (group) => interval(group, "test_accuracy", 2) },
  time_to_target: { heading: () => `time to ${target()} % (s)`, text: (row) => decimal(valueOf(row, "time_to_target")),
    group: (group) => interval(group, "time_to_target", 1) },
  seconds: { heading: "time (s)", text: (row) => (typeof row.seconds === "number" ? `${decimal(row.seconds)}${clock(row)}` : "–"),
    group: (group) => `${interval(group, "seconds", 1)}${clock(group.runs[0])}` },
  engine: { heading: "engine", text: (row) => row.engine ?? "–" },
  mean_staleness: { heading: "mean staleness", text: (row) => fixed(row.mean_staleness), group: (group) => interval(group, "mean_staleness", 2) },
  workers: { heading: "workers", text: (row) => number(row.workers) },
  dataset: { heading: "data set", text: (row) => row.dataset ?? "–" },
  lr: { heading: "lr", text: (row) => number(row.lr, 6) },
  delay: { heading: "delay", text: (row) => shorten(row.delay || "none") },
  partition: { heading: "data split", text: (row) => row.partition ?? "–" },
  seed: { heading: () => (readPreference("group", "") === "1" ? "seeds" : "seed"), text: (row) => String(row.seed ?? "–"), group: (group) => String(group.runs.length) },
  tags: { heading: "tags", text: (row) => (row.tags ?? []).join(" ") },
  notes: { heading: "notes", text: (row) => row.notes ?? "" },
  started: { heading: "started", text: (row) => (row.started ?? "–").replace("T", " ").slice(0, 16) },
  updates: { heading: "updates", text: (row) => number(row.updates), group: (group) => interval(group, "updates", 0) },
  gradients: { heading: "gradients", text: (row) => number(row.gradients), group: (group) => interval(group, "gradients", 0) },
};
const STANDARD = ["test_accuracy", "time_to_target", "seconds", "mean_staleness", "workers", "lr", "seed", "momentum",
  "delay", "dataset", "model", "engine", "partition", "tags", "started"];

export function shownColumns() {
  const keys = readPreference("columns", STANDARD.join(",")).split(",").filter(Boolean);
  return keys.slice(0, 40).map((key) => {
    const column = KNOWN[key] ?? { heading: key.replaceAll("_", " "), text: (row) => shorten(plain(valueOf(row, key))) };
    const heading = typeof column.heading === "function" ? column.heading() : column.heading;
    return { key, heading, text: column.text, group: column.group ?? ((group) => column.text(group.runs[0])) };
  });
}

function choose(keys) {
  writePreference("columns", keys.join(","), STANDARD.join(","));
}

// Fill the list of check boxes; `changed` is called after each choice.
export function buildChooser(place, rows, changed) {
  const shown = shownColumns().map((column) => column.key);
  const every = [...new Set([...shown, ...Object.keys(KNOWN), ...settingNames(rows)])];
  const boxes = every.map((key) => {
    const box = element("input", { type: "checkbox", checked: shown.includes(key), name: key });
    box.addEventListener("change", () => {
      choose(every.filter((one) => place.querySelector(`input[name="${CSS.escape(one)}"]`)?.checked));
      changed();
    });
    const heading = KNOWN[key]?.heading ?? key.replaceAll("_", " ");
    return element("label", {}, box, ` ${typeof heading === "function" ? heading() : heading}`);
  });
  const reset = element("button", { type: "button", className: "quiet", textContent: "Standard columns" });
  reset.addEventListener("click", () => { choose(STANDARD); buildChooser(place, rows, changed); changed(); });
  place.replaceChildren(...boxes, reset);
}
