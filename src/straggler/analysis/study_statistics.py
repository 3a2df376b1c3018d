"""Tests behind the verdicts of a study: one number per seed against a band of values."""

import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy import stats

from straggler.analysis.intervals import Array, Interval

LEVEL = 0.05  # of a family of tests
K = TypeVar("K", bound=Hashable)
MOST_SEEDS = 1000  # beyond which `estimate_seeds` gives up


@dataclass(frozen=True)
class Band:
    """The values from `least` to `most`; one of them may be infinite."""

    least: float = -math.inf
    most: float = math.inf

    def contains(self, value: float) -> bool:
        return self.least <= value <= self.most

    def distance(self, value: float) -> float:
        """Return how far a value is from the nearest end."""
        return min(abs(value - end) for end in (self.least, self.most))


def compute_t_test(values: Array, bound: float, above: bool) -> float:
    """Return the one-sided p-value of Student's test that the mean is above (or below) a bound."""
    if math.isinf(bound):
        return 0.0 if (bound < 0) == above else 1.0
    mean = float(values.mean())
    if np.ptp(values) <= 1e-12 * max(1.0, abs(mean)):  # equal values: nothing is left to chance
        return 0.0 if (mean >= bound if above else mean <= bound) else 1.0
    return float(stats.ttest_1samp(values, bound, alternative="greater" if above else "less").pvalue)


def compute_rank_test(values: Array, bound: float, above: bool) -> float:
    """Return the one-sided p-value of Wilcoxon's signed-rank test that the values are above (or below)."""
    if math.isinf(bound):
        return 0.0 if (bound < 0) == above else 1.0
    differences = values - bound
    if not differences.any():
        return 0.5  # no value is on either side
    side = "greater" if above else "less"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ties in few values
        return float(stats.wilcoxon(differences, alternative=side).pvalue)


@dataclass(frozen=True)
class BandTest:
    """Two-sided p-value of the better supported of two statements: the mean is in the band, or outside."""

    p: float
    is_inside: bool


def compare_with_band(values: Array, band: Band, rank: bool = False) -> BandTest:
    """Test on which side of a band's ends the mean is, or, with `rank`, the median."""
    test = compute_rank_test if rank else compute_t_test
    inside = max(test(values, band.least, True), test(values, band.most, False))
    below = 1.0 if math.isinf(band.least) else test(values, band.least, False)
    above = 1.0 if math.isinf(band.most) else test(values, band.most, True)
    outside = min(below, above)
    return BandTest(min(1.0, 2 * min(inside, outside)), inside <= outside)


def compute_equivalence(values: Array, margin: float) -> float:
    """Return the p-value of two one-sided tests that the mean is between −margin and margin."""
    return max(compute_t_test(values, -margin, True), compute_t_test(values, margin, False))


def correct_by_holm(tests: Mapping[K, float]) -> dict[K, float]:
    """Return p-values that keep the level of the whole family (Holm 1979)."""
    found, largest = dict[K, float](), 0.0
    for rank, name in enumerate(sorted(tests, key=lambda name: tests[name])):
        largest = max(largest, min(1.0, (len(tests) - rank) * tests[name]))
        found[name] = largest
    return found


def exact_share(count: int, total: int) -> Interval:
    """Return a percentage with Clopper and Pearson's 95 % interval."""
    low, high = stats.binomtest(count, total).proportion_ci(0.95, method="exact")
    return Interval(100 * count / total, 100 * float(low), 100 * float(high), total, math.inf)


def estimate_seeds(values: Array, band: Band, level: float = LEVEL) -> int | None:
    """Return how many seeds would decide if mean and spread stayed as they are; None for too many."""
    distance, deviation = band.distance(float(values.mean())), float(values.std(ddof=1))
    for seeds in range(len(values), MOST_SEEDS + 1):
        if stats.t.ppf(1 - level / 2, seeds - 1) * deviation < distance * math.sqrt(seeds):
            return seeds
    return None


def predict_interval(values: Array, source_runs: int) -> tuple[float, float]:
    """Return the 95 % interval in which the mean of so many further runs should lie."""
    count = len(values)
    spread = float(values.std(ddof=1)) * math.sqrt(1 / count + 1 / source_runs)
    half = float(stats.t.ppf(0.975, count - 1)) * spread
    return float(values.mean()) - half, float(values.mean()) + half


def smallest_rank_p(seeds: int) -> float:
    """Return the smallest two-sided p-value that the signed-rank test can give."""
    return float(2 ** (1 - seeds))


def as_array(values: Sequence[float]) -> Array:
    return np.asarray(values, dtype=float)
