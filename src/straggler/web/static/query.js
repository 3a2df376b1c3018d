// The language of the filter: words, and terms such as lr=0.05, workers>8, method=asgd, tag=paper.

const ALIASES = {
  accuracy: "test_accuracy", loss: "test_loss", time: "seconds", staleness: "mean_staleness", data: "dataset",
  tag: "tags", note: "notes", target: "time_to_target", time_to: "time_to_target", split: "partition",
};
const TERM = /^([\w.-]+)(<=|>=|!=|=|<|>|~)(.+)$/;
const NUMERIC = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b };
let defaults = {};  // of the settings, which rows leave out
let times = {};  // time to target by id

export function setDefaults(settings) { defaults = settings; }
export function setTimes(found) { times = found; }

// The value of a column or setting of a run; null if unknown. Runs that did not converge have no accuracy.
export function valueOf(row, name) {
  const key = ALIASES[name] ?? name;
  if (key === "time_to_target") return times[row.id] ?? null;
  if (key === "test_accuracy" && row.converged === false) return null;
  if (key !== "settings" && Object.hasOwn(row, key)) return row[key];
  const settings = row.settings ?? {};
  for (const one of [key, key.replaceAll("_", " ")]) {
    if (Object.hasOwn(settings, one)) return settings[one];
    if (Object.hasOwn(defaults, one)) return defaults[one];
  }
  return null;
}

// Names of all settings of some runs.
export function settingNames(rows) {
  const found = new Set(Object.keys(defaults));
  for (const row of rows) for (const key of Object.keys(row.settings ?? {})) found.add(key);
  return [...found].sort();
}

function isKnown(name, rows) {
  const key = ALIASES[name] ?? name;
  if (key === "time_to_target" || ["converged", "error", "id"].includes(key)) return true;
  return settingNames(rows).some((one) => one.replaceAll(" ", "_") === key) || rows.some((row) => Object.hasOwn(row, key));
}

// Split at spaces outside of quotation marks; spaces around an operator belong to the term.
function splitWords(text) {
  const joined = text.split(/("[^"]*"?)/).map((part, position) => (
    position % 2 ? part : part.replace(/\s*(<=|>=|!=|=|<|>|~)\s*/g, "$1"))).join("");
  return joined.match(/(?:"[^"]*"?|[^\s"])+/g) ?? [];
}

const plain = (text) => text.replaceAll('"', "").toLowerCase();

function matches(value, operator, wanted) {
  if (Array.isArray(value)) {
    const any = value.some((one) => matches(one, operator === "!=" ? "=" : operator, wanted));
    return operator === "!=" ? !any : any;
  }
  if (NUMERIC[operator]) return typeof value === "number" && NUMERIC[operator](value, Number(wanted));
  const text = String(value ?? "").toLowerCase();
  if (operator === "~") return text.includes(wanted);
  const numbers = typeof value === "number" && wanted !== "" && !Number.isNaN(Number(wanted));
  const same = numbers ? value === Number(wanted) : text === wanted || text.split("(")[0] === wanted;
  return operator === "=" ? same : !same;
}

// Return a function that tells whether a run passes, and a sentence if the text has a mistake.
export function parseQuery(text, rows) {
  const tests = [];
  let problem = "";
  let archived = false;  // whether the query itself asks for archived runs
  for (const word of splitWords(text)) {
    const term = word.startsWith('"') ? null : TERM.exec(word);
    if (!term) {
      const wanted = plain(word);
      tests.push((row) => searchText(row).includes(wanted));
      continue;
    }
    const [, name, operator, quoted] = term;
    const wanted = plain(quoted);
    archived ||= name === "archived";
    if (rows.length && Object.keys(defaults).length && !isKnown(name, rows)) problem ||= `No run has a setting or result called ${name}.`;
    if (NUMERIC[operator] && Number.isNaN(Number(wanted))) problem ||= `${name}${operator} requires a number, got ${wanted}.`;
    const nc = (ALIASES[name] ?? name) === "test_accuracy" && wanted === "nc";
    tests.push(nc ? (row) => (row.converged === false) === (operator === "=")
      : (row) => matches(valueOf(row, name), operator, wanted));
  }
  return { test: (row) => tests.every((one) => one(row)), problem, archived };
}

const texts = new WeakMap();
function searchText(row) {
  if (!texts.has(row)) {
    const { settings, ...listed } = row;
    texts.set(row, [...Object.values(listed), ...Object.values(settings ?? {})].join(" ").toLowerCase());
  }
  return texts.get(row);
}
