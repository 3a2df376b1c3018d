// The playground: it plays on arrival, races two methods on one clock, and keeps its settings in the address.
// The live server and the static build share this file; only the server has a `backend` that trains.
"use strict";

(() => {
  const { Settings, Controls, LANES, make, percent, simulate, indexJobs, windowSeconds, findCrossing, countUpTo } = playground;
  const MAX_GRADIENTS = 20000;
  const SPEEDS = [0.5, 1, 2, 4, 8, 16, 32, 64];
  const byId = (id) => document.getElementById(id);
  const reduced = matchMedia("(prefers-reduced-motion: reduce)");
  const seconds = (value) => `${value < 100 ? value.toFixed(1) : Math.round(value).toLocaleString("en")} s`;

  class Player {
    constructor(choices, backend) {
      playground.useTables(choices.ziggurat);
      Object.assign(this, { choices, backend, settings: new Settings(choices), now: 0, speed: 4, end: 1, lanes: {} });
      Object.assign(this, { isPlaying: false, isOpen: false, last: null, curves: {}, trained: new Map() });
      this.controls = new Controls(byId("controls"), this.settings, () => this.changed());
      this.frame = this.frame.bind(this);
      this.connect();
    }

    connect() {
      const buttons = { toggle: () => this.toggle(), step: () => this.step(), again: () => this.restart(), share: () => this.share(), run: () => this.run(), "stop-runs": () => this.backend.stop() };
      for (const [id, action] of Object.entries(buttons)) byId(id).addEventListener("click", action);
      byId("speed").append(...SPEEDS.map((speed) => new Option(`${speed}×`, speed)));
      byId("speed").addEventListener("change", () => { this.speed = Number(byId("speed").value); this.keepAddress(); });
      byId("scrub").addEventListener("input", () => { this.pause(); this.show(Number(byId("scrub").value)); });
      byId("scrub").addEventListener("change", () => this.keepAddress(this.now));
      for (const lane of LANES) {
        byId(`copy-${lane}`).addEventListener("click", (event) => copy(event.target, byId(`command-${lane}`).textContent));
      }
      byId("lanes").addEventListener("keydown", (event) => {
        const action = { " ": () => this.toggle(), ArrowRight: () => this.step(), Home: () => this.restart() }[event.key];
        if (!action) return;
        event.preventDefault();
        action();
      });
      this.choices.stories.forEach((story, number) => {
        const button = make("button", { type: "button", textContent: story.title, "aria-pressed": "false" });
        button.addEventListener("click", () => this.tell(number));
        byId("stories").append(button);
      });
      const draw = () => this.draw();
      new ResizeObserver(draw).observe(byId("lanes"));
      document.addEventListener("themechange", draw);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
      document.addEventListener("visibilitychange", () => { this.last = null; });
      byId("run").hidden = byId("stop-runs").hidden = !this.backend;
    }

    // Show what the address says; play on arrival unless it names a moment or the visitor prefers less motion.
    open(query) {
      const isFirst = !this.isOpen;
      this.isOpen = true;
      if (!isFirst && (!query || query === this.query)) {  // the visitor comes back
        this.keepAddress(this.isPlaying ? undefined : this.now);
        this.draw();
        this.resume();
        return;
      }
      const others = this.settings.read(query);
      const speed = Number(others.speed);
      this.speed = SPEEDS.includes(speed) ? speed : 4;
      byId("speed").value = this.speed;
      if (!query && isFirst) Object.assign(this.settings.state, this.choices.stories[0].set);
      this.controls.build();
      const moment = Number(others.t);
      const hasMoment = "t" in others && Number.isFinite(moment);
      this.isPlaying = !hasMoment && !reduced.matches;
      this.changed(hasMoment ? moment : undefined);
    }

    close() {
      this.isOpen = false;
      clearTimeout(this.later);
    }

    resume() {
      this.last = null;
      requestAnimationFrame(this.frame);
    }

    tell(number) {
      const { speed } = this;
      this.settings.state = { ...this.choices.start, ...this.choices.stories[number].set };
      this.controls.build();
      this.isPlaying = !reduced.matches;
      this.speed = speed;
      this.changed();
    }

    // Simulate both methods with the settings as they are now, and start again.
    changed(moment) {
      const { settings } = this;
      const { state } = settings;
      const story = this.choices.stories.findIndex((each) => (
        JSON.stringify(sorted({ ...this.choices.start, ...each.set })) === JSON.stringify(sorted(state))));
      [...byId("stories").children].forEach((button, at) => button.setAttribute("aria-pressed", String(at === story)));
      byId("story").textContent = story >= 0 ? this.choices.stories[story].text : "Your own settings. The address of this page has them all: copy the link to share them.";
      const error = byId("play-error");
      error.hidden = true;
      try {
        this.curves = Object.fromEntries(LANES.map((lane) => [lane, this.findCurve(lane)]));
        const epoch = this.choices.samples[state.dataset] / 32;
        for (const lane of LANES) {
          const curve = this.curves[lane];
          const limit = curve?.length ? curve.at(-1)[0] + 1e-3 : Infinity;  // curves are rounded
          const budget = { gradients: Math.min(MAX_GRADIENTS, Math.ceil(state.epochs * epoch)), seconds: limit };
          const found = simulate(settings.simulation(lane), limit < Infinity ? { ...budget, gradients: MAX_GRADIENTS } : budget);
          this.lanes[lane] = indexJobs({ ...found, end: limit < Infinity ? limit : found.end }, state.workers);
        }
        this.end = Math.max(...LANES.map((lane) => this.lanes[lane].end));
        this.most = Math.max(...LANES.map((lane) => this.lanes[lane].jobs.reduce((most, job) => Math.max(most, job.staleness), 0)));
        this.window = Math.max(...LANES.map((lane) => windowSeconds(this.lanes[lane], state.workers)));
      } catch (problem) {
        error.hidden = false;
        error.textContent = problem.message;
        byId("run").disabled = true;
        return;
      }
      byId("run").disabled = false;
      byId("legend-most").textContent = Math.max(this.most, 7);
      byId("scrub").max = this.end;
      byId("scrub").step = "any";
      for (const lane of LANES) {
        byId(`command-${lane}`).textContent = settings.command(lane);
        byId(`title-${lane}`).textContent = this.label(lane);
      }
      this.describe();
      this.show(moment ?? (reduced.matches ? Math.min(this.window, this.end) : 0));
      this.keepAddress(moment);
      this.resume();
      this.setToggle();
    }

    label(lane) {
      const { state } = this.settings;
      const changed = ["policy", "work", "correction", "aggregation", "optimizer"].map((key) => state[`${lane}.${key}`]).filter(Boolean);
      return [state[lane], ...changed].join(", ");
    }

    // The accuracy curve of a method: trained from this page, else recorded, else none.
    findCurve(lane) {
      const trained = this.trained.get(JSON.stringify(this.settings.experiment(lane)));
      return trained ?? this.settings.recorded(lane)?.curve ?? null;
    }

    // The table of results, and the sentence on the race.
    describe() {
      const { state } = this.settings;
      const rows = LANES.map((lane) => {
        const { jobs, end, k } = this.lanes[lane];
        const curve = this.curves[lane];
        const used = jobs.filter((job) => ["applied", "held"].includes(job.decision));
        const mean = used.reduce((sum, job) => sum + job.staleness, 0) / Math.max(1, used.length);
        const all = [...jobs, ...this.lanes[lane].running];
        const busy = all.reduce((sum, job) => sum + Math.max(0, Math.min(job.finished, job.time, end) - job.started), 0);
        const crossing = curve ? findCrossing(curve, state.target) : null;
        const crossed = !curve ? "–" : crossing === null ? "not reached" : seconds(crossing);
        const final = curve?.length ? `${curve.at(-1)[1].toFixed(1)} %` : "–";
        const away = this.lanes[lane].absences.flat().reduce((sum, [from, until]) => sum + Math.max(0, Math.min(until, end) - from), 0);
        const waiting = Math.max(0, 1 - busy / (end * state.workers - away));
        return [lane, crossed, final, seconds(end), k.toLocaleString("en"), mean.toFixed(1), percent(waiting), percent(1 - used.length / Math.max(1, jobs.length))];
      });
      byId("play-rows").replaceChildren(...rows.map(([lane, ...cells]) => make("tr", {},
        make("th", { scope: "row", className: `lane-${lane}`, textContent: this.label(lane) }),
        ...cells.map((text) => make("td", { className: "number", textContent: text })))));
      byId("head-target").textContent = `to ${state.target} %`;
      byId("race-source").textContent = this.describeSource();
      byId("race").setAttribute("aria-label", `Test accuracy against virtual time. ${this.describeRace(Infinity)}.`);
    }

    // Who has reached the finish line until now.
    describeRace(now) {
      const { target } = this.settings.state;
      const times = LANES.map((lane) => (this.curves[lane]?.length ? findCrossing(this.curves[lane], target) : null));
      const here = LANES.map((lane, at) => ({ lane, time: times[at] })).filter(({ time }) => time !== null && time <= now)
        .sort((a, b) => a.time - b.time);
      if (!here.length) {
        const isOver = now >= this.end && LANES.every((lane) => this.curves[lane]?.length);
        return isOver ? `Neither method reaches ${target} %` : `The race to ${target} % test accuracy`;
      }
      const [first, second] = here;
      const start = `${this.label(first.lane)} reaches ${target} % after ${seconds(first.time)}`;
      return second ? `${start}, ${(second.time / first.time).toFixed(1)}× sooner than ${this.label(second.lane)}` : start;
    }

    describeSource() {
      const isTrained = LANES.map((lane) => this.trained.has(JSON.stringify(this.settings.experiment(lane))));
      if (LANES.some((lane) => !this.curves[lane])) {
        return this.backend ? "Press Train to train both methods with these settings." : "No run with these settings was recorded. Choose a story, or train with the commands below.";
      }
      return isTrained.every(Boolean) ? "Trained by this server." : `Curves of recorded runs (straggler ${this.choices.races.version}, one seed).`;
    }

    frame(stamp) {
      if (!this.isOpen || !this.isPlaying || document.hidden) { this.last = null; return; }
      const passed = this.last === null ? 0 : Math.min(0.1, (stamp - this.last) / 1000);
      this.last = stamp;
      const next = this.now + passed * this.speed;
      this.show(Math.min(next, this.end));
      if (next >= this.end) this.pause();
      else requestAnimationFrame(this.frame);
    }

    show(now) {
      this.now = Math.max(0, Math.min(now, this.end));
      byId("scrub").value = this.now;
      byId("clock").textContent = seconds(this.now);
      this.draw();
    }

    draw() {
      if (!this.lanes.a || !byId("lanes").offsetParent) return;
      const view = { seconds: this.window, most: this.most, speed: this.speed, still: reduced.matches || !this.isPlaying };
      for (const lane of LANES) {
        const now = Math.min(this.now, this.lanes[lane].end);
        const canvas = byId(`canvas-${lane}`);
        const updates = playground.drawLane(canvas, this.lanes[lane], now, view);
        const arrived = countUpTo(this.lanes[lane].jobs.map((job) => job.time), now);
        byId(`count-${lane}`).textContent = `${updates.toLocaleString("en")} update${updates === 1 ? "" : "s"}${this.now > now ? ", finished" : ""}`;
        Object.assign(canvas.dataset, { updates, arrived });
      }
      byId("race-title").textContent = this.describeRace(this.now);
      playground.drawRace(byId("race"), this.curves, this.now, { end: this.end, target: this.settings.state.target });
    }

    setToggle() {
      byId("toggle").textContent = this.isPlaying ? "Pause" : "Play";
    }

    pause() {
      this.isPlaying = false;
      this.setToggle();
      this.keepAddress(this.now);
      this.draw();
    }

    toggle() {
      if (this.isPlaying) { this.pause(); return; }
      if (this.now >= this.end) this.now = 0;
      this.isPlaying = true;
      this.setToggle();
      this.keepAddress();
      this.resume();
    }

    // Pause, and go to the next arrival of either method.
    step() {
      const later = LANES.map((lane) => {
        const { jobs } = this.lanes[lane];
        return jobs[countUpTo(jobs.map((job) => job.time), this.now)]?.time ?? Infinity;
      });
      this.now = Math.min(this.end, ...later);
      this.show(this.now);
      this.pause();
    }

    restart() {
      this.isPlaying = !reduced.matches;
      this.setToggle();
      this.show(0);
      this.keepAddress();
      this.resume();
    }

    // The address brings back the settings and, while paused, the moment.
    keepAddress(moment) {
      const more = this.speed === 4 ? {} : { speed: this.speed };
      if (moment !== undefined) more.t = moment;
      this.query = this.settings.query(more);
      clearTimeout(this.later);
      const write = () => {
        this.written = performance.now();
        history.replaceState(null, "", `#/play/${this.query}`);
      };
      if (performance.now() - (this.written ?? -Infinity) > 150) write();
      else this.later = setTimeout(write, 150);  // browsers refuse many changes of the address at once
    }

    share() {
      this.pause();
      copy(byId("share"), location.href);
    }

    async run() {
      const wanted = LANES.map((lane) => this.settings.experiment(lane));
      byId("play-status").textContent = "Training…";
      await this.backend.train(wanted);
    }

    // Called by the backend: curves of running or finished runs, by their settings.
    receive(curves, status) {
      byId("play-status").textContent = status;
      for (const [settings, curve] of curves) if (curve.length) this.trained.set(JSON.stringify(settings), curve);
      const { now } = this;
      if (curves.length) this.changed(this.isPlaying ? undefined : now);
      if (curves.length && this.isPlaying) this.show(now);
    }
  }

  const sorted = (value) => Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));

  async function copy(button, text) {
    const before = button.dataset.label ?? button.textContent;
    button.dataset.label = before;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {  // pages opened from disk may not use the clipboard
      const area = make("textarea", { value: text, className: "hidden" });
      document.body.append(area);
      area.select();
      button.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
      area.remove();
      button.focus();
    }
    setTimeout(() => { button.textContent = before; }, 1500);
  }

  Object.assign(playground, { Player });
})();
