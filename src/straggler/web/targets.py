"""Time to target: the seconds until an evaluation of a run first reached a test accuracy."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from straggler.config.registry import InputError
from straggler.web.run_facts import READ_ERRORS, RunFacts

DEFAULT_TARGET = 80.0  # percent
MAX_RECORDS = 200  # milestones of one run that are kept in memory; the last is always kept
Milestones = tuple[tuple[float, float], ...]  # accuracy and seconds


def parse_target(text: str | None) -> float:
    """Return a test accuracy in percent."""
    try:
        target = float(text or DEFAULT_TARGET)
    except ValueError:
        target = -1.0
    if not 0 < target <= 100:
        raise InputError(f"The target must be a test accuracy from 0 to 100 %, got {str(text)[:40]!r}.")
    return target


@lru_cache(20_000)
def read_milestones(folder: Path, stamp: tuple[Any, ...]) -> Milestones:
    """Return the milestones of a run, at most MAX_RECORDS; `stamp` changes with the file."""
    try:
        best = find_milestones(RunFacts(folder).curve)
    except READ_ERRORS:
        return ()
    step = -(-max(1, len(best)) // MAX_RECORDS)
    return best[:-1:step] + best[-1:]


def find_milestones(curve: pl.DataFrame) -> Milestones:
    """Return the evaluations of a curve that were the best so far."""
    if not {"seconds", "test_accuracy"} <= set(curve.columns):
        return ()
    points = curve.select(pl.col("test_accuracy", "seconds").cast(pl.Float64, strict=False)).drop_nulls()
    before = pl.col("test_accuracy").cum_max().shift(1)
    return tuple(points.filter(before.is_null() | (pl.col("test_accuracy") > before)).rows())


def find_milestone_time(milestones: Milestones, target: float) -> float | None:
    """Return the seconds of the first evaluation that reached a test accuracy."""
    return next((seconds for accuracy, seconds in milestones if accuracy >= target), None)
