"""Results in documents: a table as Markdown, put between the marks that wait for it."""

import re
from pathlib import Path


def markdown_table(columns: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fill(document: Path, mark: str, text: str) -> None:
    """Replace what stands between `<!-- mark -->` and `<!-- /mark -->`."""
    opening, closing = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    whole = document.read_text()
    if opening not in whole or closing not in whole:
        raise ValueError(
            f"{document} has no place for {mark}: write {opening} and {closing} where it belongs"
        )
    pattern = re.compile(f"{re.escape(opening)}.*?{re.escape(closing)}", re.DOTALL)
    document.write_text(pattern.sub(lambda _: f"{opening}\n\n{text}\n\n{closing}", whole))
