"""Clusters of many sizes under several methods: speed-ups over one worker, and how long batches take."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from straggler.algorithms.methods import METHODS
from straggler.algorithms.policies import (
    POLICIES,
    Hybrid,
    KAsync,
    KBatchAsync,
    KBatchSync,
    KSync,
    Synchronous,
)
from straggler.config.registry import InputError, parse_call, parse_entry, suggest_name
from straggler.core import Policy
from straggler.timing import Durations, Law
from straggler.timing.throughput import Throughput, measure_throughput

MACHINES = 20_000  # for densities: so many blocks of jobs, of a machine each if there are as many


def policy_of(text: str, workers: int) -> Policy:
    """A method's policy, or a policy; `50%` in it is that share of the workers, rounded, at least 1."""

    def share(match: re.Match[str]) -> str:
        return str(max(1, round(float(match[1]) * workers / 100)))

    try:
        name = parse_call(text.replace("%", ""))[0]
        if text == name and name in METHODS:
            text = METHODS[name].policy
        elif name not in POLICIES:
            raise ValueError(
                f"unknown method or policy {name!r}; {suggest_name(name, [*METHODS, *POLICIES])}"
            )
        policy = parse_entry(re.sub(r"([\d.]+)%", share, text), POLICIES)
        policy.check(workers)
    except ValueError as error:
        raise InputError(f"--method {text!r}: {error}") from None
    return policy


@dataclass(frozen=True)
class Repetition:
    """A method on a cluster with one seed's machines and durations, until so many gradients are used."""

    method: str
    compute: Law
    workers: int
    gradients: int  # by all workers together, or a few more to end with a step
    seed: int
    delays: tuple[Law, ...] = ()

    @property
    def id(self) -> str:
        """A short hash of everything that determines it."""
        laws = [law.identity() for law in (self.compute, *self.delays)]
        told = [self.method, laws, self.workers, self.gradients, self.seed]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]

    def measure(self) -> Throughput:
        policy = policy_of(self.method, self.workers)
        updates = -(-self.gradients // used_by_a_step(policy, self.workers))
        return measure_throughput(
            policy, Durations(self.compute, self.delays, self.workers, self.seed), updates
        )


def speedups(
    methods: Sequence[str],
    computes: Sequence[Law],
    delays: Sequence[Law],
    workers: Sequence[int],
    gradients: int,
    seeds: Sequence[int],
    unit: float | None = None,
    progress: Callable[[float, str], None] = lambda done, what: None,
) -> pl.DataFrame:
    """Gradients used per `unit` of seconds: a row per cluster, method, size and seed.

    Without a unit it is the mean time of a batch, over the workers and seeds of the largest cluster.
    """
    rows, whole = list[dict[str, object]](), len(computes) * len(workers) * len(methods) * len(seeds)
    for compute in computes:
        seconds = unit or mean_seconds(compute, delays, max(workers), seeds)
        for size in workers:
            for method in methods:
                for seed in seeds:
                    progress(len(rows) / whole, f"{method} × {size:,}")
                    seen = Repetition(method, compute, size, gradients, seed, tuple(delays)).measure()
                    facts = {"cluster": str(compute), "method": method, "workers": size, "seed": seed}
                    speed = seen.applied * seconds / seen.seconds
                    rows.append(facts | {"speedup": speed, "unit": seconds} | vars(seen))
    return pl.DataFrame(rows)


def used_by_a_step(policy: Policy, workers: int) -> int:
    """How many gradients the policy makes a step of."""
    match policy:
        case Synchronous():
            return workers
        case Hybrid(num_workers_ps_update=k) | KSync(k=k) | KBatchSync(k=k) | KAsync(k=k) | KBatchAsync(k=k):
            return int(k)
    return 1


def mean_seconds(compute: Law, delays: Sequence[Law], workers: int, seeds: Sequence[int]) -> float:
    """What a batch takes: the mean over the first jobs of every worker and seed."""
    clusters = [Durations(compute, delays, workers, seed) for seed in seeds]
    return float(np.mean([cluster.block(worker, 0) for cluster in clusters for worker in range(workers)]))


def densities(
    computes: Sequence[Law], delays: Sequence[Law], seed: int, workers: int = MACHINES
) -> pl.DataFrame:
    """Seconds of many batches, as many of each machine: a row per cluster and batch."""
    frames = []
    for compute in computes:
        cluster = Durations(compute, delays, workers, seed)
        turns = range(max(1, MACHINES // workers))
        seconds = np.concatenate([cluster.block(worker, turn) for worker in range(workers) for turn in turns])
        frames.append(pl.DataFrame({"cluster": [str(compute)] * len(seconds), "seconds": seconds}))
    return pl.concat(frames)
