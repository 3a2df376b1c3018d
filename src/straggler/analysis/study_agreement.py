"""How well our numbers agree with the source's, cell by cell."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from straggler.analysis.intervals import FEWEST_SEEDS
from straggler.analysis.study_statistics import as_array, predict_interval
from straggler.analysis.study_tables import CHANCE

HEADS = (
    "protocol",
    "cells",
    "inside",
    "median difference",
    "median absolute difference",
    "lost in the source",
    "of these, ours lost",
)


@dataclass(frozen=True)
class Agreement:
    """The cells of one protocol that have a number of the source and at least three converged seeds."""

    protocol: str
    differences: tuple[float, ...]  # ours minus the source's
    inside: int  # cells whose source number is within the prediction interval
    few: int  # cells with fewer converged seeds, which are not compared
    lost: int  # cells whose run did not converge in the source
    lost_runs: tuple[int, int]  # our runs of these cells that did not converge, and all of them

    @property
    def cells(self) -> int:
        return len(self.differences)

    @property
    def median(self) -> float:
        return statistics.median(self.differences)

    @property
    def median_absolute(self) -> float:
        return statistics.median(map(abs, self.differences))

    @property
    def sentence(self) -> str:
        share = 100 * self.inside / self.cells
        return (
            f"*{self.protocol}*: {self.inside} of {self.cells} cells ({share:.0f} %) inside the prediction "
            f"interval, median difference {self.median:+.2f}"
        )

    def row(self) -> list[str]:
        lost = "{} of {} runs".format(*self.lost_runs) if self.lost else "–"
        inside = f"{self.inside} ({100 * self.inside / self.cells:.0f} %)"
        medians = f"{self.median:+.2f}", f"{self.median_absolute:.2f}"
        return [self.protocol, str(self.cells), inside, *medians, str(self.lost), lost]


def measure_agreement(runs: pl.DataFrame, source_runs: int) -> list[Agreement]:
    """Compare the cells that have a number of the source; a source number near chance is a lost run."""
    compared = runs.filter(pl.col("source").is_not_null() & pl.col("value").is_not_null())
    found = []
    for (protocol,), mine in compared.group_by("protocol", maintain_order=True):
        differences, inside, few, lost, ours = list[float](), 0, 0, 0, [0, 0]
        for _, cell in mine.group_by("table", "row", "column", maintain_order=True):
            source, values = cell["source"][0], cell.filter("converged")["value"]
            if source <= CHANCE and "accuracy" in cell["metric"][0]:
                lost += 1
                ours = [ours[0] + len(cell) - len(values), ours[1] + len(cell)]
            elif len(values) < FEWEST_SEEDS:
                few += 1
            else:
                low, high = predict_interval(as_array(values.to_list()), source_runs)
                differences.append(float(values.to_numpy().mean()) - source)
                inside += low <= source <= high
        if differences:
            lost_runs = ours[0], ours[1]
            found.append(Agreement(str(protocol), tuple(differences), inside, few, lost, lost_runs))
    return found


def build_agreement_rows(found: Sequence[Agreement]) -> tuple[list[str], list[list[str]]]:
    """Return the heads and rows of a table with one protocol per row."""
    return list(HEADS), [one.row() for one in found]
