"""Tables of a sweep: a line per combination of its settings, over its seeds."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from straggler.analysis.study_tables import Entry, entry, latex_table


@dataclass(frozen=True)
class Line:
    """One combination."""

    settings: tuple[Any, ...]
    ours: Entry
    staleness: float
    seconds: float


class SweepTable:
    """The test accuracy, or the loss where there is none, of every combination of a sweep's settings."""

    def __init__(self, summaries: pl.DataFrame, labels: list[str]) -> None:
        self.labels = labels
        self.fact = "accuracy" if summaries["value"].is_not_null().any() else "loss"
        if self.fact == "loss":
            summaries = summaries.with_columns(value="test_loss")
        self.lines = list(lines(summaries, labels))

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """For people."""
        unit, digits = (" (%)", ".2f") if self.fact == "accuracy" else ("", ".4g")
        columns = [*self.labels, f"test {self.fact}{unit}", "seeds", "staleness", "time (s)"]
        return columns, [
            [
                *map(str, line.settings),
                line.ours.text(digits),
                str(line.ours.seeds),
                f"{line.staleness:.2f}",
                f"{line.seconds:,.1f}",
            ]
            for line in self.lines
        ]

    def csv(self) -> str:
        """For programs: six digits of each accuracy or loss."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        numbers = [f"test_{self.fact}", "low", "high", "seeds", "nc", "mean_staleness", "seconds"]
        writer.writerow([*self.labels, *numbers])
        for line in self.lines:
            ours = line.ours
            counts = (ours.seeds, ours.failed, line.staleness, line.seconds)
            writer.writerow([*line.settings, *ours.numbers, *counts])
        return text.getvalue()

    def latex(self, caption: str) -> str:
        return latex_table(caption, *self.rows(), names=len(self.labels))


def lines(summaries: pl.DataFrame, labels: list[str]) -> Iterator[Line]:
    """In the order of the combinations; a budget of seconds that is varied is not what was used of it."""
    time = "measured_seconds" if "measured_seconds" in summaries.columns else "seconds"
    for key, runs in summaries.group_by(*labels, maintain_order=True) if labels else [((), summaries)]:
        whole = runs.filter(pl.col("converged") | ~pl.col("converged").any())  # a lost run ends early
        staleness, seconds = whole.select(pl.col("mean_staleness", time).mean()).row(0)
        yield Line(key, entry(runs, "", "", ""), staleness, seconds)
