"""Tables for the terminal and for Markdown documents."""

import re
from pathlib import Path
from shutil import get_terminal_size

from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

LONGEST_WORD = 16  # letters; longer words, such as ids and paths, may be broken
COLUMN_GAP = 3  # letters
LONGEST_NAME = 40  # letters of a first column that is never wrapped
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
