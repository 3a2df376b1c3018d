"""Tables of a study: our mean over seeds with its confidence interval, next to the source's number."""

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl
from rich.table import Table

from straggler.analysis.intervals import Interval, mean_interval
from straggler.analysis.tables import build_table

CHANCE = 12.0  # percent; sources that print 10 for a run that did not converge mean NC
SIGNS = {"&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_", "±": r"$\pm$", "λ": r"$\lambda$", "γ": r"$\gamma$"}
NAMES = 3  # columns before the numbers: row, protocol, seeds


@dataclass(frozen=True)
class TableCell:
    """One cell of a table."""

    protocol: str
    row: str
    column: str
    ours: Interval | None  # over the seeds that converged
    seeds: int
    failed: int  # seeds that did not converge
    source: float | None

    def text(self, digits: str = ".2f") -> str:
        """Format as `88.42 ± 0.31`, `97.60 [92.10, 100.00]`, `NC`, or `88.42 (1 of 3 NC)`."""
        if self.ours is None:
            return "NC" if self.seeds else ""
        spread = ""
        if self.ours.seeds > 2:
            low, high, half = (
                f"{number:{digits}}" for number in (self.ours.low, self.ours.high, self.ours.half)
            )
            spread = f" [{low}, {high}]" if math.isinf(self.ours.half) else f" ± {half}"
        some = f" ({self.failed} of {self.seeds} NC)" if self.failed else ""
        return f"{self.ours.mean:{digits}}{spread}{some}"

    @property
    def numbers(self) -> tuple[float | None, ...]:
        """Mean, low and high with six digits, or None where unknown."""
        ours = (self.ours.mean, self.ours.low, self.ours.high) if self.ours else ()
        return tuple(float(f"{n:.6g}") if math.isfinite(n) else None for n in ours) or (None, None, None)

    @property
    def source_text(self) -> str:
        if self.source is None:
            return ""
        return "NC" if self.source <= CHANCE else f"{self.source:.2f}"


