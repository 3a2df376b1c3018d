"""Time to target: the first evaluation that reaches an accuracy, in seconds of the run's clock."""

import math
from pathlib import Path

import polars as pl
import pytest

from straggler.config.registry import InputError
from straggler.web.targets import (
    MAX_RECORDS,
    find_milestone_time,
    find_milestones,
    parse_target,
    read_milestones,
)

ACCURACIES = [10.0, 55.0, 40.0, 81.0, 79.0, None, 92.0]
CURVE = pl.DataFrame({"seconds": [float(n) for n in range(7)], "test_accuracy": ACCURACIES})


@pytest.mark.parametrize("target", [5, 10, 54.9, 55, 55.1, 80, 81, 92, 92.5])
def test_time_to_target_is_that_of_the_first_evaluation_that_reaches_it(target: float) -> None:
    reached = [n for n, value in enumerate(ACCURACIES) if value is not None and value >= target]
    assert find_milestone_time(find_milestones(CURVE), target) == (float(reached[0]) if reached else None)


def test_curves_without_accuracy_have_no_milestones() -> None:
    for curve in (pl.DataFrame(), CURVE.drop("test_accuracy"), CURVE.with_columns(test_accuracy=pl.lit("x"))):
        assert find_milestones(curve) == ()


def test_long_curves_keep_few_milestones_and_always_the_best(tmp_path: Path) -> None:
    for count in (1, MAX_RECORDS, MAX_RECORDS + 1, 10_000):
        accuracies = [100 * (n + 1) / count for n in range(count)]
        curve = pl.DataFrame({"seconds": [float(n) for n in range(count)], "test_accuracy": accuracies})
        (folder := tmp_path / str(count)).mkdir()
        (folder / "experiment.toml").write_text("")
        curve.write_parquet(folder / "curve.parquet")
        kept = read_milestones(folder, ())
        assert len(kept) <= MAX_RECORDS + 1
        assert kept[-1] == (100.0, count - 1.0)
        assert set(kept) <= set(find_milestones(curve))


@pytest.mark.parametrize("text", ["0", "-1", "101", "x", "nan", "inf", "1e999"])
def test_invalid_targets_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="from 0 to 100"):
        parse_target(text)
    assert math.isclose(parse_target(None), 80) and math.isclose(parse_target("99.5"), 99.5)
