"""Tables for the terminal and for Markdown documents, and the description of a record."""

import re
from collections.abc import Mapping
from pathlib import Path
from shutil import get_terminal_size

import polars as pl
from rich import box
from rich.console import Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from straggler.record import Record

LONGEST_WORD = 16  # letters; longer words, such as ids and paths, may be broken
COLUMN_GAP = 3  # letters
LONGEST_NAME = 40  # letters of a first column that is never wrapped
BARS = " ▁▂▃▄▅▆▇█"
CONTROLS = dict.fromkeys({*range(32), *range(127, 160)} - {ord("\t"), ord("\n")}, "\N{REPLACEMENT CHARACTER}")


def strip_controls(text: str) -> str:
    """Replace control characters: a terminal obeys them, and the text may be a stranger's."""
    return text.translate(CONTROLS)


def format_number(value: object, digits: int = 2, unit: str = "") -> str:
    """Format a number with thousands separators; None becomes a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}{unit}"
    return f"{value:,.{digits}f}{unit}" if isinstance(value, float) else str(value)


def build_table(
    title: str, columns: list[str], rows: list[list[str]], justify: JustifyMethod = "left"
) -> Table:
    """Return a table for the terminal; columns after the first are justified as asked."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.show_header = any(columns)
    columns, rows = [*map(strip_controls, columns)], [[*map(strip_controls, row)] for row in rows]
    cells = [[row[position] for row in rows] for position in range(len(columns))]
    words = [
        [len(word) for text in (column, *below) for word in text.split()]
        for column, below in zip(columns, cells, strict=True)
    ]
    needed = sum(min(max(letters, default=0), LONGEST_WORD) + COLUMN_GAP for letters in words)
    room = needed <= get_terminal_size().columns  # otherwise rich would cut off unbreakable words
    for column, below, letters in zip(columns, cells, words, strict=True):
        name = below is cells[0] and max(map(len, below), default=0) <= LONGEST_NAME
        whole = max((count for count in letters if count <= LONGEST_WORD), default=0)
        table.add_column(column, overflow="fold", no_wrap=room and name, min_width=whole if room else None)
        table.columns[-1].justify = justify if len(table.columns) > 1 else "left"
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def format_markdown_table(columns: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fill_section(document: Path, mark: str, text: str) -> None:
    """Replace the text of a document between `<!-- mark -->` and `<!-- /mark -->`."""
    opening, closing = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    whole = document.read_text()
    if opening not in whole or closing not in whole:
        raise ValueError(f"{document} has no section {mark!r}. Add {opening} and {closing}.")
    pattern = re.compile(f"{re.escape(opening)}.*?{re.escape(closing)}", re.DOTALL)
    document.write_text(pattern.sub(lambda _: f"{opening}\n\n{text}\n\n{closing}", whole))


def describe_record(record: Record) -> Group:
    """Return settings, summary, curve, staleness and class scores of a record for the terminal."""
    facts = record.summary
    parts: list[Table | Text] = [Text(f"run {record.path.name}: {record.status}", style="bold")]
    if record.status == "lost":
        parts.append(Text("The process has exited. `straggler resume` continues the run.", style="red"))
    if facts.get("error"):
        parts.append(Text(strip_controls(str(facts["error"])), style="red"))
    parts.append(Text("\n" + strip_controls(record.text.rstrip())))
    single = {key: value for key, value in facts.items() if not isinstance(value, dict | list | None)}
    rows = [[key, format_number(value, 4)] for key, value in single.items()]
    parts.append(build_table("\nsummary", ["", ""], rows))
    if len(record.curve):
        parts += build_curve_tables(record.curve)
    if len(record.arrivals):
        parts.append(Text("\nstaleness (share of arrivals)", style="bold"))
        parts.append(format_staleness_bars(record.arrivals))
    if isinstance(facts.get("classes"), dict):
        parts.append(build_class_table(facts["classes"]))
    return Group(*parts)


def build_curve_tables(curve: pl.DataFrame) -> list[Table]:
    """Return a table of the run and the test set, and one of the other splits."""
    others = [name for name in curve.columns if name.startswith(("train_", "validation_"))]
    tables = [build_curve_table("\ncurve", curve.select(pl.exclude("lr", *others)))]
    tables += [build_curve_table("\nother splits", curve.select("epochs", *others))] if others else []
    return tables


def build_curve_table(title: str, shown: pl.DataFrame) -> Table:
    rows = [[format_number(value, 3) for value in row] for row in shown.iter_rows()]
    if len(rows) > 20:  # enough to see the shape
        rows = [
            row for position, row in enumerate(rows) if position % (len(rows) // 15) == 0 or row is rows[-1]
        ]
    return build_table(title, [name.replace("_", " ") for name in shown.columns], rows)


def format_staleness_bars(arrivals: pl.DataFrame) -> Text:
    """Return a histogram on one line, from 0 to the largest staleness."""
    staleness = arrivals.filter(pl.col("decision") != "cancelled")["staleness"]
    most = int(staleness.max() or 0)  # type: ignore[arg-type]
    width = max(1, -(-(most + 1) // 60))
    counts = (staleness // width).value_counts().sort("staleness")
    shares = dict(counts.iter_rows())
    peak = max(shares.values())
    bars = "".join(BARS[-(-8 * shares.get(bin_, 0) // peak)] for bin_ in range(most // width + 1))
    return Text(f"0 {bars} {most}   mean {format_number(staleness.mean())}")


def build_class_table(classes: Mapping[str, Mapping[str, float]]) -> Table:
    rows = [
        [name, *(format_number(100 * scores[key], 1) for key in ("precision", "recall", "f1"))]
        for name, scores in classes.items()
    ]
    return build_table("\nby class (%)", ["class", "precision", "recall", "F1"], rows)
