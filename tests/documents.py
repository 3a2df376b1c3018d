"""The documents, cut into the blocks that the tests check and run."""

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = {page.relative_to(ROOT).as_posix(): page.read_text() for page in sorted(ROOT.glob("docs/*.md"))}
PAGES["README.md"] = (ROOT / "README.md").read_text()
NUMBER = re.compile(r"\d+(?:\.\d+)?")
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<info>[^\n`]*)\n(?P<content>.*?)^```", re.DOTALL | re.MULTILINE
)
SHELL = ("", "sh", "bash", "console")


@dataclass(frozen=True)
class Block:
    """A fenced block: the words of its opening fence, and its content."""

    language: str
    words: tuple[str, ...]
    content: str
    mark: str = ""  # the comment on the line before
    output: str | None = None  # what the page shows directly below: a block of the language `text`

    @property
    def file(self) -> str:
        """The name of the file that the block shows; empty if it shows none."""
        return next((word for word in self.words if "." in word), "")

    @property
    def reason(self) -> str:
        """Why the block is not run; empty if it is run."""
        return self.mark.removeprefix("not run: ") if self.mark.startswith("not run: ") else ""


def read_blocks(text: str) -> Iterator[Block]:
    """Yield every fenced block of a page, in order."""
    matches = list(BLOCK.finditer(text))
    for match, after in zip(matches, [*matches, None][1:], strict=True):
        language, *words = match["info"].split() or [""]
        is_below = after is not None and not text[match.end() : after.start()].strip()
        output = after["content"] if after is not None and is_below and after["info"] == "text" else None
        yield Block(language, tuple(words), match["content"], match["mark"] or "", output)


def blocks(text: str, language: str) -> list[tuple[str, str]]:
    """Return (rest of the opening fence, content) of every fenced block of a language."""
    return [(" ".join(b.words), b.content) for b in read_blocks(text) if b.language == language]


def compare_texts(printed: str, shown: str, relative: float = 0.0, absolute: float = 0.0) -> None:
    """Compare two texts; their decimal numbers may differ by rounding, and all by the given tolerances."""
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", shown).split()
    for ours, theirs in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        decimals = theirs.partition(".")[2]
        unit = 1.01 * 0.1 ** len(decimals) if decimals else 0.0  # one in the last digit
        close = math.isclose(
            float(ours), float(theirs), rel_tol=relative + 1e-12, abs_tol=max(unit, absolute)
        )
        assert close, f"{ours} instead of {theirs}"


def read_lines(content: str) -> list[str]:
    """Return the commands of a shell block, without comments and with continued lines joined."""
    lines = content.replace("\\\n", " ").split("\n")
    stripped = (re.sub(r"(^|\s+)#.*", "", line).strip().removeprefix("$ ") for line in lines)
    return [line for line in stripped if line]


def commands(text: str) -> list[str]:
    """Return the `straggler` commands of a page, from blocks and inline code, without comments."""
    lines = [
        line
        for block in read_blocks(text)
        if block.language in SHELL and not block.words
        for line in read_lines(block.content)
    ]
    lines += [re.sub(r"\s+#.*", "", line).strip() for line in re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))]
    return [line for line in lines if re.match(r"straggler( |$)", line)]


DOWNLOADED = ("fashion-mnist", "mnist", "cifar10", "moby-dick", "state-of-the-union")
BUDGETS = ("--epochs", "--updates", "--gradients", "--seconds")


def shorten(line: str) -> list[str]:
    """Return the words of a `straggler run` command with a small budget, and data that need no download."""
    words, kept = shlex.split(line)[1:], list[str]()
    options = iter(words)
    for word in options:
        if word in (*BUDGETS, "--jobs"):
            next(options)
        else:
            kept.append(word)
    values = dict(pairwise(kept))
    if values.get("--engine") in ("processes", "ray"):
        kept += ["--gradients", "60"]  # not seconds, in which the workers of a busy machine do not start
    else:
        kept += ["--gradients", "60", "--jobs", "1"]
    if values.get("--dataset", "fashion-mnist").startswith(DOWNLOADED):
        text = str(values.get("--model", "")).startswith("gpt")
        kept += ["--dataset", "text(path='tiny.txt', context=16)" if text else "digits"]
        kept += ["--model", "gpt(layers=1, heads=2, width=16)" if text else "mlp(hidden=[16])"]
    return kept
