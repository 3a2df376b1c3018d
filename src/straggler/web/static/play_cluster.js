// The simulated cluster: how long jobs take, how long messages travel, and when workers come and go.
// A port of straggler/timing; tests/web/test_playground_port.py holds both equal, event by event.
"use strict";

(() => {
  const { Generator } = playground;
  const BLOCK = 64;
  const fill = (draw) => Float64Array.from({ length: BLOCK }, draw);

  function drawGamma(rng, mean, cv) {
    if (cv < 1e-9) return mean;
    return mean * (cv * cv) * rng.gamma(1 / (cv * cv));
  }

  // The seconds of one block of a worker's jobs. `compute` has their compute times.
  const LAWS = {
    constant: ({ law }) => fill(() => law.seconds),
    gaussian: ({ law }, rng) => fill(() => Math.max(0, law.mean + law.std * rng.normal())),
    uniform: ({ law }, rng) => fill(() => law.low + (law.high - law.low) * rng.random()),
    exponential: ({ law }, rng) => fill(() => law.shift + law.mean * rng.exponential()),
    gamma: ({ law }, rng) => fill(() => drawGamma(rng, law.mean, law.cv)),
    "gamma-machines": (term, rng, worker) => {
      const { law, memory } = term;
      if (!memory.has(worker)) memory.set(worker, drawGamma(term.machine(worker), law.mean, law.cv_machine));
      return fill(() => drawGamma(rng, memory.get(worker), law.cv_task));
    },
    lognormal: ({ law }, rng) => {
      const variance = Math.log1p(law.cv * law.cv);
      return fill(() => law.mean * Math.exp(-variance / 2 + Math.sqrt(variance) * rng.normal()));
    },
    pareto: ({ law }, rng) => fill(() => law.scale * (1 + Math.expm1(rng.exponential() / law.alpha))),
    power: ({ law }, rng, worker) => fill(() => law.base * (worker + 1) ** law.exponent),
    spikes: ({ law }, rng, worker, compute) => (
      compute.map((seconds) => (law.factor - 1) * seconds * (rng.random() < law.probability ? 1 : 0))),
    "on-off": (term, rng, worker, compute, number) => {
      const { law, memory } = term;
      if (!memory.has(worker)) memory.set(worker, [false]);  // whether the worker is off when a block begins
      const starts = memory.get(worker);
      let states = [];
      for (let block = Math.min(number, starts.length - 1); block <= number; block += 1) {
        const generator = term.generator(worker, block);
        states = [starts[block]];
        for (let job = 0; job < BLOCK; job += 1) {
          const chance = generator.random();
          states.push(states[job] ? chance >= law.recover : chance < law.fail);
        }
        if (block + 1 === starts.length) starts.push(states[BLOCK]);
      }
      return compute.map((seconds, job) => (law.factor - 1) * seconds * (states[job] ? 1 : 0));
    },
  };
  const MULTIPLIES = new Set(["spikes", "on-off"]);

  function chosenWorkers(entry, workers) {
    if (!entry.workers) return Array.from({ length: workers }, (_, worker) => worker);
    const last = Math.max(...entry.workers);
    if (last >= workers) throw new Error(`${entry.name}: worker ${last} does not exist. The workers are 0 to ${workers - 1}.`);
    return [...new Set(entry.workers)].sort((a, b) => a - b);
  }

  // A law as one term of the sum that is a duration.
  class Term {
    constructor(law, index, workers, seed) {
      Object.assign(this, { law, index, seed, memory: new Map() });
      this.affected = new Set(chosenWorkers(law, workers));
      this.multiplies = MULTIPLIES.has(law.name);
    }

    generator(worker, number) { return new Generator(this.seed, `duration-${this.index}`, worker, number); }

    machine(worker) { return new Generator(this.seed, `machine-${this.index}`, worker); }

    block(worker, number, compute) {
      return LAWS[this.law.name](this, this.generator(worker, number), worker, compute, number);
    }
  }

  const add = (a, b) => a.map((value, place) => value + b[place]);

  // Sums over consecutive draws of several blocks: as many of them as there are blocks make a job.
  function sumBatches(blocks) {
    if (blocks.length === 1) return blocks[0];
    const all = blocks.flatMap((block) => [...block]);
    return fill((_, job) => all.slice(job * blocks.length, (job + 1) * blocks.length).reduce((a, b) => a + b));
  }

  // The mean of a block, added up in numpy's order.
  function mean(block) {
    const sums = [0, 1, 2, 3, 4, 5, 6, 7].map((lane) => {
      let sum = block[lane];
      for (let place = lane + 8; place < BLOCK; place += 8) sum += block[place];
      return sum;
    });
    return (((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]))) / BLOCK;
  }

  class Durations {
    constructor({ compute, delay, workers, seed }, batches = null) {
      if (MULTIPLIES.has(compute.name)) throw new Error(`compute=${compute.name} multiplies the compute time. Use it as a delay.`);
      [this.compute, ...this.delays] = [compute, ...delay].map((law, index) => new Term(law, index, workers, seed));
      if (this.compute.affected.size < workers) throw new Error("Some workers have no compute time. Leave the workers of the compute time empty.");
      Object.assign(this, { workers, batches, latest: new Map() });
    }

    // The seconds of compute and of delay of a worker's job.
    parts(worker, launch) {
      const number = Math.floor(launch / BLOCK);
      let block = this.latest.get(worker);
      if (!block || block.number !== number) {
        block = { number, ...this.draw(worker, number) };
        this.latest.set(worker, block);
      }
      const [compute, delay] = [block.compute[launch % BLOCK], block.delay[launch % BLOCK]];
      if (!(compute + delay > 0 && compute + delay < Infinity)) {
        throw new Error(`Worker ${worker}: a job takes ${compute + delay} seconds, which must be positive and finite.`);
      }
      return [compute, delay];
    }

    draw(worker, number) {
      let delay = new Float64Array(BLOCK);
      const count = this.batches ? this.batches[worker] : 1;
      const places = Array.from({ length: count }, (_, place) => number * count + place);
      const drawn = places.map((place) => this.compute.block(worker, place, delay));
      const compute = sumBatches(drawn);
      for (const term of this.delays) {
        if (!term.affected.has(worker)) continue;
        const more = term.multiplies ? sumBatches(places.map((place, at) => term.block(worker, place, drawn[at])))
          : term.block(worker, number, compute);
        delay = add(delay, more);
      }
      return { compute, delay };
    }

    // Each worker's jobs per second, divided by those of the fastest worker.
    relativeSpeeds() {
      const seconds = Array.from({ length: this.workers }, (_, worker) => {
        const { compute, delay } = this.draw(worker, 0);
        return mean(add(compute, delay));
      });
      const fastest = Math.min(...seconds);
      return seconds.map((each) => fastest / each);
    }
  }

  class Network {
    constructor({ link, server_link: serverLink, workers }, bytesUp, bytesDown) {
      const server = serverLink || { latency: 0, up: Infinity, down: Infinity };
      this.isShared = Boolean(serverLink);
      this.down = new Array(workers).fill(0);
      this.up = new Array(workers).fill(0);
      for (const each of link) {
        for (const worker of chosenWorkers(each, workers)) {
          this.down[worker] = each.latency + bytesDown / each.down;
          this.up[worker] = each.latency + bytesUp / each.up;
        }
      }
      Object.assign(this, { latency: server.latency, sending: bytesDown / server.down, receiving: bytesUp / server.up });
      this.downFree = this.upFree = 0;
    }

    sendModel(worker, now) {
      if (!this.isShared) return now + this.down[worker];
      this.downFree = Math.max(now, this.downFree) + this.sending;
      return this.downFree + (this.latency + this.down[worker]);
    }

    sendMessage(worker, now) { return now + this.up[worker]; }

    receiveMessage(now) {
      this.upFree = Math.max(now, this.upFree) + this.receiving;
      return this.upFree + this.latency;
    }
  }

  // A heap of arrays, which are compared from their first number on.
  class Heap {
    constructor() { this.items = []; }

    get first() { return this.items[0]; }

    static isBefore(a, b) {
      for (let place = 0; place < a.length; place += 1) if (a[place] !== b[place]) return a[place] < b[place];
      return false;
    }

    push(item) {
      const { items } = this;
      let place = items.push(item) - 1;
      while (place > 0) {
        const parent = (place - 1) >> 1;
        if (!Heap.isBefore(items[place], items[parent])) break;
        [items[place], items[parent]] = [items[parent], items[place]];
        place = parent;
      }
    }

    pop() {
      const { items } = this;
      const first = items[0];
      const last = items.pop();
      if (items.length) {
        items[0] = last;
        for (let place = 0; ;) {
          let least = place;
          for (const child of [2 * place + 1, 2 * place + 2]) {
            if (child < items.length && Heap.isBefore(items[child], items[least])) least = child;
          }
          if (least === place) break;
          [items[place], items[least]] = [items[least], items[place]];
          place = least;
        }
      }
      return first;
    }
  }

  // Laws of when workers are present: `first`, the time of a switch, and whether a worker leaves for good.
  const exponentialSwitch = (term, worker, number, last, average) => last + average * term.generator(worker, number).exponential();
  const phase = (term, worker) => term.generator(worker, 0).random();
  const CHURN = {
    "exponential-churn": {
      first: () => true,
      time: (term, worker, number, last) => exponentialSwitch(term, worker, number, last, number % 2 ? term.law.down : term.law.up),
      isFinal: ({ law }) => law.down === Infinity,
    },
    preemption: {
      first: () => true,
      time: (term, worker, number, last) => (
        number % 2 ? last + term.law.down : exponentialSwitch(term, worker, number, last, term.law.every)),
      isFinal: ({ law }) => law.down === Infinity,
    },
    diurnal: {
      first: (term, worker) => phase(term, worker) < term.law.share,
      time: (term, worker, number) => {
        const { period, share } = term.law;
        if (share === 0 || share === 1) return Infinity;
        const start = phase(term, worker);
        const place = start < share ? number : number + 1;
        return (Math.floor(place / 2) + (place % 2 ? 1 : share) - start) * period;
      },
      isFinal: ({ law }) => law.share === 0,
    },
    late: { first: () => false, time: ({ law }, worker, number) => (number ? Infinity : law.seconds), isFinal: () => false },
    leave: { first: () => true, time: ({ law }, worker, number) => (number ? Infinity : law.seconds), isFinal: () => true },
  };

  class Churn {
    constructor({ churn, workers, seed }) {
      this.terms = churn.map((law, position) => ({
        law,
        behaviour: CHURN[law.name],
        grace: law.name === "preemption" ? law.warning : law.finish ? Infinity : 0,
        workers: chosenWorkers(law, workers),
        present: new Map(),
        generator: (worker, number) => new Generator(seed, `churn-${position}`, worker, number),
      }));
      this.absences = new Map();
      this.switches = new Heap();
      const gone = new Set();
      this.terms.forEach((term, position) => {
        for (const worker of term.workers) {
          this.set(term, worker, term.behaviour.first(term, worker));
          if (term.behaviour.isFinal(term)) gone.add(worker);
          const time = term.behaviour.time(term, worker, 0, 0);
          if (time < Infinity) this.switches.push([time, worker, position, 0]);
        }
      });
      if (churn.length && gone.size === workers) throw new Error("All workers leave for good. Name the workers that leave, and leave out at least one.");
    }

    get nextTime() { return this.switches.first ? this.switches.first[0] : Infinity; }

    isPresent(worker) { return !this.absences.has(worker); }

    // Perform the next switch; return its time, its worker, and the grace of a worker that leaves (else null).
    switch() {
      const [time, worker, position, number] = this.switches.pop();
      const term = this.terms[position];
      const isPresent = !term.present.get(worker);
      this.set(term, worker, isPresent);
      this.switches.push([term.behaviour.time(term, worker, number + 1, time), worker, position, number + 1]);
      return [time, worker, isPresent ? null : term.grace];
    }

    set(term, worker, isPresent) {
      const before = term.present.get(worker) ?? true;
      term.present.set(worker, isPresent);
      const absences = (this.absences.get(worker) ?? 0) + Number(before) - Number(isPresent);
      if (absences) this.absences.set(worker, absences);
      else this.absences.delete(worker);
    }
  }

  Object.assign(playground, { Durations, Network, Heap, Churn });
})();
