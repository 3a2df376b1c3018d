"""The committed results of Gap-Aware's figure 12 agree with the code and with closed forms."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from rich.console import Console
from scipy import special, stats

from straggler.reproduction import load_study
from straggler.reproduction.papers.gap_aware.study import SPEED_METHODS, SPEED_WORKERS
from straggler.sweeps.pool import LocalPool
from straggler.sweeps.runner import plan_sweep, run_plan
from straggler.sweeps.summaries import read_summaries
from straggler.timing import Durations
from straggler.timing.clusters import Repetition

RESULTS = Path(__file__).parents[2] / "results" / "gap-aware"
KINDS = ("homogeneous", "heterogeneous")
GRADIENTS, SEEDS, CV = 100_000, 20, 0.1
GAP_AWARE = load_study("gap-aware")
CELLS = {tuple(cell.labels.values())[1:]: cell for cell in GAP_AWARE.select_cells("default", ["12"])}
ROWS = read_summaries(RESULTS).filter(pl.col("table") == "12")


def repetition(kind: str, method: str, workers: int, seed: int) -> Repetition:
    found = CELLS[kind, method, workers].experiment(seed)
    assert isinstance(found, Repetition)
    return found


def committed(kind: str, method: str, workers: int) -> list[float]:
    at = {"protocol": kind, "method": method, "workers": workers}
    return ROWS.filter(**at).sort("seed")["value"].to_list()


def machines(kind: str, workers: int, seed: int) -> NDArray[np.float64]:
    """Return the mean batch time of each worker."""
    if kind == "homogeneous":
        return np.ones(workers)
    durations = Durations(repetition(kind, "asgd", workers, seed).compute, (), workers, seed)
    for worker in range(workers):
        durations.block(worker, 0)
    return np.array([durations.compute.memory[worker] for worker in range(workers)])


def mean_of_the_kth(means: NDArray[np.float64], k: int) -> float:
    """E[X₍ₖ₎] = ∫ P(fewer than k by x) dx of gammas with these means: the count is Poisson-binomial."""
    shape, x = 1 / CV**2, np.linspace(0, 1.6 * means.max(), 250)
    counts = np.zeros((k + 1, x.size))  # by how many of the workers so far; k stands for k and more
    counts[0] = 1
    for mean in means:
        by = special.gammainc(shape, shape * x / mean)
        moved = counts * by
        counts -= moved
        counts[1:] += moved[:-1]
        counts[k] += moved[k]
    return float(np.trapezoid(1 - counts[k], x))


def expected(kind: str, method: str, workers: int, seed: int) -> float:
    """Return the gradients per second of these machines."""
    means = machines(kind, workers, seed)
    if method == "asgd":  # renewal: by T a worker has delivered T/mean − (1 − cv²)/2 on average
        return GRADIENTS * float(np.sum(1 / means)) / (GRADIENTS + workers * (1 - CV**2) / 2)
    k = workers if method == "ssgd" else max(1, round(0.9 * workers))
    return k / mean_of_the_kth(means, k)


def spread(method: str, workers: int) -> float:
    """Return a bound of the relative error of the speed: a round varies no more than a batch."""
    independent = GRADIENTS if method == "asgd" else math.ceil(GRADIENTS / workers)
    return CV / math.sqrt(independent)


@pytest.mark.slow
@pytest.mark.parametrize("method", SPEED_METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_size_matches_the_closed_form(kind: str, method: str) -> None:
    for workers in SPEED_WORKERS:
        found = committed(kind, method, workers)
        assert len(found) == SEEDS
        tolerance = 5 * spread(method, workers)
        for seed in (0, SEEDS - 1) if workers <= 128 or method == "asgd" else (1,):
            assert found[seed] == pytest.approx(expected(kind, method, workers, seed), rel=tolerance)


def test_with_many_machines_asynchronous_speed_is_the_mean_of_one_over_a_gamma() -> None:
    """E[1/X] = 1/(1 − cv²) of a gamma of mean 1: the speed of machines that differ is above their number."""
    found = stats.ttest_1samp(np.array(committed("heterogeneous", "asgd", 1024)) / 1018.84, 1 / (1 - 0.6**2))
    assert found.pvalue > 0.01


@pytest.mark.parametrize("method", SPEED_METHODS)
def test_the_code_reproduces_the_committed_rows(method: str) -> None:
    row = ROWS.filter(protocol="heterogeneous", method=method, workers=1024, seed=7).row(0, named=True)
    mine = repetition("heterogeneous", method, 1024, 7)
    seen = mine.measure()
    assert (row["id"], row["updates"]) == (mine.id, seen.updates) and seen.applied >= GRADIENTS
    assert row["seconds"] == pytest.approx(seen.seconds, rel=1e-9)
    assert row["value"] == pytest.approx(seen.applied / seen.seconds, rel=1e-9)


def test_committed_cells_are_not_computed_again(tmp_path: Path) -> None:
    cells = GAP_AWARE.select_cells("default", ["12"])
    plan = plan_sweep("x", cells, range(3), LocalPool(1, tmp_path), RESULTS)
    assert (plan.runs, plan.cached) == ([], len(cells) * SEEDS)


@pytest.mark.slow
def test_missing_cells_are_computed_on_all_cores(tmp_path: Path) -> None:
    chosen = GAP_AWARE.select_cells("default", ["12"], only=["protocol=homogeneous", "workers=32"])
    cells = [replace(cell, seeds=2) for cell in chosen]
    pool = LocalPool(2, tmp_path / "runs")
    plan = plan_sweep("x", cells, [0], pool, tmp_path)
    assert len(plan.missing) == len(plan.runs) == 6
    assert run_plan(plan, Console(quiet=True)) == {}
    for method in SPEED_METHODS:
        again = (
            read_summaries(tmp_path).filter(protocol="homogeneous", method=method, workers=32).sort("seed")
        )
        assert again["value"].to_list() == pytest.approx(committed("homogeneous", method, 32)[:2], rel=1e-9)
    assert not (tmp_path / "runs").exists()
    assert plan_sweep("x", cells, [0], pool, tmp_path).runs == []


def test_a_rehearsal_of_figure_12_has_a_few_unchanged_cells() -> None:
    cells = GAP_AWARE.select_cells("default", ["12"], quick=True)
    assert len(cells) <= 12 and all(cell.experiment(0).workers <= 8 for cell in cells)
