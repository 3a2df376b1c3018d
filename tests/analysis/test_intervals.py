"""Confidence intervals: Student's t over seeds, Wilson's for shares."""

import numpy as np
import pytest

from straggler.analysis.intervals import format_interval, mean_interval, share_interval


def test_intervals_follow_students_distribution() -> None:
    found = mean_interval([1.0, 2.0, 3.0])
    assert found.mean == 2 and found.half == pytest.approx(4.302653 / np.sqrt(3))
    single = mean_interval([5.0])
    assert single.mean == 5 and np.isinf(single.half) and single.bar == 0
    assert np.isnan(mean_interval([]).mean)
    assert format_interval([1.0, 1.0, 1.0], 1) == "1.0 ± 0.0"
    assert format_interval([5.0]) == "5.00" and format_interval([1.0, 2.0], 1) == "1.5 (1.0, 2.0)"


def test_intervals_cover_the_true_mean_in_95_percent_of_cases() -> None:
    draws = np.random.default_rng(1).standard_normal((4000, 5))
    covered = [abs(found.mean) <= found.half for found in map(mean_interval, draws)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)


def test_intervals_of_shares_follow_wilson() -> None:
    low, high = share_interval(50.0, 100)
    assert (low, high) == (pytest.approx(40.383, abs=1e-3), pytest.approx(59.617, abs=1e-3))
    assert share_interval(100.0, 50)[1] == pytest.approx(100.0)
    assert share_interval(0.0, 50)[0] == pytest.approx(0.0)
