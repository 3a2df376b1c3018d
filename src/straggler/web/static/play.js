// The playground: settings, what they will do, and runs that are started, watched, stopped, pinned.

import { get, known, latest, listen, post } from "./api.js";
import { figuresOf, over } from "./detail.js";
import { copy, element, progress, sentence, table } from "./words.js";

const byId = (id) => document.getElementById(id);
const choices = JSON.parse(byId("choices").textContent);
const value = { ...choices.start };
const pinned = [];
let current = null;  // the run that was started last
let last = null;  // and the one before it
let waiting = false;  // for the first word of the current run

const percent = (part) => `${Math.round(100 * part)} %`;
const SLIDERS = [
  ["workers", "Workers", 1, 32, 1, (n) => n],
  ["spread", "Speeds vary from job to job by", 0, 1, 0.05, percent],
  ["slow", "Slow workers", 0, 16, 1, (n) => n],
  ["slowness", "A slow one takes longer by", 1, 20, 1, (n) => `${n} s`],
  ["hiccups", "A job takes ten times as long in", 0, 0.3, 0.01, percent],
  ["lr", "Learning rate", -3, 0, 0.05, (n) => n, "log"],
  ["momentum", "Momentum", 0, 0.99, 0.01, (n) => n],
  ["epochs", "Epochs", 1, 60, 1, (n) => n],
  ["seed", "Seed", 0, 20, 1, (n) => n],
];
const rate = (position) => Number((10 ** position).toPrecision(2));
const ownMomentum = () => choices.methods[value.method].momentum;

// What the sliders mean as settings of an experiment; those at their default are left out.
function settings() {
  const said = { dataset: value.dataset, model: value.model, workers: value.workers };
  if (value.method !== "asgd") said.method = value.method;
  if (value.partition !== "iid") said.partition = value.partition;
  if (value.spread > 0) said.compute = `gamma(mean=1, cv=${value.spread})`;
  const delay = [];
  const slow = Math.min(value.slow, value.workers);
  if (slow > 0) {
    const whom = Array.from({ length: slow }, (_, worker) => worker).join(", ");
    delay.push(`constant(${value.slowness}, workers=[${whom}])`);
  }
  if (value.hiccups > 0) delay.push(`spikes(${value.hiccups}, 10)`);
  if (delay.length) said.delay = delay;
  said.lr = value.lr;
  if (value.momentum !== null && value.momentum !== ownMomentum()) said.momentum = value.momentum;
  if (value.epochs !== 1) said.epochs = value.epochs;
  if (value.epochs <= 20) said.eval_every = 0.5;
  if (value.seed) said.seed = value.seed;
  return said;
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
  made.addEventListener("input", () => change(key, scale === "log" ? rate(Number(made.value)) : Number(made.value)));
  output.say = () => { output.textContent = value[key] === null ? "none" : text(value[key]); };
  return element("div", { className: "field" }, element("label", { for: made.id, textContent: label }), output, made);
}

function change(key, to) {
  value[key] = to;
  if (key === "method") value.momentum = ownMomentum();
  if (key === "dataset" && value.model === "lenet5" && ["mixture", "cifar10"].includes(to)) value.model = "mlp";
  for (const button of byId("stories").children) button.setAttribute("aria-pressed", "false");
  show();
}

function show() {
  for (const [key, , , , , , scale] of SLIDERS) {
    const input = byId(`set-${key}`);
    input.value = scale === "log" ? Math.log10(value[key]) : value[key] ?? 0;
    input.disabled = value[key] === null || (key === "slowness" && value.slow === 0);
    byId(`out-${key}`).say();
  }
  byId("set-slow").max = value.workers;
  for (const key of ["method", "dataset", "model", "partition"]) byId(`set-${key}`).value = value[key];
  preview(settings());
}

const preview = latest(async (said) => {
  const query = new URLSearchParams();
  for (const [key, item] of Object.entries(said)) for (const one of [item].flat()) query.append(key, one);
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

function tell(story, button) {
  Object.assign(value, choices.start, story.set);
  value.momentum = ownMomentum();
  show();
  for (const other of byId("stories").children) other.setAttribute("aria-pressed", String(other === button));
  byId("story").hidden = false;
  byId("story").textContent = story.text;
}

async function run() {
  byId("run").disabled = true;
  byId("play-words").textContent = "starting…";
  try {
    const answer = await post("/api/runs", settings());
    if (current && current !== answer.id) last = current;
    current = answer.id;
    waiting = answer.started;
    byId("results").hidden = false;
    watch();
  } catch (problem) {
    byId("play-words").textContent = problem.message;
  } finally {
    byId("run").disabled = false;
  }
}

const together = () => [...new Set([current, ...pinned, last].filter((id) => id && known.runs.has(id)))];

const results = latest(async (ids) => {
  if (!ids.length) return;
  try {
    const page = await figuresOf(ids, ids.every(over));
    const wanted = ["accuracy", "loss", "staleness", "gaps", "classes", "timeline"];
    table(byId("play-table"), page.columns, page.rows);
    straggler.gallery(byId("play-figures"), page.figures.filter((figure) => wanted.includes(figure.name)));
  } catch (problem) {
    byId("play-words").textContent = problem.message;
  }
});

function watch() {
  const row = known.runs.get(current);
  const state = known.started[current];
  if (row && row.status !== "interrupted") waiting = false;
  const going = Boolean(state?.going);
  byId("stop").disabled = !going;
  byId("pin").disabled = !row || pinned.includes(current);
  byId("clear").disabled = !pinned.length;
  progress(byId("play-progress"), row);
  if (state?.problem) byId("play-words").textContent = state.problem;
  else if (waiting || (!row && going)) byId("play-words").textContent = "starting…";
  else byId("play-words").textContent = sentence(row);
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
    select("partition", "Who has which data", choices.partitions), ...SLIDERS.slice(5).map(slider));
  for (const story of choices.stories) {
    const button = element("button", { type: "button", textContent: story.title, "aria-pressed": "false" });
    button.addEventListener("click", () => tell(story, button));
    byId("stories").append(button);
  }
  byId("run").addEventListener("click", run);
  byId("stop").addEventListener("click", () => post(`/api/runs/${current}/stop`).catch((problem) => {
    byId("play-words").textContent = problem.message;
  }));
  byId("pin").addEventListener("click", pin);
  byId("clear").addEventListener("click", () => { pinned.length = 0; watch(); });
  byId("copy").addEventListener("click", () => copy(byId("copy"), byId("command").textContent));
  value.momentum = ownMomentum();
  listen((changed, news) => {
    if (current && (news.started || together().some((id) => changed.has(id)))) watch();
  });
}

let drawn = false;
export function open() {
  if (!drawn) show();
  drawn = true;
}
