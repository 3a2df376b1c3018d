// Studies and sweeps: the progress of those that are running, and the reports of the others.

import { known, listen } from "./api.js";
import { duration, element, fill, number } from "./elements.js";

const byId = (id) => document.getElementById(id);
const cards = new Map();  // element and source data by study name
const VERDICTS = ["replicated", "not replicated", "equivalent", "inconclusive", "by construction", "not measured", "rehearsed"];
const WORDS = {
  lost: "The process has exited. Run the same command again to resume.",
  interrupted: "Run the same command again to resume.",
  damaged: "progress.json cannot be read.",
};

// Merge the studies that have results with those that have a progress file.
function mergeStudies() {
  const found = new Map(known.studies.map((study) => [study.name, { ...study }]));
  for (const row of known.progress) found.set(row.name, { ...found.get(row.name), name: row.name, progress: row });
  const running = (study) => study.progress?.status === "running";
  return [...found.values()].sort((a, b) => running(b) - running(a) || (a.name < b.name ? -1 : 1));
}

export function counts(progress) {
  const parts = [`${number(progress.done)} of ${number(progress.runs)} runs done`];
  if (progress.missing) parts.push(`${number(progress.missing)} missing`);
  if (progress.failed) parts.push(`${number(progress.failed)} failed`);
  if (progress.status === "running") {
    parts.push(progress.left === null ? "remaining time not known yet" : `about ${duration(progress.left)} left`);
  }
  return parts.join(" · ");
}

function bar(part, label) {
  const made = element("div", { className: "progress", role: "progressbar", "aria-label": label,
    "aria-valuemin": 0, "aria-valuemax": 100 }, element("div"));
  fill(made, part);
  return made;
}

function linkTo(run) {
  if (!known.runs.has(run.id)) return element("span", { textContent: run.what || run.id });
  return element("a", { href: `#/run/${encodeURIComponent(run.id)}`, textContent: run.what || run.id });
}

function progressParts(progress) {
  const made = [element("p", { className: "counts", textContent: counts(progress) })];
  if (progress.status === "running") {
    made.unshift(bar(progress.part, `${progress.name}: progress`));
    const active = progress.active.map((run) => element("li", {}, linkTo(run), bar(run.part, `${run.what}: progress`)));
    if (active.length) made.push(element("h3", { textContent: "Running now" }), element("ul", { className: "active" }, ...active));
  }
  if (WORDS[progress.status]) made.push(element("p", { className: "muted", textContent: WORDS[progress.status] }));
  if (progress.failures.length) {
    const failed = progress.failures.map((run) => element("li", {}, linkTo(run), ` ${run.reason}`));
    made.push(element("details", {}, element("summary", { textContent: `${number(progress.failed)} failed` }),
      element("ul", {}, ...failed)));
  }
  return made;
}

function links(study) {
  const made = element("p", { className: "bar" });
  const address = `/reports/studies/${encodeURIComponent(study.name)}`;
  if (study.report) {
    made.append(element("a", { className: "button", href: address, textContent: "Report", "aria-label": `Report of ${study.name}` }),
      element("a", { className: "button", href: `${address}?download=1`, textContent: "Download report", "aria-label": `Download the report of ${study.name}` }));
  }
  const here = (study.ids ?? []).filter((id) => known.runs.has(id)).length;
  if (here || study.runs) {
    made.append(element("a", { className: "button", href: `#/sweep/${encodeURIComponent(study.name)}`, textContent: "Results",
      "aria-label": `Results of ${study.name}` }));
  }
  if (here) {
    made.append(element("a", { className: "button", href: `#/runs/${encodeURIComponent(study.name)}`,
      textContent: here === 1 ? "1 run" : `${number(here)} runs`, "aria-label": `Runs of ${study.name}` }));
  }
  return made;
}

function content(study) {
  const status = study.progress?.status;
  const title = element("h2", {}, study.name);
  if (status) title.append(" ", element("span", { className: `status-${status}`, textContent: status }));
  const rank = ([verdict]) => (VERDICTS.indexOf(verdict) + 1) || VERDICTS.length + 1;
  const verdicts = Object.entries(study.verdicts ?? {}).sort((a, b) => rank(a) - rank(b)).map(([verdict, count]) => `${count} ${verdict}`);
  const more = study.runs && study.runs !== study.progress?.done ? `${number(study.runs)} runs in the results` : "";
  const words = [more, ...verdicts, ...(study.problems ?? [])];
  const line = element("p", { className: "muted", textContent: words.filter(Boolean).join(" · ") });
  return [title, ...(study.progress ? progressParts(study.progress) : []), line, links(study)];
}

// Rebuild a card only if it changed; open details stay open and the focus stays where it was.
function card(study) {
  const here = (study.ids ?? []).filter((id) => known.runs.has(id)).length;
  const active = (study.progress?.active ?? []).filter((run) => known.runs.has(run.id)).length;
  const text = JSON.stringify([study, here, active]);
  const before = cards.get(study.name);
  if (before?.text === text) return before.made;
  const made = before?.made ?? element("li", { className: "card" });
  made.dataset.study = study.name;
  const open = made.querySelector("details")?.open ?? false;
  const name = (one) => one.getAttribute("href") ?? one.tagName;
  const focused = made.contains(document.activeElement) && name(document.activeElement);
  made.replaceChildren(...content(study));
  if (open && made.querySelector("details")) made.querySelector("details").open = true;
  if (focused) [...made.querySelectorAll("a, summary")].find((one) => name(one) === focused)?.focus();
  cards.set(study.name, { text, made });
  return made;
}

export function show() {
  const studies = mergeStudies();
  const list = byId("study-list");
  const made = studies.map(card);
  if (made.length !== list.children.length || made.some((one, position) => list.children[position] !== one)) {
    list.replaceChildren(...made);
  }
  byId("no-studies").hidden = studies.length > 0;
}

// On the page of the runs: link to running studies.
function showRunningStudies() {
  const running = known.progress.filter((progress) => progress.status === "running");
  byId("active-studies").hidden = !running.length;
  byId("active-studies").replaceChildren(...running.map((progress) => element("p", {},
    element("a", { href: "#/studies", textContent: progress.name }), ` is running: ${counts(progress)}`)));
}

export function begin() {
  listen((changed, changes) => {
    if (changes.progress) showRunningStudies();
    if (!byId("studies").hidden) show();
  });
}
