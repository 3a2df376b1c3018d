// The playground: choose settings, preview the timing, then start, watch, stop and pin runs.

import { get, known, latest, listen, post } from "./api.js";
import { loadFigures, hasEnded } from "./detail.js";
import { copy, element, progress, sentence, silence, stopLabel, table } from "./elements.js";

const byId = (id) => document.getElementById(id);
const choices = JSON.parse(byId("choices").textContent);
const value = { ...choices.start };
const pinned = [];
let current = null;  // the run that was started last
let last = null;  // the run that was started before it
let waiting = false;  // until the server reports the current run

const percent = (part) => `${Math.round(100 * part)} %`;
const SLIDERS = [
  ["workers", "Workers", 1, 32, 1, (n) => n],
  ["spread", "Variation of compute times", 0, 1, 0.05, percent],
  ["slow", "Slow workers", 0, 16, 1, (n) => n],
  ["slowness", "Slowdown of slow workers", 2, 20, 1, (n) => `${n}×`],
  ["spikes", "Share of 10× slower jobs", 0, 0.3, 0.01, percent],
  ["lr", "Learning rate", -3, 0, 0.05, (n) => n, "log"],
  ["momentum", "Momentum", 0, 0.99, 0.01, (n) => n],
  ["epochs", "Epochs", 1, 60, 1, (n) => n],
  ["seed", "Seed", 0, 20, 1, (n) => n],
];
const rateAt = (position) => Number((10 ** position).toPrecision(2));
const methodMomentum = () => choices.methods[value.method].momentum;

// The settings of the experiment. A gradient takes 1 s on average; settings at their default are left out.
function settings() {
  const chosen = { dataset: value.dataset, model: value.model, workers: value.workers };
  if (value.method !== "asgd") chosen.method = value.method;
  if (value.partition !== "iid") chosen.partition = value.partition;
  if (value.spread > 0) chosen.compute = `gamma(mean=1, cv=${value.spread})`;
  const delay = [];
  const slow = Math.min(value.slow, value.workers);
  if (slow > 0) {
    const workers = Array.from({ length: slow }, (_, worker) => worker).join(", ");
    delay.push(`constant(${value.slowness - 1}, workers=[${workers}])`);
  }
  if (value.spikes > 0) delay.push(`spikes(${value.spikes}, 10)`);
  if (delay.length) chosen.delay = delay;
  chosen.lr = value.lr;
  if (value.momentum !== null && value.momentum !== methodMomentum()) chosen.momentum = value.momentum;
  if (value.epochs !== 1) chosen.epochs = value.epochs;
  if (value.epochs <= 20) chosen.eval_every = 0.5;
  if (value.seed) chosen.seed = value.seed;
  return chosen;
}

function select(key, label, options) {
  const made = element("select", { id: `set-${key}` });
  for (const [name, text] of Object.entries(options)) made.append(element("option", { value: name, textContent: text }));
  made.addEventListener("change", () => change(key, made.value));
  return element("div", { className: "field" }, element("label", { for: made.id, textContent: label }), made);
}

function slider([key, label, low, high, step, text, scale]) {
  const output = element("output", { id: `out-${key}` });
  const made = element("input", { type: "range", id: `set-${key}`, min: low, max: high, step });
  made.addEventListener("input", () => change(key, scale === "log" ? rateAt(Number(made.value)) : Number(made.value)));
  output.update = () => { output.textContent = value[key] === null ? "none" : text(value[key]); };
  return element("div", { className: "field" }, element("label", { for: made.id, textContent: label }), output, made);
}

function change(key, to) {
  value[key] = to;
  if (key === "method") value.momentum = methodMomentum();
  if (key === "dataset" && value.model === "lenet5" && ["mixture", "cifar10"].includes(to)) value.model = "mlp";
  for (const button of byId("stories").children) button.setAttribute("aria-pressed", "false");
  show();
}

function show() {
  for (const [key, , , , , , scale] of SLIDERS) {
    const input = byId(`set-${key}`);
    input.value = scale === "log" ? Math.log10(value[key]) : value[key] ?? 0;
    input.disabled = value[key] === null || (key === "slowness" && value.slow === 0);
    byId(`out-${key}`).update();
  }
  byId("set-slow").max = value.workers;
  for (const key of ["method", "dataset", "model", "partition"]) byId(`set-${key}`).value = value[key];
  preview(settings());
}

