// The controls of the playground, built from the fields of Python's catalogues.
"use strict";

(() => {
  const { findProblem, formatEntry, formatValue, parseValue, STAGES } = playground;

  function make(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(properties)) {
      if (key.includes("-") || ["role", "for", "list"].includes(key)) made.setAttribute(key, value);
      else made[key] = value;
    }
    made.append(...children);
    return made;
  }

  const percent = (part) => `${Math.round(100 * part)} %`;

  // All controls. `changed(isStory)` is called after every change of the settings.
  class Controls {
    constructor(host, settings, changed) {
      Object.assign(this, { host, settings, changed, number: 0 });
      this.host.addEventListener("submit", (event) => event.preventDefault());
    }

    get state() { return this.settings.state; }

    // Build all controls again, because the address or a story changed the settings.
    build() {
      const { choices } = this.settings;
      const { limits } = choices;
      const open = new Set([...this.host.querySelectorAll("details[open]")].map((each) => each.dataset.group));
      const group = (key, title, isOpen, ...fields) => make("details", { open: open.size ? open.has(key) : isOpen,
        "data-group": key, className: "group" }, make("summary", { textContent: title }), ...fields);
      const focused = document.activeElement?.id;
      this.number = 0;
      this.host.replaceChildren(
        group("cluster", "Cluster", true,
          this.slider("workers", "Workers", limits.workers),
          this.slider("slow", "Slow workers", [0, Math.min(limits.slow[1], this.state.workers), 1]),
          this.slider("slowness", "Slowdown of slow workers", limits.slowness, (value) => `${value}×`),
          this.choose("compute", "Compute time of a gradient (s)", choices.cluster.compute),
          this.choose("delay", "Random delay", choices.cluster.delay, "none"),
          this.choose("link", "Network link", choices.cluster.link, "instantaneous"),
          this.choose("churn", "Workers leave and join", choices.cluster.churn, "never")),
        ...["a", "b"].map((lane) => group(lane, `Method ${lane.toUpperCase()}`, true, ...this.method(lane))),
        group("data", "Data and training", false,
          this.pick("dataset", "Data set", choices.datasets), this.pick("model", "Model", choices.models),
          this.pick("partition", "Data split", choices.partitions),
          this.slider("epochs", "Epochs", limits.epochs), this.slider("seed", "Seed", limits.seed),
          this.slider("target", "Finish line (test accuracy)", limits.target, (value) => `${value} %`)));
      if (focused) document.getElementById(focused)?.focus();
    }

    change(key, value, isStructural = false) {
      this.state[key] = value;
      if (key === "dataset" && this.settings.choices.bytes[value][this.state.model] === undefined) this.state.model = "mlp";
      if (isStructural || ["workers", "dataset"].includes(key)) this.build();
      this.changed();
    }

    slider(key, label, [low, high, step], text = String, scale = (value) => value, back = (value) => value) {
      const id = `set-${key.replace(".", "-")}`;
      const output = make("output", { textContent: text(this.state[key]), "for": id });
      const input = make("input", { type: "range", id, min: low, max: high, step });
      input.value = back(this.state[key]);
      input.addEventListener("input", () => {
        const value = scale(Number(input.value));
        output.textContent = text(value);
        this.change(key, value);
      });
      return make("div", { className: "field" }, make("label", { "for": id, textContent: label }), output, input);
    }

    pick(key, label, options) {
      const id = `set-${key}`;
      const made = make("select", { id }, ...Object.entries(options).map(([name, text]) => new Option(text, name)));
      made.value = this.state[key];
      made.addEventListener("change", () => this.change(key, made.value));
      return make("div", { className: "field" }, make("label", { "for": id, textContent: label }), made);
    }

    // One entry of a catalogue and its settings; with `none`, there may also be no entry.
    choose(key, label, entries, none = null) {
      const id = `set-${key}`;
      const options = Object.keys(entries).map((name) => new Option(name, name));
      const made = make("select", { id }, ...(none ? [new Option(none, "")] : []), ...options);
      const entry = this.settings.entry(key);
      made.value = entry?.name ?? "";
      made.addEventListener("change", () => {
        this.change(key, made.value ? formatEntry(this.suggest(key, entries[made.value]), entries[made.value].fields) : "", true);
      });
      const host = make("div", { className: "field" }, make("label", { "for": id, textContent: label }), made);
      if (entry) {
        const { fields, text } = entries[entry.name];
        made.title = text;
        host.append(...this.fields(`${id}-`, fields, entry.values, () => this.change(key, formatEntry(entry, fields))));
      }
      return host;
    }

    // First values of an entry: defaults where there are any, else suggestions.
    suggest(key, entry) {
      const { suggestions, suggestions_churn: ofChurn } = this.settings.choices;
      const values = {};
      for (const [name, field] of Object.entries(entry.fields)) {
        const suggested = (key === "churn" ? ofChurn[name] : undefined) ?? suggestions[name] ?? 1;
        values[name] = "default" in field ? field.default : suggested;
        if (key === "link" && name === "latency") values[name] = suggestions.latency;
        if (key === "delay" && entry.name === "constant" && name === "workers") values[name] = [0];
      }
      return { name: entry.name, values };
    }

    method(lane) {
      const { choices } = this.settings;
      const id = `set-${lane}`;
      const made = make("select", { id }, ...Object.entries(choices.methods).map(([name, method]) => new Option(`${name} – ${method.text}`, name)));
      made.value = this.state[lane];
      made.addEventListener("change", () => {
        this.settings.setMethod(lane, made.value);
        this.build();
        this.changed();
      });
      const { text, paper } = choices.methods[this.state[lane]];
      const found = [
        make("div", { className: "field" }, make("label", { "for": id, textContent: `Method ${lane.toUpperCase()}`, className: "hidden" }), made,
          make("p", { className: "muted", textContent: `${text} (${paper}).` })),
        this.slider(`${lane}.lr`, "Learning rate", choices.limits.lr, String, (at) => Number((10 ** at).toPrecision(2)), Math.log10),
      ];
      for (const key of STAGES) {
        const parts = this.settings.stage(lane, key);
        for (const part of parts) {
          if (!Object.keys(part.fields).length) continue;
          const values = { ...part.values };
          const replaced = parts.map((each) => (each === part ? { ...part, values } : each));
          found.push(make("fieldset", {}, make("legend", { textContent: `${key}: ${part.name}`, title: part.text }),
            ...this.fields(`${id}-${key}-`, part.fields, values, () => {
              this.settings.setStage(lane, key, replaced);
              this.changed();
            })));
        }
      }
      return found;
    }

    // An input for each field; a value that breaks a rule is marked, and the last good one stays.
    fields(prefix, fields, values, changed) {
      return Object.entries(fields).map(([key, field]) => {
        const id = `${prefix}${key}`;
        const label = make("label", { "for": id, textContent: key.replaceAll("_", " ") });
        const set = (value) => {
          values[key] = value;
          changed();
        };
        let input;
        if (field.type === "boolean") {
          input = make("input", { type: "checkbox", id, checked: Boolean(values[key]) });
          input.addEventListener("change", () => set(input.checked));
        } else if (field.type === "choice") {
          input = make("select", { id }, ...field.choices.map((choice) => new Option(choice, choice)));
          input.value = values[key];
          input.addEventListener("change", () => set(input.value));
        } else {
          const isList = field.type === "list";
          const show = (value) => (value === null ? "" : isList ? value.map(formatValue).join(", ") : String(value));
          input = make("input", { type: "text", id, inputMode: field.type === "text" ? "text" : "decimal", value: show(values[key]),
            placeholder: field.default === null ? (key === "workers" ? "all" : "none") : "" });
          input.addEventListener("input", () => {
            const text = input.value.trim();
            const value = isList ? (text ? parseValue(`[${text}]`) : null) : parseValue(text);
            const problem = findProblem(field, value);
            input.setCustomValidity(problem);
            input.setAttribute("aria-invalid", String(Boolean(problem)));
            input.title = problem;
            if (!problem) set(value);
          });
        }
        return make("div", { className: "pair" }, label, input);
      });
    }
  }

  Object.assign(playground, { Controls, make, percent });
})();
