"""Output to a terminal: lines break between words at any width."""

import io

import pytest
from rich.text import Text

from straggler.running.console import WordConsole, break_between_words

MESSAGE = (
    "error: dataset: Unknown data set 'digit'. Did you mean 'digits'? Known: fashion-mnist, mnist, "
    "cifar10; see /a/path/that/is/longer/than/the/terminal/is/wide/experiment.toml for more\n  indented"
)


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_words_stay_whole_and_lines_fit(width: int) -> None:
    broken = break_between_words(Text.assemble(("error:", "red"), MESSAGE[6:]), width)
    assert broken.plain.split() == MESSAGE.split()
    for line in broken.plain.splitlines():
        assert len(line) <= width or len(line.split()) == 1
    assert any(span.style == "red" for span in broken.spans)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_terminal_shows_whole_words(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    file = io.StringIO()
    console = WordConsole(file=file, width=width, force_terminal=True, color_system=None)
    console.print(MESSAGE, soft_wrap=True)
    assert file.getvalue().split() == MESSAGE.split() and len(file.getvalue().splitlines()) > 2


def test_a_pipe_keeps_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    file = io.StringIO()
    WordConsole(file=file).print(MESSAGE, soft_wrap=True)
    assert file.getvalue() == MESSAGE + "\n"
