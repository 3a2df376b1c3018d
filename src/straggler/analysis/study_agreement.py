"""How well our numbers agree with the source's, cell by cell."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from straggler.analysis.intervals import FEWEST_SEEDS
from straggler.analysis.study_statistics import predict_interval
from straggler.analysis.study_tables import CHANCE

HEADS = (
    "cells of",
    "cells",
    "with an interval",
    "inside",
    "median difference",
    "median absolute difference",
    "lost in the source",
    "of these, ours lost",
)


@dataclass(frozen=True)
class Agreement:
    """How far our means are from the source's numbers in some cells."""

    name: str
    differences: tuple[float, ...]  # ours minus the source's, where runs of both converged
    intervals: int  # cells with three converged seeds or more, which have a prediction interval
    inside: int  # of them, cells whose source number is in the interval
    lost: int  # cells whose run did not converge in the source
    lost_runs: tuple[int, int]  # our runs of these cells that did not converge, and all of them

    @property
    def sentence(self) -> str:
        median = f"median difference {statistics.median(self.differences):+.2f}"
        if not self.intervals:
            return f"*{self.name}*: {median}"
        share = 100 * self.inside / self.intervals
        inside = f"{self.inside} of {self.intervals} cells ({share:.0f} %) inside the prediction interval"
        return f"*{self.name}*: {inside}, {median}"

    def row(self) -> list[str]:
        medians = statistics.median(self.differences), statistics.median(map(abs, self.differences))
        inside = f"{self.inside} ({100 * self.inside / self.intervals:.0f} %)" if self.intervals else "–"
        lost = "{} of {} runs".format(*self.lost_runs) if self.lost else "–"
        counts = str(len(self.differences)), str(self.intervals)
        return [self.name, *counts, inside, f"{medians[0]:+.2f}", f"{medians[1]:.2f}", str(self.lost), lost]


def measure_agreement(runs: pl.DataFrame, source_runs: int, by: Sequence[str] = ()) -> list[Agreement]:
    """Compare the cells that have a number of the source, for each protocol and the values of some labels.

    A source number near chance is a run that did not converge.
    """
    compared = runs.filter(pl.col("source").is_not_null() & pl.col("value").is_not_null())
    found = []
    for key, mine in compared.group_by("protocol", *by, maintain_order=True):
        differences, intervals, inside, lost, ours = list[float](), 0, 0, 0, [0, 0]
        for _, cell in mine.group_by("table", "row", "column", maintain_order=True):
            source, values = cell["source"][0], cell.filter("converged")["value"].to_numpy()
            if source <= CHANCE and "accuracy" in cell["metric"][0]:
                lost += 1
                ours = [ours[0] + len(cell) - len(values), ours[1] + len(cell)]
                continue
            if len(values):
                differences.append(float(values.mean()) - source)
            if len(values) >= FEWEST_SEEDS:
                low, high = predict_interval(values, source_runs)
                intervals, inside = intervals + 1, inside + (low <= source <= high)
        if differences:
            name = ", ".join(
                [str(key[0]), *(f"{label}={value}" for label, value in zip(by, key[1:], strict=True))]
            )
            found.append(Agreement(name, tuple(differences), intervals, inside, lost, (ours[0], ours[1])))
    return found