const preview = latest(async (chosen) => {
  const query = new URLSearchParams();
  for (const [key, item] of Object.entries(chosen)) for (const one of [item].flat()) query.append(key, one);
  const error = byId("play-error");
  try {
    const found = await get(`/api/preview?${query}`);
    error.hidden = true;
    byId("command").textContent = found.command;
    byId("sentences").replaceChildren(...found.sentences.map((text) => element("li", { textContent: text })));
    byId("run").disabled = false;
    straggler.gallery(byId("preview"), found.figures);
  } catch (problem) {
    error.hidden = false;
    error.textContent = problem.message;
    byId("run").disabled = true;
  }
});

function showStory(story, button) {
  Object.assign(value, choices.start, story.set);
  value.momentum = methodMomentum();
  show();
  for (const other of byId("stories").children) other.setAttribute("aria-pressed", String(other === button));
  byId("story").hidden = false;
  byId("story").textContent = story.text;
}

async function run() {
  byId("run").disabled = true;
  byId("play-status").textContent = "Starting…";
  try {
    const answer = await post("/api/runs", settings());
    if (current && current !== answer.id) last = current;
    current = answer.id;
    waiting = answer.started;
    byId("results").hidden = false;
    watch();
  } catch (problem) {
    byId("play-status").textContent = problem.message;
  } finally {
    byId("run").disabled = false;
  }
}

const together = () => [...new Set([current, ...pinned, last].filter((id) => id && known.runs.has(id)))];

const results = latest(async (ids) => {
  if (!ids.length) return;
  try {
    const page = await loadFigures(ids, ids.every(hasEnded));
    const wanted = ["accuracy", "loss", "staleness", "gaps", "classes", "timeline"];
    table(byId("play-table"), page.columns, page.rows);
    straggler.gallery(byId("play-figures"), page.figures.filter((figure) => wanted.includes(figure.name)));
  } catch (problem) {
    byId("play-status").textContent = problem.message;
  }
});

function watch() {
  const row = known.runs.get(current);
  const state = known.started[current];
  if (row && row.status !== "interrupted") waiting = false;
  const running = Boolean(state?.running);
  byId("stop").disabled = !running;
  byId("stop").textContent = stopLabel(state);
  byId("pin").disabled = !row || pinned.includes(current);
  byId("clear").disabled = !pinned.length;
  progress(byId("play-progress"), row);
  if (state?.error) byId("play-status").textContent = state.error;
  else if (waiting || (!row && running)) byId("play-status").textContent = "Starting…";
  else byId("play-status").textContent = sentence(row) + silence(state);
  results(together());
}

function pin() {
  pinned.push(current);
  watch();
}

export function begin() {
  const controls = byId("controls");
  controls.addEventListener("submit", (event) => event.preventDefault());
  const methods = Object.fromEntries(Object.entries(choices.methods).map(([name, one]) => [name, one.text]));
  controls.append(select("method", "Method", methods), slider(SLIDERS[0]), ...SLIDERS.slice(1, 5).map(slider),
    select("dataset", "Data set", choices.datasets), select("model", "Model", choices.models),
    select("partition", "Data split", choices.partitions), ...SLIDERS.slice(5).map(slider));
  for (const story of choices.stories) {
    const button = element("button", { type: "button", textContent: story.title, "aria-pressed": "false" });
    button.addEventListener("click", () => showStory(story, button));
    byId("stories").append(button);
  }
  byId("run").addEventListener("click", run);
  byId("stop").addEventListener("click", () => post(`/api/runs/${current}/stop`).catch((problem) => {
    byId("play-status").textContent = problem.message;
  }));
  byId("pin").addEventListener("click", pin);
  byId("clear").addEventListener("click", () => { pinned.length = 0; watch(); });
  byId("copy").addEventListener("click", () => copy(byId("copy"), byId("command").textContent));
  value.momentum = methodMomentum();
  listen((changed, changes) => {
    if (current && (changes.started || together().some((id) => changed.has(id)))) watch();
  });
}

let drawn = false;
export function open() {
  if (!drawn) show();
  drawn = true;
}
