"""Tables of a sweep: a row per cell, with means and 95 % confidence intervals over the seeds."""

from collections.abc import Iterable, Sequence
from statistics import median_high
from typing import Any

import polars as pl

from straggler.analysis.intervals import mean_interval
from straggler.analysis.study_tables import format_latex_table
from straggler.analysis.tables import format_markdown_table

CAPTION = "Mean ± half-width of the 95 % confidence interval over seeds (three or more); NC: not converged."
TARGET_STEP = 5.0  # of a target accuracy in percent


def choose_target(accuracies: Iterable[float]) -> float | None:
    """Return the highest multiple of 5 % that half of these accuracies reach; None if there is none."""
    found = list(accuracies)
    target = TARGET_STEP * (median_high(found) // TARGET_STEP) if found else 0.0
    return target if target > 0 else None


class SweepTable:
    """The test accuracy, or the loss where there is no accuracy, and metrics of every cell of a sweep.

    `summaries` has a row per run. Its column `time_to_target`, if present, is null for runs that did not
    reach the target accuracy.
    """

    def __init__(
        self,
        summaries: pl.DataFrame,
        labels: list[str],
        target: float | None = None,
        metrics: Sequence[str] = (),
    ) -> None:
        self.labels, self.target = labels, target
        self.metrics = [name for name in metrics if f"test_{name}" in summaries.columns]
        self.metric = "accuracy" if summaries["value"].is_not_null().any() else "loss"
        if self.metric == "loss":
            summaries = summaries.with_columns(value="test_loss")
        # A budget that the sweep varies has the same name as the part of it that was used.
        self.seconds = "measured_seconds" if "seconds" in labels else "seconds"
        groups = summaries.group_by(labels, maintain_order=True) if labels else [((), summaries)]
        self.table = pl.DataFrame(
            [dict(zip(labels, key, strict=True)) | self._summarise(runs) for key, runs in groups],
            infer_schema_length=None,
        )

    def _summarise(self, runs: pl.DataFrame) -> dict[str, Any]:
        converged = runs.filter("converged")
        values = converged["value"].drop_nulls()
        found = mean_interval(values.to_numpy()) if len(values) else None
        has_interval = found is not None and len(values) > 2
        row: dict[str, Any] = {
            f"test_{self.metric}": found and found.mean,
            "low": found.low if found and has_interval else None,
            "high": found.high if found and has_interval else None,
            "seeds": len(runs),
            "nc": len(runs) - len(converged),
        }
        whole = converged if len(converged) else runs  # a run that diverged ends early
        validation = f"validation_{self.metric}"
        if validation in runs.columns:
            row[validation] = whole[validation].mean()
        row |= {f"test_{name}": whole[f"test_{name}"].mean() for name in self.metrics}
        row |= {name: whole[name].mean() for name in ("mean_staleness", self.seconds)}
        if self.target is not None:
            reached = runs["time_to_target"].drop_nulls()
            row |= {"time_to_target": reached.mean(), "reached": len(reached)}
        return row

    @property
    def shown_labels(self) -> list[str]:
        """The labels in which the rows differ; all of them if there is only one row."""
        differing = [label for label in self.labels if self.table[label].n_unique() > 1]
        return differing or self.labels

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Return the columns and rows as text for people. A label that all rows share is left out."""
        shown = self.shown_labels
        unit, digits = (" (%)", ".2f") if self.metric == "accuracy" else ("", ".4g")
        validation = f"validation_{self.metric}" in self.table.columns
        columns = [*shown, f"test {self.metric}{unit}"]
        columns += [f"validation {self.metric}{unit}"] if validation else []
        columns += [*self.metrics, "seeds", "staleness", "time (s)"]
        columns += [f"time to {self.target:g} % (s)"] if self.target is not None else []
        rows = []
        for row in self.table.iter_rows(named=True):
            cells = ["–" if row[label] is None else str(row[label]) for label in shown]
            cells.append(format_metric(row, f"test_{self.metric}", digits))
            cells += [format_or_dash(row[f"validation_{self.metric}"], digits)] if validation else []
            cells += [format_or_dash(row[f"test_{name}"], ".4g") for name in self.metrics]
            cells += [str(row["seeds"]), format_or_dash(row["mean_staleness"], ".2f")]
            cells.append(format_or_dash(row[self.seconds], ",.1f"))
            if self.target is not None:
                some = f" ({row['reached']} of {row['seeds']})" if row["reached"] < row["seeds"] else ""
                cells.append(format_or_dash(row["time_to_target"], ",.1f") + some)
            rows.append(cells)
        return columns, rows

    def csv(self) -> str:
        """Return the table as CSV, with six digits of each number."""
        return self.table.with_columns(pl.selectors.float().round_sig_figs(6)).write_csv()

    def markdown(self) -> str:
        """Return the table as Markdown, with its caption."""
        return f"{CAPTION}\n\n{format_markdown_table(*self.rows())}\n"

    def latex(self) -> str:
        """Return the table as LaTeX, for the booktabs package."""
        return format_latex_table(CAPTION, *self.rows(), names=len(self.shown_labels))


def format_metric(row: dict[str, Any], metric: str, digits: str) -> str:
    """Return `88.42 ± 0.31 (1 of 3 NC)`, or NC if no run converged."""
    if row[metric] is None:
        return "NC" if row["nc"] else "–"
    half = "" if row["high"] is None else f" ± {row['high'] - row[metric]:{digits}}"
    return f"{row[metric]:{digits}}{half}" + (f" ({row['nc']} of {row['seeds']} NC)" if row["nc"] else "")


def format_or_dash(value: float | None, digits: str) -> str:
    return "–" if value is None else f"{value:{digits}}"