@dataclass(frozen=True)
class FilledTable:
    """A table of the source with our numbers, in the source's order."""

    name: str
    caption: str
    cells: Sequence[TableCell]

    def grid(self) -> tuple[list[str], list[list[str]]]:
        """Return the column heads, and a line per row and protocol, followed by the source's line."""
        by = {(cell.protocol, cell.row, cell.column): cell for cell in self.cells}
        protocols, rows, columns = (
            list(dict.fromkeys(getattr(cell, name) for cell in self.cells))
            for name in ("protocol", "row", "column")
        )
        lines = []
        for row in rows:
            places = [[by.get((protocol, row, column)) for column in columns] for protocol in protocols]
            for protocol, cells in zip(protocols, places, strict=True):
                if known := [cell for cell in cells if cell is not None and cell.text()]:
                    fewest, most = min(cell.seeds for cell in known), max(cell.seeds for cell in known)
                    seeds = str(most) if fewest == most else f"{fewest} to {most}"
                    lines.append([row, protocol, seeds, *(cell.text() if cell else "" for cell in cells)])
            source = [
                next((cell.source_text for cell in cells if cell and cell.source_text), "")
                for cells in zip(*places, strict=True)
            ]
            if any(source):
                lines.append([row, "source", "", *source])
        return ["", "", "seeds", *columns], lines

    def latex(self) -> str:
        return format_latex_table(self.caption, *self.grid(), names=NAMES)

    def csv(self) -> str:
        """Format as CSV: one line per cell, six digits of each number."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(
            ["table", "protocol", "row", "column", "mean", "low", "high", "seeds", "nc", "source"]
        )
        for cell in self.cells:
            place = (self.name, cell.protocol, cell.row, cell.column)
            writer.writerow([*place, *cell.numbers, cell.seeds, cell.failed, cell.source])
        return text.getvalue()

    def terminal(self, fits: Callable[[Table], bool]) -> list[Table]:
        """Return tables for the terminal, split by columns into as few as fit."""
        columns, rows = self.grid()
        title, tables = f"{self.name}: {self.caption}", list[Table]()
        for width in range(len(columns) - NAMES, 0, -1):
            starts = range(NAMES, len(columns), width)
            parts = [[*range(NAMES), *range(len(columns))[first : first + width]] for first in starts]
            tables = [
                build_table(title, [columns[n] for n in part], [[row[n] for n in part] for row in rows])
                for part in parts
            ]
            if all(map(fits, tables)):
                break
        return tables


def fill_table(name: str, caption: str, runs: pl.DataFrame, places: pl.DataFrame) -> FilledTable:
    """Fill a table with the runs that there are; `places` has its protocols, rows and columns in order."""
    groups = dict(iter(runs.group_by("protocol", "row", "column")))
    protocols, rows, columns = (
        places[label].unique(maintain_order=True) for label in ("protocol", "row", "column")
    )
    keys = [(protocol, row, column) for protocol in protocols for row in rows for column in columns]
    return FilledTable(name, caption, [summarize_cell(groups[key], *key) for key in keys if key in groups])


def summarize_cell(runs: pl.DataFrame, protocol: str = "", row: str = "", column: str = "") -> TableCell:
    """Summarize the runs of one cell; the mean is over the runs that converged."""
    source = runs["source"][0] if "source" in runs.columns else None
    metric = runs["metric"][0] if "metric" in runs.columns else "accuracy"
    runs = runs.filter(pl.col("value").is_not_null() | ~pl.col("converged"))  # a run may lack this metric
    learnt = runs.filter("converged")["value"].to_list()
    ours = mean_interval(learnt) if learnt else None
    if ours is not None and ("accuracy" in metric or "error" in metric):
        ours = ours.clip(0.0, 100.0)
    return TableCell(protocol, row, column, ours, len(runs), len(runs) - len(learnt), source)


def format_latex_table(caption: str, columns: list[str], rows: list[list[str]], names: int) -> str:
    """Format a booktabs table whose first columns are text and the others numbers."""
    lines = [[escape_latex(text) for text in row] for row in (columns, *rows)]
    head, *body = [" & ".join(line) + r" \\" for line in lines]
    kinds = "l" * names + "r" * (len(columns) - names)
    begin = [r"\begin{table}", rf"\caption{{{escape_latex(caption)}}}", rf"\begin{{tabular}}{{{kinds}}}"]
    end = [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join([*begin, r"\toprule", head, r"\midrule", *body, *end])


def escape_latex(text: str) -> str:
    for sign, written in SIGNS.items():
        text = text.replace(sign, written)
    # LaTeX would take a bracket for an argument of the row before.
    return "{}" + text if text.startswith("[") else text


def build_time_rows(
    summaries: pl.DataFrame, fact: str, tables: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """Return the source's time, ours, and their ratio; protocols with equal times share a row.

    Runs that did not converge ended early and are left out. The host's seconds are those of the fastest seed:
    all seeds do the same work, and the others shared the machine.
    """
    theirs = f"source_{fact}"
    columns = ["table", "", "", "protocol", "source (s)", "ours (s)", "ratio"]
    if theirs not in summaries.columns:
        return columns, []
    known = summaries.filter(pl.col(theirs).is_not_null() & pl.col(fact).is_not_null() & pl.col("converged"))
    known = known.sort(pl.col("table").cast(pl.Enum(tables), strict=False), maintain_order=True)
    groups = known.group_by("table", "row", "column", "protocol", maintain_order=True)
    protocols_by_time: dict[tuple[str, ...], list[str]] = {}
    ours = pl.col(fact).min() if fact == "host_seconds" else pl.col(fact).mean()
    for table, row, column, protocol, source, time in groups.agg(pl.col(theirs).first(), ours).iter_rows():
        numbers = (f"{source:,.1f}", f"{time:,.1f}", f"{source / time:.2f}")
        protocols_by_time.setdefault((table, row, column, *numbers), []).append(protocol)
    return columns, [
        [*key[:3], ", ".join(protocols), *key[3:]] for key, protocols in protocols_by_time.items()
    ]
