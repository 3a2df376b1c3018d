// The settings of the playground: their text forms, the address of the page, and the controls.
// What there is to set comes from Python's catalogues (`list_choices`), so that new entries appear by themselves.
"use strict";

(() => {
  const STAGES = ["policy", "work", "correction", "aggregation", "optimizer"];
  const LANES = ["a", "b"];

  // Split at commas (or another mark) that are outside brackets.
  function splitOutside(text, mark = ",") {
    const parts = [];
    let depth = 0;
    let part = "";
    for (const letter of text) {
      if ("([".includes(letter)) depth += 1;
      else if (")]".includes(letter)) depth -= 1;
      if (letter === mark && depth === 0) {
        parts.push(part);
        part = "";
      } else part += letter;
    }
    return [...parts, part].map((each) => each.trim()).filter(Boolean);
  }

  function parseValue(text) {
    if (text === "True" || text === "true") return true;
    if (text === "False" || text === "false") return false;
    if (text === "None" || text === "") return null;
    if (text.startsWith("[")) return splitOutside(text.slice(1, -1)).map(parseValue);
    return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
  }

  // Why a value does not fit to a field; empty if it does.
  function findProblem(field, value) {
    if (value === null) return "default" in field && field.default === null ? "" : "Enter a value.";
    if (field.type === "list") {
      const fits = (each) => (Array.isArray(field.default) ? Number.isFinite(each) : Number.isInteger(each) && each >= 0);
      return Array.isArray(value) && value.every(fits) ? "" : "Enter numbers with commas, such as 0, 1.";
    }
    if (field.type === "text") return "";
    if (field.type === "boolean") return typeof value === "boolean" ? "" : "Enter True or False.";
    if (field.type === "choice") return field.choices.includes(value) ? "" : `Enter ${field.choices.join(" or ")}.`;
    const number = value === "inf" ? Infinity : value;
    if (typeof number !== "number") return "Enter a number.";
    if (number === Infinity && field.default !== "inf") return "Enter a finite number.";
    if (field.type === "integer" && !Number.isInteger(number)) return "Enter a whole number.";
    if ("min" in field && number < field.min) return `Enter at least ${field.min}.`;
    if ("above" in field && number <= field.above) return `Enter more than ${field.above}.`;
    if ("max" in field && number > field.max) return `Enter at most ${field.max}.`;
    if ("below" in field && number >= field.below) return `Enter less than ${field.below}.`;
    return "";
  }

  // `name(key=value, …)` as { name, values }, with the defaults of the entry's fields.
  function parseEntry(text, entries) {
    const [, name, inside] = /^\s*([\w-]+)\s*(?:\((.*)\))?\s*$/s.exec(text) ?? [];
    const entry = Object.hasOwn(entries, name) ? entries[name] : null;
    if (!entry) throw new Error(`“${text.slice(0, 80)}” is not offered on this page.`);
    const values = {};
    for (const [key, field] of Object.entries(entry.fields)) if ("default" in field) values[key] = field.default;
    splitOutside(inside ?? "").forEach((part, place) => {
      const at = part.indexOf("=");
      const key = at > 0 ? part.slice(0, at).trim() : Object.keys(entry.fields)[place];
      if (!Object.hasOwn(entry.fields, key)) throw new Error(`${name} has no setting “${key}”.`);
      values[key] = parseValue(part.slice(at + 1).trim());
      const problem = findProblem(entry.fields[key], values[key]);
      if (problem) throw new Error(`${name}: ${key}. ${problem}`);
    });
    const missing = Object.keys(entry.fields).find((key) => !(key in values));
    if (missing) throw new Error(`${name} requires ${missing}.`);
    return { name, values };
  }

  function formatValue(value) {
    if (Array.isArray(value)) return `[${value.map(formatValue).join(", ")}]`;
    if (value === true) return "True";
    if (value === false) return "False";
    return value === null ? "None" : String(value);
  }

  function formatEntry({ name, values }, fields) {
    const changed = Object.keys(fields).filter((key) => JSON.stringify(values[key]) !== JSON.stringify(fields[key].default));
    const inside = changed.map((key) => `${key}=${formatValue(values[key])}`).join(", ");
    return inside ? `${name}(${inside})` : name;
  }

  const formatParts = (parts) => parts.map((part) => formatEntry(part, part.fields)).join(" + ");

  // The settings of one page: the state that the address has, and what follows from it.
  class Settings {
    constructor(choices) {
      this.choices = choices;
      this.state = { ...choices.start };
    }

    // The parts of a stage of a method, with the values that the visitor changed.
    stage(lane, key) {
      const parts = this.choices.methods[this.state[lane]].stages[key];
      const text = this.state[`${lane}.${key}`];
      if (!text) return parts;
      const entries = Object.fromEntries(parts.map((part) => [part.name, part]));
      const texts = splitOutside(text, "+");
      return parts.map((part, place) => ({ ...part, values: parseEntry(texts[place] ?? part.name, entries).values }));
    }

    setStage(lane, key, parts) {
      const text = formatParts(parts);
      if (text === formatParts(this.choices.methods[this.state[lane]].stages[key])) delete this.state[`${lane}.${key}`];
      else this.state[`${lane}.${key}`] = text;
    }

    setMethod(lane, method) {
      for (const key of STAGES) delete this.state[`${lane}.${key}`];
      this.state[lane] = method;
      this.state[`${lane}.lr`] = this.choices.methods[method].lr ?? this.choices.start[`${lane}.lr`];
    }

    entry(key) { return this.state[key] ? parseEntry(this.state[key], this.choices.cluster[key]) : null; }

    // The delays as entries: the slow workers, then the other law.
    delays() {
      const { slow, slowness, workers } = this.state;
      const chosen = Array.from({ length: Math.min(slow, workers) }, (_, worker) => worker);
      const delays = chosen.length ? [{ name: "constant", values: { seconds: slowness - 1, workers: chosen } }] : [];
      return this.state.delay ? [...delays, this.entry("delay")] : delays;
    }

    // What the simulation in the page takes.
    simulation(lane) {
      const { workers, seed, dataset, model } = this.state;
      const flat = ({ name, values }) => ({ ...values, name });
      const bytes = this.choices.bytes[dataset]?.[model];
      if (bytes === undefined) throw new Error(`The model ${model} does not fit the data set ${dataset}.`);
      const list = (key) => (this.state[key] ? [flat(this.entry(key))] : []);
      return playground.revive({
        workers, seed, bytes_up: bytes, bytes_down: bytes, server_link: null,
        ...Object.fromEntries(["policy", "work", "aggregation"].map((key) => [key, flat(this.stage(lane, key)[0])])),
        compute: flat(this.entry("compute")), delay: this.delays().map(flat), link: list("link"), churn: list("churn"),
      });
    }

    // The settings of an experiment, as `straggler run` takes them; `build_race_settings` is the same in Python.
    experiment(lane) {
      const { state } = this;
      const fields = this.choices.cluster.delay;
      const chosen = { dataset: state.dataset, model: state.model, workers: state.workers, method: state[lane], compute: state.compute };
      if (state.partition !== "iid") chosen.partition = state.partition;
      const delay = this.delays().map((law) => formatEntry(law, fields[law.name].fields));
      if (delay.length) chosen.delay = delay;
      for (const key of ["link", "churn"]) if (state[key]) chosen[key] = [state[key]];
      for (const key of STAGES) if (state[`${lane}.${key}`]) chosen[key] = state[`${lane}.${key}`];
      Object.assign(chosen, { lr: state[`${lane}.lr`], epochs: state.epochs, eval_every: state.epochs / 40 });
      if (state.seed) chosen.seed = state.seed;
      return chosen;
    }

    command(lane) {
      const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);
      const words = Object.entries(this.experiment(lane)).flatMap(([key, value]) => (
        [value].flat().flatMap((one) => [`--${key.replaceAll("_", "-")}`, quote(String(one))])));
      return ["straggler run", ...words].join(" ");
    }

    // The recorded run with these settings, or null.
    recorded(lane) {
      const wanted = canonical(this.experiment(lane));
      return this.choices.races.runs.find((run) => canonical(run.settings) === wanted) ?? null;
    }

    // The address has what differs from the start.
    query(more = {}) {
      const query = new URLSearchParams();
      for (const [key, value] of Object.entries({ ...this.state, ...more })) {
        if (value !== this.choices.start[key]) query.set(key, value);
      }
      return query.toString();
    }

    // Take the settings of an address; what is wrong in it is left out. Return the other keys of the address.
    read(text) {
      const query = new URLSearchParams(text);
      const { start, methods, limits } = this.choices;
      this.state = { ...start };
      const others = {};
      for (const [key, value] of query) {
        const number = Number(value);
        const isStage = /^[ab]\.(policy|work|correction|aggregation|optimizer)$/.test(key);
        if (LANES.includes(key)) { if (Object.hasOwn(methods, value)) this.state[key] = value; }
        else if (isStage) this.state[key] = value.slice(0, 500);
        else if (!Object.hasOwn(start, key)) others[key] = value;
        else if (typeof start[key] !== "number") this.state[key] = value.slice(0, 500);
        else if (Number.isFinite(number)) {
          const limit = limits[key];
          this.state[key] = limit ? Math.min(limit[1], Math.max(limit[0], number)) : number;
        }
      }
      for (const key of ["datasets", "models", "partitions"]) {
        if (!Object.hasOwn(this.choices[key], this.state[key.slice(0, -1)])) this.state[key.slice(0, -1)] = start[key.slice(0, -1)];
      }
      for (const key of ["compute", "delay", "link", "churn"]) {
        try { this.entry(key); } catch { this.state[key] = start[key]; }
      }
      for (const lane of LANES) {
        for (const key of STAGES) {
          try { this.stage(lane, key); } catch { delete this.state[`${lane}.${key}`]; }
        }
      }
      return others;
    }
  }

  const canonical = (settings) => JSON.stringify(Object.entries(settings).sort(([a], [b]) => (a < b ? -1 : 1)));

  Object.assign(playground, { Settings, findProblem, parseEntry, formatEntry, formatValue, parseValue, STAGES, LANES });
})();
