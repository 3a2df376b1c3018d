"""Confidence intervals: Student's t over seeds, Wilson's for shares."""

import math

import numpy as np
import pytest

from straggler.analysis.intervals import error_bars, format_interval, mean_interval, share_interval


def test_interval_in_words() -> None:
    assert mean_interval([1.0]).low == -math.inf and str(mean_interval([1.0])) == "1.00"
    assert str(mean_interval([1.0, 2.0, 3.0])) == "2.00 ± 2.48"
    assert str(mean_interval([1.25, 1.2505, 1.2495])) == "1.250 ± 0.001"
    assert str(mean_interval([10.0, 20.0])) == "15.00", "no interval below three seeds"
    assert str(mean_interval([2.0, 2.0, 2.0])) == "2.00"
    assert format_interval([10.0, 20.0]) == "15.00" and "±" in format_interval([10.0, 20.0, 30.0])


def test_interval_is_clipped_to_possible_values() -> None:
    wide = mean_interval([1.0, 50.0, 99.0])
    assert wide.low < 0 and wide.high > 100
    assert (wide.clip(0, 100).low, wide.clip(0, 100).high) == (0, 100)
    assert mean_interval([5.0]).clip(0, 100).low == -math.inf, "nothing is known of one seed"


def test_bars_are_drawn_from_three_seeds_on() -> None:
    lengths = error_bars([mean_interval([10.0, 20.0]), mean_interval([10.0, 20.0, 30.0])], highest=100)
    assert math.isnan(lengths[0][0]) and 0 < lengths[0][1] <= 20


def test_intervals_follow_students_distribution() -> None:
    found = mean_interval([1.0, 2.0, 3.0])
    assert found.mean == 2 and found.half == pytest.approx(4.302653 / np.sqrt(3))
    single = mean_interval([5.0])
    assert single.mean == 5 and np.isinf(single.half) and not single.is_shown
    assert np.isnan(mean_interval([]).mean)
    assert format_interval([1.0, 1.0, 1.0], 1) == "1.0 ± 0.0"
    assert format_interval([5.0]) == "5.00"


def test_intervals_cover_the_true_mean_in_95_percent_of_cases() -> None:
    draws = np.random.default_rng(1).standard_normal((4000, 5))
    covered = [abs(found.mean) <= found.half for found in map(mean_interval, draws)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)


def test_intervals_of_shares_follow_wilson() -> None:
    low, high = share_interval(50.0, 100)
    assert (low, high) == (pytest.approx(40.383, abs=1e-3), pytest.approx(59.617, abs=1e-3))
    assert share_interval(100.0, 50)[1] == pytest.approx(100.0)
    assert share_interval(0.0, 50)[0] == pytest.approx(0.0)
