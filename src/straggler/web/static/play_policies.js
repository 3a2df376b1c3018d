// When the server steps and which workers start: a port of straggler/algorithms/policies.
"use strict";

(() => {
  const keys = (map) => [...map.keys()];

  class Policy {
    constructor(settings) { Object.assign(this, settings); }

    check() {}

    reset() {}

    begin(server) { return keys(server.active); }

    joined(server, worker) { return [worker]; }

    left() { return []; }

    version(server) { return server.k; }
  }

  class Asynchronous extends Policy {
    receive(server, arrival) {
      server.merge(arrival);
      server.step();
      return [arrival.worker];
    }
  }

  class Synchronous extends Policy {
    receive(server, arrival) {
      server.merge(arrival);
      return this.left(server);
    }

    left(server) {
      if (server.busy.size || !server.held) return [];
      server.step();
      return keys(server.active);
    }
  }

  class FirstK extends Policy {
    check(workers) {
      if (this.waits && this.k > workers) throw new Error(`k=${this.k}: at most ${workers} workers can deliver before the step. Use k ≤ ${workers}.`);
    }

    receive(server, arrival) {
      server.merge(arrival);
      const starting = this.left(server);
      return starting.length || this.waits ? starting : [arrival.worker];
    }

    left(server) {
      if (server.held < this.k && !(this.waits && !server.busy.size && server.held)) return [];
      if (server.step() && this.cancels) return keys(server.active);
      return this.waits ? keys(server.active).filter((worker) => !server.busy.has(worker)) : [];
    }
  }

  class KSync extends FirstK { waits = true; cancels = true; }
  class KBatchSync extends FirstK { waits = false; cancels = true; }
  class KAsync extends FirstK { waits = true; cancels = false; }
  class KBatchAsync extends FirstK { waits = false; cancels = false; }

  class Ringmaster extends Policy {
    receive(server, arrival) {
      if (server.k - arrival.job.version >= this.max_delay) return [arrival.worker];
      server.merge(arrival);
      server.step();
      if (!this.restart) return [arrival.worker];
      const stale = [];
      for (const job of server.busy.values()) {  // in order of version
        if (job.version > server.k - this.max_delay) break;
        stale.push(job.worker);
      }
      return [arrival.worker, ...stale.sort((a, b) => a - b)];
    }
  }

  class Malenia extends Policy {
    reset() { this.counts = new Map(); }

    receive(server, arrival) {
      server.merge(arrival);
      this.counts.set(arrival.worker, (this.counts.get(arrival.worker) ?? 0) + 1);
      const starting = this.left(server);
      return starting.length ? starting : [arrival.worker];
    }

    left(server) {
      if (!(server.held && this.isComplete(server) && server.step())) return [];
      this.counts = new Map();
      return keys(server.active);
    }

    isComplete(server) {
      const active = keys(server.active);
      if (active.some((worker) => !this.counts.get(worker))) return false;
      // The sum of batch/count as an exact fraction of whole numbers, because ties matter.
      let [top, bottom] = [0n, 1n];
      for (const worker of active) {
        const count = BigInt(this.counts.get(worker));
        [top, bottom] = [top * count + bottom, bottom * count];
      }
      return !active.length || BigInt(active.length ** 2) * bottom > BigInt(this.batch) * top;
    }
  }

  class Ringleader extends Policy {
    reset() { Object.assign(this, { round: 0, owed: new Set(), now: new Set(), next: new Set(), isEarly: false }); }

    receive(server, arrival) {
      const { worker } = arrival;
      const isCollecting = !this.owed.size;
      this.isEarly = !isCollecting && !this.owed.has(worker);
      server.merge(arrival);
      if (this.isEarly) {
        this.next.add(worker);
      } else if (isCollecting) {
        this.now.add(worker);
        if (keys(server.active).every((each) => this.now.has(each)) && server.step()) {
          this.owed = new Set(keys(server.active).filter((each) => each !== worker));
          this.endRound();
        }
      } else {
        server.step();
        this.owed.delete(worker);
        this.endRound();
      }
      return [worker];
    }

    left(server, worker) {
      if (this.owed.delete(worker)) this.endRound();
      return [];
    }

    endRound() {
      if (!this.owed.size) Object.assign(this, { round: this.round + 1, now: this.next, next: new Set() });
    }
  }

  class ClockBound extends Policy {
    reset(server) {
      this.clocks = server.finished.map(() => 0);
      this.counted = new Set(server.active.keys());  // workers whose clocks count
    }

    slowest(otherwise = 0) {
      return this.counted.size ? Math.min(...[...this.counted].map((worker) => this.clocks[worker])) : otherwise;
    }

    advance(server, worker) {
      this.clocks[worker] += 1;
      if (!server.active.has(worker)) this.counted.delete(worker);
      return this.clocks[worker];
    }

    joined(server, worker) {
      this.clocks[worker] = Math.max(this.clocks[worker], this.slowest());
      this.counted.add(worker);
      return this.idleWithinBound(server);
    }

    left(server, worker) {
      this.counted.delete(worker);
      return this.idleWithinBound(server);
    }

    idleWithinBound(server) {
      const furthest = this.slowest() + this.free;
      return keys(server.active).filter((worker) => !server.busy.has(worker) && this.clocks[worker] <= furthest)
        .sort((a, b) => a - b);
    }
  }

  class StaleSynchronous extends ClockBound {
    get free() { return this.bound; }

    receive(server, arrival) {
      server.merge(arrival);
      server.step();
      const { worker } = arrival;
      const clock = this.advance(server, worker);
      const slowest = this.slowest(clock);
      if (slowest < clock) return clock <= slowest + this.bound ? [worker] : [];
      return this.idleWithinBound(server);
    }
  }

  class DynamicStaleSynchronous extends ClockBound {
    get free() { return this.lower; }

    check() {
      if (this.lower > this.upper) throw new Error(`lower=${this.lower} must be at most upper=${this.upper}. Swap them.`);
    }

    reset(server) {
      super.reset(server);
      this.pushes = new Map();
      this.allowed = new Map();
    }

    receive(server, arrival) {
      server.merge(arrival);
      server.step();
      const { worker } = arrival;
      const before = this.pushes.has(worker) ? this.pushes.get(worker)[1] : arrival.started;
      this.pushes.set(worker, [before, arrival.time]);
      const clock = this.advance(server, worker);
      const slowest = this.slowest(clock);
      if (slowest >= clock) return this.idleWithinBound(server);
      if (clock <= slowest + this.lower || clock < (this.allowed.get(worker) ?? 0)) return [worker];
      const most = Math.min(this.upper - this.lower, slowest + this.upper + 1 - clock);
      this.allowed.set(worker, clock + this.predictExtraSteps(server, worker, most));
      return clock < this.allowed.get(worker) ? [worker] : [];
    }

    left(server, worker) {
      this.pushes.delete(worker);
      this.allowed.delete(worker);
      return super.left(server, worker);
    }

    // The number of steps, up to `most`, after which the worker waits shortest.
    predictExtraSteps(server, worker, most) {
      const slowest = keys(server.active).reduce((a, b) => (this.clocks[b] < this.clocks[a] ? b : a));
      const [ownBefore, ownLast] = this.pushes.get(worker);
      const [before, last] = this.pushes.get(slowest) ?? [0, 0];
      const interval = last - before;
      if (interval <= 0) return 0;
      let best = 0;
      let shortest = Infinity;
      for (let steps = 0; steps <= most; steps += 1) {
        const finish = ownLast + steps * (ownLast - ownBefore);
        const wait = last + interval * Math.max(1, Math.ceil((finish - last) / interval)) - finish;
        if (wait < shortest) [best, shortest] = [steps, wait];
      }
      return best;
    }
  }

  class Paced extends Policy {
    reset(server) {
      this.idle = keys(server.active).map((worker) => [server.launched[worker], worker]);
      Object.assign(this, { count: 0, stepped: 0, oldest: 0, running: new Map(), waiting: [], ahead: new Set() });
    }

    get used() { return this.count - this.running.size - this.waiting.length; }

    get reach() { return this.window === null ? Infinity : this.oldest + this.window; }

    begin(server) { return this.admit(server); }

    receive(server, arrival) {
      const { worker } = arrival;
      const number = this.running.get(worker);
      this.running.delete(worker);
      this.rest(server, worker);
      if (number < this.reach) {
        this.use(server, arrival, number);
        this.useWaiting(server);
      } else {
        let place = this.waiting.findIndex((each) => each > number);
        if (place < 0) place = this.waiting.length;
        this.waiting.splice(place, 0, number);
        server.aside.splice(place, 0, arrival);
      }
      return this.admit(server);
    }

    joined(server, worker) {
      this.rest(server, worker);
      return this.admit(server);
    }

    left(server, worker) {
      const gone = this.running.get(worker);
      if (this.running.delete(worker)) {
        const shift = (number) => number - (number > gone ? 1 : 0);
        this.count -= 1;
        this.running = new Map([...this.running].map(([each, number]) => [each, shift(number)]));
        this.waiting = this.waiting.map(shift);
        this.ahead = new Set([...this.ahead].map(shift));
        this.advance();
      }
      this.idle = this.idle.filter(([, each]) => each !== worker);
      this.useWaiting(server);
      return this.admit(server);
    }

    rest(server, worker) {
      this.idle.push([server.launched[worker], worker]);
      this.idle.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    }

    advance() {
      for (let number = this.oldest; number < this.count && this.ahead.delete(number); number += 1) this.oldest = number + 1;
    }

    use(server, arrival, number) {
      if (this.window !== null) {
        this.ahead.add(number);
        this.advance();
      }
      server.merge(arrival);
      if (server.held >= this.batch) {
        server.step();
        this.stepped = this.used;
      }
    }

    useWaiting(server) {
      while (this.waiting.length && this.waiting[0] < this.reach) this.use(server, server.aside.shift(), this.waiting.shift());
    }

    admit(server) {
      const free = this.stepped + (this.staleness + 1) * this.batch - this.count;
      const starting = [];
      let seen = 0;
      for (const [, worker] of this.idle) {
        if (starting.length >= free) break;
        seen += 1;
        if (server.active.has(worker)) starting.push(worker);
      }
      this.idle.splice(0, seen);
      starting.forEach((worker, place) => this.running.set(worker, this.count + place));
      this.count += starting.length;
      return starting;
    }
  }

  class Hybrid extends Policy {
    check(workers) {
      const wanted = this.num_workers_ps_update;
      if (wanted > workers) throw new Error(`num_workers_ps_update=${wanted} waits for more workers than there are. Use at most ${workers}.`);
    }

    reset(server) {
      const pushes = server.finished.map(() => 0);
      Object.assign(this, { pushes, pulled: 0, least: 0, collected: [], given: new Map() });
    }

    fewest(server, counting = []) {
      const pushes = [...this.pushes];
      for (const worker of new Set(counting)) pushes[worker] += 1;
      return server.active.size ? Math.min(...keys(server.active).map((worker) => pushes[worker])) : Math.max(...this.pushes);
    }

    receive(server, arrival) {
      if (server.aside.length || this.pushes[arrival.worker] > this.least + this.staleness_tolerance) {
        server.aside.push(arrival);
        this.collect(server);
      } else {
        server.merge(arrival);
        this.collected.push(arrival.worker);
      }
      return this.advance(server);
    }

    joined(server, worker) {
      this.pushes[worker] = Math.max(this.pushes[worker], this.least);
      this.given.delete(worker);
      return [worker];
    }

    left(server) {
      if (!this.collected.length) this.least = this.fewest(server);
      this.collect(server);
      return this.advance(server);
    }

    version(server, worker) { return this.given.has(worker) ? this.given.get(worker) : server.k; }

    advance(server) {
      let starting = this.stepWhileComplete(server);
      const rounds = this.collected.length + server.aside.length;
      for (let round = 0; round < rounds && !server.busy.size && !starting.length; round += 1) {
        this.least = this.fewest(server, this.collected);
        this.collect(server);
        starting = this.stepWhileComplete(server);
        if (!starting.length && this.collected.length) starting = this.step(server);
      }
      return [...new Set(starting)];
    }

    collect(server) {
      const most = this.least + this.staleness_tolerance;
      const wanted = this.num_workers_ps_update - this.collected.length;
      const usable = server.aside.filter((arrival) => this.pushes[arrival.worker] <= most).slice(0, Math.max(0, wanted));
      for (const arrival of usable) {
        server.aside.splice(server.aside.indexOf(arrival), 1);
        server.merge(arrival);
        this.collected.push(arrival.worker);
      }
    }

    stepWhileComplete(server) {
      const starting = [];
      const rounds = 1 + server.aside.length;
      for (let round = 0; round < rounds && this.collected.length >= this.num_workers_ps_update; round += 1) {
        starting.push(...this.step(server));
        this.collect(server);
      }
      return starting;
    }

    step(server) {
      server.step();
      if ((server.k - 1) % this.pull_weights_interval === 0) this.pulled = server.k;
      for (const worker of this.collected) {
        this.pushes[worker] += 1;
        this.given.set(worker, this.pulled);
      }
      const starting = this.collected.filter((worker) => server.active.has(worker) && !server.busy.has(worker));
      this.collected = [];
      this.least = this.fewest(server);
      return starting;
    }
  }

  const POLICIES = {
    asynchronous: Asynchronous, synchronous: Synchronous, "k-sync": KSync, "k-batch-sync": KBatchSync,
    "k-async": KAsync, "k-batch-async": KBatchAsync, ringmaster: Ringmaster, malenia: Malenia,
    ringleader: Ringleader, ssp: StaleSynchronous, dssp: DynamicStaleSynchronous, paced: Paced, hybrid: Hybrid,
  };

  playground.createPolicy = ({ name, ...settings }) => {
    if (!POLICIES[name]) throw new Error(`This page does not simulate policy=${name} yet. Choose another method.`);
    return new POLICIES[name](settings);
  };
})();
