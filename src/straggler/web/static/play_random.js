// numpy's random generators: an address gives the same draws as `addressed_rng` in Python, bit for bit.
"use strict";
globalThis.playground = globalThis.playground || {};

(() => {
  const MASK64 = (1n << 64n) - 1n;
  const MASK128 = (1n << 128n) - 1n;
  const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;
  const MASK52 = (1n << 52n) - 1n;

  const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
    let value = byte;
    for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
    return value >>> 0;
  });

  function crc32(text) {
    let crc = 0xffffffff;
    for (const byte of new TextEncoder().encode(text)) crc = CRC_TABLE[(crc ^ byte) & 255] ^ (crc >>> 8);
    return (crc ^ 0xffffffff) >>> 0;
  }

  // numpy.random.SeedSequence(numbers).generate_state(8, uint32), for up to four numbers.
  function seedWords(numbers) {
    let constant = 0x43b0d7e5;
    const scramble = (number) => {
      let value = number ^ constant;
      constant = Math.imul(constant, 0x931e8875);
      value = Math.imul(value, constant);
      return value ^ (value >>> 16);
    };
    const mix = (x, y) => {
      const value = Math.imul(0xca01f9dd, x) - Math.imul(0x4973f715, y);
      return value ^ (value >>> 16);
    };
    const pool = [0, 1, 2, 3].map((place) => scramble(numbers[place] ?? 0));
    for (let from = 0; from < 4; from += 1) {
      for (let to = 0; to < 4; to += 1) if (from !== to) pool[to] = mix(pool[to], scramble(pool[from]));
    }
    constant = 0x8b51f9dd;
    return Array.from({ length: 8 }, (_, place) => {
      let value = pool[place % 4] ^ constant;
      constant = Math.imul(constant, 0x58f38ded);
      value = Math.imul(value, constant);
      return (value ^ (value >>> 16)) >>> 0;
    });
  }

  // Tables of the ziggurat method. The widths are numpy's own (web/ziggurat.py); the rest follows from them.
  let normalTable = null;
  let exponentialTable = null;

  function useTables({ normal, exponential }) {
    const build = (widths, bits, density, area) => {
      const edges = widths.map((width) => width * 2 ** bits);
      const limits = edges.map((edge, place) => (place > 1 ? Math.floor((edges[place - 1] / edge) * 2 ** bits) : 0));
      limits[0] = Math.floor((edges[255] / edges[0]) * 2 ** bits);
      return { widths, limits, heights: edges.map((edge, place) => (place ? density(edge) : 1)), last: area };
    };
    normalTable = build(normal, 52, (x) => Math.exp(-0.5 * x * x), 3.6541528853610088);
    exponentialTable = build(exponential, 53, (x) => Math.exp(-x), 7.69711747013104972);
  }

  // numpy.random.Generator(PCG64(SeedSequence((seed, crc32(stream), worker, index)))).
  class Generator {
    constructor(seed, stream, worker = 0, index = 0) {
      const words = seedWords([seed, crc32(stream), worker, index]).map(BigInt);
      const [a, b, c, d] = [0, 2, 4, 6].map((place) => words[place] | (words[place + 1] << 32n));
      this.increment = ((((c << 64n) | d) << 1n) | 1n) & MASK128;
      this.state = (this.increment + ((a << 64n) | b)) & MASK128;
      this.step();
    }

    step() {
      this.state = (this.state * MULTIPLIER + this.increment) & MASK128;
    }

    bits() {
      this.step();
      const high = this.state >> 64n;
      const value = high ^ (this.state & MASK64);
      const turn = high >> 58n;
      return turn ? ((value >> turn) | (value << (64n - turn))) & MASK64 : value;
    }

    random() {
      return Number(this.bits() >> 11n) * 2 ** -53;
    }

    exponential() {
      for (;;) {
        const bits = this.bits() >> 3n;
        const layer = Number(bits & 255n);
        const place = Number(bits >> 8n);
        const x = place * exponentialTable.widths[layer];
        if (place < exponentialTable.limits[layer]) return x;
        if (layer === 0) return exponentialTable.last - Math.log1p(-this.random());
        const [below, above] = [exponentialTable.heights[layer], exponentialTable.heights[layer - 1]];
        if ((above - below) * this.random() + below < Math.exp(-x)) return x;
      }
    }

    normal() {
      for (;;) {
        const bits = this.bits();
        const layer = Number(bits & 255n);
        const place = Number((bits >> 9n) & MASK52);
        const size = place * normalTable.widths[layer];
        const x = (bits >> 8n) & 1n ? -size : size;
        if (place < normalTable.limits[layer]) return x;
        if (layer === 0) {
          for (;;) {
            const tail = -Math.log1p(-this.random()) * (1 / normalTable.last);
            const test = -Math.log1p(-this.random());
            if (test + test > tail * tail) {
              const far = normalTable.last + tail;
              return (bits >> 17n) & 1n ? -far : far;
            }
          }
        }
        const [below, above] = [normalTable.heights[layer], normalTable.heights[layer - 1]];
        if ((above - below) * this.random() + below < Math.exp(-0.5 * x * x)) return x;
      }
    }

    // A gamma of this shape and scale 1 (Marsaglia and Tsang; Ahrens and Dieter below 1).
    gamma(shape) {
      if (shape === 1) return this.exponential();
      if (shape === 0) return 0;
      if (shape < 1) {
        for (;;) {
          const u = this.random();
          const v = this.exponential();
          if (u <= 1 - shape) {
            const x = u ** (1 / shape);
            if (x <= v) return x;
          } else {
            const y = -Math.log((1 - u) / shape);
            const x = (1 - shape + shape * y) ** (1 / shape);
            if (x <= v + y) return x;
          }
        }
      }
      const b = shape - 1 / 3;
      const c = 1 / Math.sqrt(9 * b);
      for (;;) {
        let x;
        let v;
        do {
          x = this.normal();
          v = 1 + c * x;
        } while (v <= 0);
        v = v * v * v;
        const u = this.random();
        if (u < 1 - 0.0331 * (x * x) * (x * x)) return b * v;
        if (Math.log(u) < 0.5 * x * x + b * (1 - v + Math.log(v))) return b * v;
      }
    }
  }

  Object.assign(playground, { Generator, useTables });
})();
