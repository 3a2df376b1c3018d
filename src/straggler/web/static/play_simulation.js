// The event simulation of a run without gradients: a port of straggler/core/server.py and engines/simulator.py.
// tests/web/test_playground_port.py holds both equal, event by event, for every method that the page offers.
"use strict";

(() => {
  const { Durations, Network, Heap, Churn, createPolicy } = playground;
  const MAX_SWITCHES = 10000;  // of workers that leave and join, without an arrival in between

  // Which steps are possible: what each aggregation needs. Directions are not computed here.
  class AnyMessage {
    constructor() { this.isEmpty = true; }

    add() { this.isEmpty = false; }

    combine() {
      const isReady = !this.isEmpty;
      this.isEmpty = true;
      return isReady;
    }

    left() {}
  }

  class LatestOfEach {
    constructor({ max_staleness: limit }) { Object.assign(this, { limit, versions: new Map() }); }

    add({ worker, job }, server) {
      if (job.version < server.k - this.limit) this.versions.delete(worker);
      else this.versions.set(worker, job.version);
    }

    combine(server) {
      if (server.k === 0 && [...server.active.keys()].some((worker) => !this.versions.has(worker))) return false;
      for (const [worker, version] of this.versions) if (version < Math.ceil(server.k - this.limit)) this.versions.delete(worker);
      return this.versions.size > 0;
    }

    left(worker) { this.versions.delete(worker); }
  }

  class Rounds {
    constructor() { Object.assign(this, { now: new Set(), next: new Set(), hasTotal: false, round: 0 }); }

    add({ worker }, { policy }) {
      if (policy.round !== this.round) {
        Object.assign(this, { now: this.next, next: new Set(), hasTotal: false, round: policy.round });
      }
      if (!policy.isEarly) this.now.add(worker);
      else {
        if (this.hasTotal) this.now.delete(worker);
        this.next.add(worker);
      }
    }

    combine() {
      this.hasTotal = this.hasTotal || this.now.size > 0;
      return this.now.size > 0;
    }

    left() {}
  }

  function createAggregation(settings) {
    if (settings.name === "latest") return new LatestOfEach(settings);
    return settings.name === "ringleader" ? new Rounds() : new AnyMessage();
  }

  class Server {
    constructor({ workers, policy, aggregation }) {
      this.k = this.held = this.gradients = 0;
      this.active = new Map(Array.from({ length: workers }, (_, worker) => [worker, true]));
      this.finished = new Array(workers).fill(0);
      this.launched = new Array(workers).fill(0);
      Object.assign(this, { busy: new Map(), aside: [], cancelled: [], departed: new Set() });
      this.policy = createPolicy(policy);
      this.aggregation = createAggregation(aggregation);
      this.policy.check(workers);
      this.policy.reset(this);
    }

    begin() { return this.start(this.policy.begin(this)); }

    receive(arrival) {
      this.busy.delete(arrival.worker);
      this.cancelled = [];
      this.finished[arrival.worker] += 1;
      Object.assign(this, { arrival, decision: "dropped" });
      const starting = this.policy.receive(this, arrival);
      if (this.decision === "dropped" && this.aside.includes(arrival)) this.decision = "held";
      this.arrival = null;
      return [this.decision, this.start(starting)];
    }

    change(worker, isJoining) {
      this.cancelled = [];
      if (isJoining === this.active.has(worker)) return [];
      if (isJoining) {
        this.active = new Map([...this.active.keys(), worker].sort((a, b) => a - b).map((each) => [each, true]));
        return this.start(this.policy.joined(this, worker));
      }
      this.active.delete(worker);
      const job = this.busy.get(worker);
      if (this.busy.delete(worker)) this.cancelled.push(job);
      const starting = this.policy.left(this, worker);
      this.aggregation.left(worker);
      if (this.held) this.departed.add(worker);
      return this.start(starting);
    }

    merge(arrival) {
      this.aggregation.add(arrival, this);
      this.held += 1;
      if (arrival === this.arrival) this.decision = "held";
      if (!this.active.has(arrival.worker)) this.departed.add(arrival.worker);
    }

    step() {
      if (!this.aggregation.combine(this)) return false;
      this.k += 1;
      if (this.decision === "held") this.decision = "applied";
      this.held = 0;
      for (const worker of this.departed) if (!this.active.has(worker)) this.aggregation.left(worker);
      this.departed.clear();
      return true;
    }

    start(workers) {
      const jobs = [];
      for (const worker of workers) {
        if (!this.active.has(worker)) continue;
        const replaced = this.busy.get(worker);
        if (this.busy.delete(worker)) this.cancelled.push(replaced);
        const launch = this.launched[worker];
        const job = { worker, launch, version: this.policy.version(this, worker) };
        this.launched[worker] = launch + 1;
        this.busy.set(worker, job);
        jobs.push(job);
      }
      return jobs;
    }
  }

  // Virtual time: the clock jumps to the next finished job.
  class Engine {
    constructor(settings, durations) {
      this.durations = durations;
      this.network = new Network(settings, settings.bytes_up, settings.bytes_down);
      this.churn = new Churn(settings);
      Object.assign(this, { now: 0, queue: new Heap(), arrivals: new Map(), atServer: new Set(), leaving: new Set() });
      this.switches = 0;
      const absent = durations.latest && Array.from({ length: settings.workers }, (_, worker) => worker)
        .filter((worker) => !this.churn.isPresent(worker));
      this.away = new Set(absent);
      this.changes = absent.map((worker) => ({ worker, time: 0, isJoining: false }));
    }

    submit(job) {
      const { worker, launch } = job;
      if (this.leaving.has(worker)) this.leave(worker);
      if (this.away.has(worker)) return;
      const [compute, delay] = this.durations.parts(worker, launch);
      this.atServer.delete(worker);
      const received = this.network.sendModel(worker, this.now);
      const finished = received + (compute + delay);
      const time = this.network.sendMessage(worker, finished);
      this.arrivals.set(worker, { job, worker, started: this.now, received, finished, time, compute, delay });
      this.queue.push([time, worker, launch]);
    }

    next() {
      while (!this.changes.length) {
        const due = this.queue.first ? this.queue.first[0] : Infinity;
        if (!this.queue.first || this.churn.nextTime <= due) {
          if (this.churn.nextTime === Infinity) return null;
          this.switch();
          continue;
        }
        const [time, worker, launch] = this.queue.pop();
        const arrival = this.arrivals.get(worker);
        if (!arrival || arrival.job.launch !== launch) continue;  // it was cancelled
        if (this.network.isShared && !this.atServer.has(worker)) {
          arrival.time = this.network.receiveMessage(time);
          this.atServer.add(worker);
          this.queue.push([arrival.time, worker, launch]);
          continue;
        }
        this.now = time;
        this.switches = 0;
        this.atServer.delete(worker);
        this.arrivals.delete(worker);
        if (this.leaving.has(worker)) this.leave(worker);
        return arrival;
      }
      return this.changes.shift();
    }

    switch() {
      const [time, worker, grace] = this.churn.switch();
      this.now = time;
      this.switches += 1;
      if (this.switches > MAX_SWITCHES) throw new Error("Workers leave before their jobs end. Let them stay longer, or use another method.");
      if (grace === null) {
        if (!this.churn.isPresent(worker)) return;
        this.leaving.delete(worker);
        if (this.away.delete(worker)) this.changes.push({ worker, time, isJoining: true });
      } else if (!this.away.has(worker)) {
        const arrival = this.arrivals.get(worker);
        const isInTime = arrival && grace > 0 && (this.atServer.has(worker) || arrival.time <= time + grace);
        if (isInTime) this.leaving.add(worker);
        else this.leave(worker);
      }
    }

    leave(worker) {
      this.leaving.delete(worker);
      this.atServer.delete(worker);
      this.away.add(worker);
      this.arrivals.delete(worker);
      this.changes.push({ worker, time: this.now, isJoining: false });
    }
  }

  // The number of batches in each worker's jobs; null: one.
  function countBatches(settings) {
    const { work, workers } = settings;
    if (work.name === "gradient") return null;
    if (work.name === "accumulate") return new Array(workers).fill(work.batches);
    if (!work.balance) return new Array(workers).fill(work.steps);
    return new Durations(settings).relativeSpeeds().map((speed) => Math.max(1, Math.trunc(work.steps * speed + 1e-9)));
  }

  // Simulate until so many gradients arrived or seconds passed. Return the jobs in the order in which they
  // ended, the jobs that are still running, and the changes of workers. `k` is the number of updates so far.
  function simulate(settings, budget) {
    const batches = countBatches(settings);
    const server = new Server(settings);
    const engine = new Engine(settings, new Durations(settings, batches));
    const jobs = [];
    const changes = [];
    const describe = (arrival, decision, end, staleness) => ({
      worker: arrival.worker, launch: arrival.job.launch, version: arrival.job.version, started: arrival.started,
      received: arrival.received, finished: arrival.finished, time: end, delay: arrival.delay,
      decision, staleness, k: server.k,
    });
    // Record the jobs that ended without a message, given all jobs that were running before.
    const recordCancelled = (running, departed) => {
      for (const job of server.cancelled) {
        const decision = job.worker === departed ? "lost" : "cancelled";
        const arrival = running.get(job.worker);
        if (arrival) jobs.push(describe(arrival, decision, engine.now, server.k - job.version));
      }
    };
    let gradients = 0;
    let starting = server.begin();
    while (gradients < budget.gradients) {
      for (const job of starting) engine.submit(job);
      const running = new Map(engine.arrivals);
      const event = engine.next();
      if (event === null) {
        if (server.active.size) throw new Error("All workers are idle. Choose other settings.");
        break;
      }
      if (event.time > budget.seconds) break;
      if ("isJoining" in event) {
        changes.push(event);
        starting = server.change(event.worker, event.isJoining);
        recordCancelled(running, event.worker);
        continue;
      }
      const staleness = server.k - event.job.version;
      let decision;
      [decision, starting] = server.receive(event);
      gradients += batches ? batches[event.worker] : 1;
      jobs.push(describe(event, decision, event.time, staleness));
      recordCancelled(running, null);
    }
    const running = [...engine.arrivals.values()].map((arrival) => describe(arrival, "running", arrival.time, null));
    return { jobs, running, changes, k: server.k, end: engine.now };
  }

  // Settings as JSON has them, with infinity as a number.
  function revive(value) {
    if (Array.isArray(value)) return value.map(revive);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, revive(item)]));
    }
    return value === "inf" ? Infinity : value;
  }

  Object.assign(playground, { simulate, revive });
})();
