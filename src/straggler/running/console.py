"""Output to a terminal: lines break between words at any width."""

import re
from typing import Any

from rich.console import Console
from rich.text import Text


class WordConsole(Console):
    """A console that breaks long lines between words on a terminal, and keeps them whole in files and pipes.

    A word that is longer than the terminal is wide, such as a path, stays whole, so that it can be copied.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, **options)

    @property
    def breaks_lines(self) -> bool:
        """Whether the output is a terminal."""
        return self.is_terminal

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print; `soft_wrap` keeps rich from cutting words."""
        if soft_wrap and self.breaks_lines:
            objects = tuple(
                break_between_words(Text(one) if isinstance(one, str) else one, self.width)
                if isinstance(one, str | Text)
                else one
                for one in objects
            )
        super().print(*objects, soft_wrap=soft_wrap, **options)


def break_between_words(text: Text, width: int) -> Text:
    """Return a text with line breaks between words, so that its lines fit where their words do."""
    lines = list[Text]()
    for line in text.split("\n", allow_blank=True):
        offsets, start = list[int](), 0
        for word in re.finditer(r"\S+", line.plain):
            if word.end() - start > width and word.start() > start:
                offsets.append(start := word.start())
        lines += line.divide(offsets)
    for line in lines:
        line.rstrip()
    return Text("\n").join(lines)
