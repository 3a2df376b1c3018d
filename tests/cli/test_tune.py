"""The command `tune`: what it prints and writes, and bad input, which leaves nothing behind."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from straggler import cli
from straggler.cli.app import out

MIXTURE = ["--dataset", "mixture(samples=300)", "--model", "linear", "--epochs", "0.5"]
VALIDATED = [*MIXTURE, "--validation", "0.3"]
LR = ["--search", "lr=log(1e-3, 1)"]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "2000")
    monkeypatch.setattr(out, "width", 200)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["straggler", "tune", *arguments])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        seen = capsys.readouterr()
        return code, seen.out, seen.err

    return command


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (VALIDATED, "missing option '--search'"),
        ([*VALIDATED, "--search", "lr"], "must have the form KEY=VALUES"),
        ([*VALIDATED, "--search", "lr=lgo(1, 2)"], "Did you mean 'log'"),
        ([*VALIDATED, "--search", "lrr=[1, 2]"], "unknown key 'lrr'. Did you mean 'lr'"),
        ([*VALIDATED, "--search", "lr=[0.1, -1]"], "-1"),
        ([*VALIDATED, "--search", "seed=[0, 1]"], "Use seeds"),
        ([*VALIDATED, *LR, "--lr", "0.1"], "lr is set to 0.1 and searched. Remove one"),
        ([*VALIDATED, *LR, "--seed", "3"], "Possible options: --seconds, --seeds"),
        ([*VALIDATED, *LR, "--set", "seed=3"], "Use seeds=[7]"),
        ([*VALIDATED, *LR, "--objective", "test_accuracy"], "Use validation_accuracy"),
        ([*VALIDATED, *LR, "--objective", "acc"], "write validation_accuracy"),
        ([*VALIDATED, *LR, "--sampler", "gird"], "'gird'"),
        ([*VALIDATED, *LR, "--sampler", "grid"], "points=5"),
        ([*VALIDATED, *LR, "--prune", "0"], "greater than 0, got 0"),
        ([*VALIDATED, *LR, "--prune", "50", "--objective", "seconds"], "every evaluation measures"),
        ([*VALIDATED, *LR, "--trials", "0"], "got '0', must be greater than or equal to 1"),
        ([*VALIDATED, *LR, "--shorter", "epochs"], "--shorter 'epochs' must have the form key=value"),
        ([*VALIDATED, *LR, "--shorter", "epoch=1"], "Did you mean 'epochs'"),
        ([*VALIDATED, *LR, "--address", "10.0.0.1:6379"], "requires --on ray"),
        ([*MIXTURE, *LR], "Set validation=0.1"),
        ([*VALIDATED, *LR, "--config", "missing.toml"], "missing.toml"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    tune: Command, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    code, printed, error = tune(*arguments)
    assert code == 2 and printed == ""
    assert reason in error and error.startswith("error: ") and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_help_teaches_the_forms(tune: Command) -> None:
    code, printed, _ = tune("--help")
    text = " ".join(printed.replace("│", " ").split())
    assert code == 0
    for words in ("lr=log(1e-4, 1)", "uniform(0, 0.9)", "points=5", "Never the test set", "lr=[0.01, 0.1]"):
        assert words in text
    assert "--seeds" in text and "--seed " not in text


def test_a_dry_run_writes_nothing(tune: Command, tmp_path: Path) -> None:
    code, _, error = tune(*VALIDATED, *LR, "--trials", "6", "--seeds", "2", "--dry-run")
    assert code == 0 and "6 trials of 1 search, 14 runs, 2 seeds, 14 missing: about" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_best_trial_comes_first_and_only_its_test_result_is_shown(tune: Command, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('model = "linear"\nworkers = 2\nmomentum = 0.5\n')
    search = ["--search", "lr=[0.0001, 0.03]", "--seeds", "1", "--jobs", "1"]
    code, printed, error = tune(*VALIDATED, *search, "--config", "config.toml", "--epochs", "2")
    assert code == 0, error
    lines = [line.split() for line in printed.splitlines()]
    assert ["1", "0.03"] in [line[:2] for line in lines] and "chosen" in printed
    trials, chosen = printed.split("The chosen values")
    assert "test" not in trials and "test accuracy" in chosen
    assert "The best lr = 0.03 is among the largest values of [0.0001, 0.03]" in printed
    assert (tmp_path / "results" / "tune" / "search.png").is_file()
    code, _, error = tune(*VALIDATED, *search, "--config", "config.toml", "--epochs", "2")
    assert code == 0 and "0 missing" in error
