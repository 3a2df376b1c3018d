"""Speed-ups of methods over one worker on clusters of many sizes, and the distribution of batch times."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from straggler.algorithms.methods import METHODS
from straggler.algorithms.policies import POLICIES
from straggler.config.imports import is_import_string
from straggler.config.registry import InputError, parse_call, parse_entry, suggest_name
from straggler.core import Policy
from straggler.timing.durations import Durations
from straggler.timing.laws import Law
from straggler.timing.throughput import Throughput, measure_throughput

MACHINES = 20_000  # blocks of jobs sampled for densities, from different machines if there are enough


def parse_policy(text: str, workers: int) -> Policy:
    """Return the policy of a method or policy text. `50%` means that share of the workers, at least 1."""

    def share(match: re.Match[str]) -> str:
        return str(max(1, round(float(match[1]) * workers / 100)))

    try:
        name = parse_call(text.replace("%", ""))[0]
        if text == name and name in METHODS:
            text = METHODS[name].policy
        elif name not in POLICIES and not is_import_string(name):
            raise ValueError(
                f"Unknown method or policy {name!r}. {suggest_name(name, [*METHODS, *POLICIES])}"
            )
        policy = parse_entry(re.sub(r"([\d.]+)%", share, text), POLICIES)
        policy.check(workers)
        policy.gradients_per_step(workers)
    except ValueError as error:
        raise InputError(f"--method {text!r}: {error}") from None
    return policy


@dataclass(frozen=True)
class Repetition:
    """One measurement: a method on a cluster with one seed, until a number of gradients is used."""

    method: str
    compute: Law
    workers: int
    gradients: int  # of all workers together; a few more are used if the last step needs them
    seed: int
    delays: tuple[Law, ...] = ()

    @property
    def id(self) -> str:
        """Return a short hash of all settings."""
        laws = [law.identity() for law in (self.compute, *self.delays)]
        settings = [self.method, laws, self.workers, self.gradients, self.seed]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]

    def measure(self) -> Throughput:
        """Run the simulation and return its throughput."""
        policy = parse_policy(self.method, self.workers)
        updates = -(-self.gradients // policy.gradients_per_step(self.workers))
        durations = Durations(self.compute, self.delays, self.workers, self.seed)
        return measure_throughput(policy, durations, updates)


def measure_speedups(
    methods: Sequence[str],
    computes: Sequence[Law],
    delays: Sequence[Law],
    workers: Sequence[int],
    gradients: int,
    seeds: Sequence[int],
    unit: float | None = None,
    progress: Callable[[float, str], None] = lambda done, label: None,
) -> pl.DataFrame:
    """Return the number of gradients used per `unit` seconds: a row per cluster, method, size and seed.

    By default the unit is the mean time of a batch over the workers and seeds of the largest cluster.
    """
    rows, total = list[dict[str, object]](), len(computes) * len(workers) * len(methods) * len(seeds)
    for compute in computes:
        seconds = unit or mean_batch_seconds(compute, delays, max(workers), seeds)
        for size in workers:
            for method in methods:
                for seed in seeds:
                    progress(len(rows) / total, f"{method} × {size:,}")
                    measured = Repetition(method, compute, size, gradients, seed, tuple(delays)).measure()
                    labels = {"cluster": str(compute), "method": method, "workers": size, "seed": seed}
                    speedup = measured.applied * seconds / measured.seconds
                    rows.append(labels | {"speedup": speedup, "unit": seconds} | vars(measured))
    return pl.DataFrame(rows)


def mean_batch_seconds(compute: Law, delays: Sequence[Law], workers: int, seeds: Sequence[int]) -> float:
    """Return the mean time of a batch, over the first jobs of all workers and seeds."""
    clusters = [Durations(compute, delays, workers, seed) for seed in seeds]
    return float(np.mean([cluster.block(worker, 0) for cluster in clusters for worker in range(workers)]))


def sample_batch_seconds(
    computes: Sequence[Law], delays: Sequence[Law], seed: int, workers: int = MACHINES
) -> pl.DataFrame:
    """Return the times of many batches, equally many of each machine: a row per cluster and batch."""
    frames = []
    for compute in computes:
        cluster = Durations(compute, delays, workers, seed)
        blocks = range(max(1, MACHINES // workers))
        seconds = np.concatenate(
            [cluster.block(worker, each) for worker in range(workers) for each in blocks]
        )
        frames.append(pl.DataFrame({"cluster": [str(compute)] * len(seconds), "seconds": seconds}))
    return pl.concat(frames)
