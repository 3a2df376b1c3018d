"""Tables of a study: ours as mean ± 95 % interval over seeds, the source's number beside it, NC marked."""

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl
from rich.table import Table

from straggler.analysis.intervals import Interval, mean_interval
from straggler.analysis.tables import build_table, format_markdown_table

CHANCE = 12.0  # percent and below counts as NC in a source that wrote 10 for it
SIGNS = {"&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_", "±": r"$\pm$", "λ": r"$\lambda$", "γ": r"$\gamma$"}


@dataclass(frozen=True)
class Entry:
    """One cell of a table."""

    protocol: str
    row: str
    column: str
    ours: Interval | None  # over the seeds that converged
    seeds: int
    failed: int  # of them did not converge
    source: float | None

    def text(self, digits: str = ".2f") -> str:
        """`88.42 ± 0.31`, `NC`, or what of both there is; of two seeds that converged, each."""
        if self.ours is None:
            return "NC" if self.seeds else ""
        mean, half, *both = (
            f"{n:{digits}}" for n in (self.ours.mean, self.ours.half, *(self.ours.both or ()))
        )
        spread = f" ({', '.join(both)})" if both else f" ± {half}" if math.isfinite(self.ours.half) else ""
        some = f" ({self.failed} of {self.seeds} NC)" if self.failed else ""
        return f"{mean}{spread}{some}"

    @property
    def numbers(self) -> tuple[float | None, ...]:
        """Mean, low and high; none where there is none."""
        ours = (self.ours.mean, self.ours.low, self.ours.high) if self.ours else ()
        return tuple(float(f"{n:.6g}") if math.isfinite(n) else None for n in ours) or (None, None, None)

    @property
    def theirs(self) -> str:
        if self.source is None:
            return ""
        return "NC" if self.source <= CHANCE else f"{self.source:.2f}"


@dataclass(frozen=True)
class Layout:
    """Which rows and columns a table has, in the source's order."""

    name: str
    caption: str
    protocols: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]


def entries(summaries: pl.DataFrame, layout: Layout) -> list[Entry]:
    """Every cell of the table of which there is a run, in order."""
    mine = summaries.filter(pl.col("table") == layout.name)
    found = []
    groups = dict(iter(mine.group_by("protocol", "row", "column")))
    for protocol in layout.protocols:
        for row in layout.rows:
            for column in layout.columns:
                if (protocol, row, column) in groups:
                    found.append(entry(groups[protocol, row, column], protocol, row, column))
    return found


def entry(runs: pl.DataFrame, protocol: str, row: str, column: str) -> Entry:
    source = runs["source"][0]
    runs = runs.filter(pl.col("value").is_not_null() | ~pl.col("converged"))  # a run may lack this fact
    learnt = runs.filter("converged")["value"].to_list()
    ours = mean_interval(learnt) if learnt else None
    return Entry(protocol, row, column, ours, len(runs), len(runs) - len(learnt), source)


def grid(found: Sequence[Entry], layout: Layout) -> tuple[list[str], list[list[str]]]:
    """A line per row and protocol, then the source's own line."""
    by = {(e.protocol, e.row, e.column): e for e in found}
    protocols = [p for p in layout.protocols if any(e.protocol == p for e in found)]
    columns = [c for c in layout.columns if any(e.column == c for e in found)]
    lines = []
    for row in layout.rows:
        for protocol in protocols:
            cells = [by[protocol, row, c].text() if (protocol, row, c) in by else "" for c in columns]
            if any(cells):
                lines.append([row, protocol, *cells])
        source = [source_of(by, protocols, row, column) for column in columns]
        if any(source):
            lines.append([row, "source", *source])
    return ["", "", *columns], lines


def source_of(by: dict[tuple[str, str, str], Entry], protocols: list[str], row: str, column: str) -> str:
    texts = [by[p, row, column].theirs for p in protocols if (p, row, column) in by]
    return next(filter(None, texts), "")


def as_terminal(found: Sequence[Entry], layout: Layout, fits: Callable[[Table], bool]) -> list[Table]:
    """In as few parts as there is room for, one below the other."""
    columns, rows = grid(found, layout)
    title, tables = f"{layout.name}: {layout.caption}", list[Table]()
    for width in range(len(columns) - 2, 0, -1):
        parts = [
            [0, 1, *range(len(columns))[first : first + width]] for first in range(2, len(columns), width)
        ]
        tables = [
            build_table(title, [columns[n] for n in part], [[row[n] for n in part] for row in rows])
            for part in parts
        ]
        if all(map(fits, tables)):
            break
    return tables


def as_markdown(found: Sequence[Entry], layout: Layout) -> str:
    return format_markdown_table(*grid(found, layout))


def as_latex(found: Sequence[Entry], layout: Layout) -> str:
    return latex_table(layout.caption, *grid(found, layout), names=2)


def latex_table(caption: str, columns: list[str], rows: list[list[str]], names: int) -> str:
    """A booktabs table whose first columns are names and the others numbers."""
    lines = [[latex(text) for text in row] for row in (columns, *rows)]
    head, *body = [" & ".join(line) + r" \\" for line in lines]
    kinds = "l" * names + "r" * (len(columns) - names)
    begin = [r"\begin{table}", rf"\caption{{{latex(caption)}}}", rf"\begin{{tabular}}{{{kinds}}}"]
    end = [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join([*begin, r"\toprule", head, r"\midrule", *body, *end])


def latex(text: str) -> str:
    for sign, written in SIGNS.items():
        text = text.replace(sign, written)
    return "{}" + text if text.startswith("[") else text  # or it would belong to the end of the last row


def as_csv(found: Sequence[Entry], layout: Layout) -> str:
    """One line per cell, six digits of each number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "protocol", "row", "column", "mean", "low", "high", "seeds", "nc", "source"])
    for e in found:
        writer.writerow([layout.name, e.protocol, e.row, e.column, *e.numbers, e.seeds, e.failed, e.source])
    return text.getvalue()


def time_rows(summaries: pl.DataFrame, fact: str, tables: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The source's time, ours, and how many times as long the source's is; alike protocols in one row.

    A run that was lost ended early, and its time is left out. What the machine needed is that of the quickest
    seed: all do the same work, and the others had less of the machine.
    """
    theirs = f"source_{fact}"
    columns = ["table", "", "", "protocol", "source (s)", "ours (s)", "ratio"]
    if theirs not in summaries.columns:
        return columns, []
    known = summaries.filter(pl.col(theirs).is_not_null() & pl.col(fact).is_not_null() & pl.col("converged"))
    known = known.sort(pl.col("table").cast(pl.Enum(tables), strict=False), maintain_order=True)
    groups = known.group_by("table", "row", "column", "protocol", maintain_order=True)
    alike: dict[tuple[str, ...], list[str]] = {}
    ours = pl.col(fact).min() if fact == "host_seconds" else pl.col(fact).mean()
    for table, row, column, protocol, source, time in groups.agg(pl.col(theirs).first(), ours).iter_rows():
        numbers = (f"{source:,.1f}", f"{time:,.1f}", f"{source / time:.2f}")
        alike.setdefault((table, row, column, *numbers), []).append(protocol)
    return columns, [[*key[:3], ", ".join(protocols), *key[3:]] for key, protocols in alike.items()]
