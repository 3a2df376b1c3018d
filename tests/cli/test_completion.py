"""Completion in the shell: the names of commands, components, data sets, catalogues and runs."""

from pathlib import Path

import pytest

from straggler.cli import build_app
from straggler.cli.completion import CATALOGUE_OF, find_requested_command
from straggler.config.listing import read_listing
from straggler.experiment import Experiment


def complete(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what bash is told to offer for the last word of a line."""
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    monkeypatch.setenv("_STRAGGLER_COMPLETE", "complete_bash")
    app = build_app(find_requested_command())
    with pytest.raises(SystemExit):
        app(args=[], prog_name="straggler", standalone_mode=False)
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("straggler repl", ["replay"]),
        ("straggler cite dana-g", ["dana-ga"]),
        ("straggler run --method dana-g", ["dana-ga"]),
        ("straggler run --policy syn", ["synchronous"]),
        ("straggler run --dataset fash", ["fashion-mnist"]),
        ("straggler run --compute gam", ["gamma"]),
        ("straggler data cif", ["cifar10"]),
        ("straggler list part", ["partitions"]),
        ("straggler show 12", ["1234", "1299"]),
        ("straggler show --runs other ab", ["abcd"]),
        ("straggler plot accuracy 123", ["1234"]),
        ("straggler run --meth", ["--method"]),
    ],
)
def test_names_are_completed(
    line: str,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for run in ("runs/1234", "runs/1299", "runs/5678", "other/abcd"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "experiment.toml").touch()
    (tmp_path / "runs" / "12-notes").mkdir()
    monkeypatch.chdir(tmp_path)
    found = complete(line, monkeypatch, capsys)
    assert set(expected) <= set(found) and len(found) <= len(expected) + 2


def test_every_option_with_a_catalogue_is_completed() -> None:
    assert set(CATALOGUE_OF.values()) <= read_listing().keys()
    assert set(CATALOGUE_OF) <= Experiment.model_fields.keys()


def test_other_lines_ask_for_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in ("", "straggler", "straggler --version"):
        monkeypatch.setenv("COMP_WORDS", line)
        assert find_requested_command() == ""
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "straggler run --me")  # zsh and fish
    monkeypatch.delenv("COMP_WORDS")
    assert find_requested_command() == "run"
