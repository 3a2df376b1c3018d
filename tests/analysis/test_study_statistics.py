"""Tests behind verdicts: they agree with intervals, keep their level, and never promise the impossible."""

import math

import numpy as np
import pytest
from scipy import stats

from straggler.analysis.intervals import mean_interval
from straggler.analysis.study_statistics import (
    LEVEL,
    Band,
    as_array,
    compare_with_band,
    compute_equivalence,
    correct_by_holm,
    estimate_seeds,
    exact_share,
    predict_interval,
    smallest_rank_p,
)

BANDS = [Band(0.0), Band(most=0.0), Band(-1.0, 1.0), Band(0.5, 3.0)]


@pytest.mark.parametrize("band", BANDS)
def test_one_claim_is_decided_exactly_where_its_interval_decides(band: Band) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        values = rng.normal(rng.uniform(-3, 4), rng.uniform(0.1, 3), rng.integers(3, 8))
        interval, test = mean_interval(values), compare_with_band(values, band)
        inside = band.least <= interval.low and interval.high <= band.most
        outside = interval.high < band.least or interval.low > band.most
        assert (test.p <= LEVEL) == (inside or outside)
        assert not (inside or outside) or test.is_inside == inside


def test_equal_values_need_no_chance() -> None:
    for value, inside in ((0.0, True), (1.0, True), (-1.0, False)):
        test = compare_with_band(as_array([value] * 3), Band(0.0))
        assert (test.p, test.is_inside) == (0.0, inside)
    assert compute_equivalence(as_array([0.0, 0.0, 0.0]), 0.5) == 0


def test_equivalence_needs_the_90_percent_interval_within_the_margin() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        values = rng.normal(rng.uniform(-1, 1), 0.5, 6)
        half = stats.t.ppf(0.95, 5) * values.std(ddof=1) / math.sqrt(6)
        within = abs(values.mean()) + half <= 1
        assert (compute_equivalence(values, 1.0) <= LEVEL) == within


def test_holm_is_between_no_correction_and_bonferroni() -> None:
    tests = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.9}
    found = correct_by_holm(tests)
    assert found == pytest.approx({"a": 0.04, "c": 0.09, "b": 0.09, "d": 0.9})
    assert all(p <= found[name] <= min(1, 4 * p) for name, p in tests.items())
    assert correct_by_holm({"a": 0.03}) == {"a": 0.03} and correct_by_holm({}) == {}


def test_holm_keeps_the_level_of_a_family() -> None:
    """Ten claims at the bound, thousand times: at least one of them is decided in at most 5 % of cases."""
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(400):
        tests = {n: compare_with_band(rng.normal(0, 1, 5), Band(0.0)).p for n in range(10)}
        wrong += min(correct_by_holm(tests).values()) <= LEVEL
    assert wrong / 400 < 0.09


@pytest.mark.parametrize("total", [1, 3, 18, 48])
def test_exact_intervals_stay_within_0_and_100(total: int) -> None:
    for count in range(total + 1):
        found = exact_share(count, total)
        assert 0 <= found.low <= found.mean <= found.high <= 100
    assert exact_share(total, total).low == pytest.approx(100 * 0.025 ** (1 / total))
    assert exact_share(0, total).low == 0


def test_rank_test_cannot_decide_with_five_seeds() -> None:
    values = as_array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert compare_with_band(values, Band(0.0), rank=True).p == pytest.approx(smallest_rank_p(5))
    assert smallest_rank_p(5) > LEVEL >= smallest_rank_p(6)
    assert compare_with_band(as_array([0.0, 0.0, 0.0]), Band(0.0), rank=True).p == 1


def test_estimated_seeds_would_decide() -> None:
    values = as_array([0.5, -0.4, 1.1])
    needed = estimate_seeds(values, Band(0.0))
    assert needed is not None and needed > 3
    deviation = values.std(ddof=1)
    half = stats.t.ppf(0.975, needed - 1) * deviation / math.sqrt(needed)
    assert half < values.mean()
    assert estimate_seeds(as_array([1.0, -1.0, 0.0]), Band(0.0)) is None, "the mean is at the bound"


def test_prediction_intervals_cover_new_runs() -> None:
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(1500):
        values, new = rng.normal(80, 2, 4), rng.normal(80, 2)
        low, high = predict_interval(values, 1)
        inside += low <= new <= high
    assert inside / 1500 == pytest.approx(0.95, abs=0.02)
