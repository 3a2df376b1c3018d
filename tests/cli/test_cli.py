"""The command line: options, the JSON summary, exit codes, and messages for invalid input."""

import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from straggler import cli
from straggler.cli.app import out
from straggler.config.listing import build_listing, read_listing
from straggler.core.loop import Budget
from straggler.record import Record
from straggler.running import progress
from straggler.running.observer import RunProgress
from straggler.running.progress import ProgressBar

SCRIPT = Path(sys.executable).with_name("straggler")
QUICK = ["--dataset", "mixture(samples=300)", "--model", "linear", "--updates", "5", "--jobs", "1"]
SELDOM_ZERO = [*QUICK, "--updates", "50", "--compute", "gaussian(1, 0.8)", "--seed", "4"]  # not at the start
DIGITS = ["--dataset", "digits", "--model", "mlp", "--jobs", "1"]


@dataclass
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return facts

    @property
    def record(self) -> Record:
        return Record(self.summary["record"])

    @property
    def settings(self) -> dict[str, Any]:
        return tomllib.loads(self.record.text)


Command = Callable[..., Outcome]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder, with an empty cache and a wide terminal."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STRAGGLER_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "2000")
    monkeypatch.setattr(out, "width", 250)
    return tmp_path / "here"


@pytest.fixture
def straggler(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs the command in this process."""

    def command(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["straggler", *arguments])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        seen = capsys.readouterr()
        return Outcome(code, seen.out, seen.err)

    return command


# Every option: the other options of its test, its value, and the expected settings of the experiment.

FLAGS: dict[str, tuple[list[str], str | None, dict[str, Any]]] = {
    "--dataset": ([], "mixture(samples=400)", {"dataset": "mixture(samples=400)"}),
    "--model": ([], "mlp(hidden=[8, 4])", {"model": "mlp(hidden=[8, 4])"}),
    "--method": ([], "ssgd", {"policy": "synchronous", "correction": "none", "optimizer": "sgd"}),
    "--policy": ([], "synchronous(aggregate=sum)", {"policy": "synchronous(aggregate=sum)"}),
    "--correction": ([], "none", {"correction": "none"}),
    "--optimizer": ([], "adam(betas=[0.8, 0.9])", {"optimizer": "adam(betas=[0.8, 0.9])"}),
    "--lr": ([], "0.125", {"lr": 0.125}),
    "--momentum": ([], "0.5", {"optimizer": "sgd(momentum=0.5)"}),
    "--nesterov": (["--momentum", "0.5"], None, {"optimizer": "sgd(momentum=0.5, nesterov=True)"}),
    "--weight-decay": ([], "0.001", {"optimizer": "sgd(weight_decay=0.001)"}),
    "--workers": ([], "7", {"workers": 7}),
    "--batch-size": ([], "9", {"batch_size": 9}),
    "--epochs": ([], "0.25", {"epochs": 0.25}),
    "--updates": ([], "3", {"updates": 3}),
    "--gradients": ([], "6", {"gradients": 6}),
    "--seconds": ([], "2.5", {"seconds": 2.5}),
    "--stop": (["--epochs", "0.5"], "each", {"stop": "each"}),
    "--partition": ([], "dirichlet(alpha=0.5)", {"partition": "dirichlet(alpha=0.5)"}),
    "--compute": ([], "gamma(2, 0.1)", {"compute": "gamma(mean=2.0, cv=0.1)"}),
    "--delay": (
        ["--delay", "constant(4, workers=[0])"],
        "exponential(0.5)",
        {"delay": ["constant(seconds=4.0, workers=[0])", "exponential(mean=0.5)"]},
    ),
    "--seed": ([], "11", {"seed": 11}),
    "--metrics": ([], "top-k(2)", {"metrics": ["top-k(k=2)"]}),
    "--until": ([], "test_loss<=-1", {"until": "test_loss <= -1"}),
    "--jobs": ([], "1", {}),
    "--eval-every": ([], "0", {"eval_every": 0.0}),
    "--snapshots": ([], "2", {"snapshots": 2}),
    "--out": ([], "elsewhere/deep", {}),
    "--config": ([], "config.toml", {"lr": 0.75}),
    "--set": (["--set", "warmup=0.5"], "lr=0.25", {"lr": 0.25, "warmup": 0.5}),
    "--json": ([], None, {}),
}
BUDGETS = {"--epochs", "--updates", "--gradients", "--seconds"}

# Every key of the JSON summary, and the type of its value.
KEYS: dict[str, type | tuple[type, ...]] = {
    "id": str,
    "test_accuracy": float,
    "train_accuracy": float,
    "test_loss": float,
    "train_loss": float,
    "updates": int,
    "gradients": int,
    "dispatched": int,
    "applied": int,
    "dropped": int,
    "cancelled": int,
    "in_flight": int,
    "epochs": float,
    "mean_staleness": float,
    "max_staleness": int,
    "seconds": float,
    "host_seconds": float,
    "train_seconds": float,
    "converged": bool,
    "weights_sha256": str,
    "record": str,
}


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_sets_the_experiment(flag: str, straggler: Command, here: Path) -> None:
    others, value, expected = FLAGS[flag]
    Path("config.toml").write_text("lr = 0.75\n")
    options = [flag, *others] if value is None else [*others, flag, value]
    quick = {"--dataset": "mixture(samples=300)", "--model": "linear", "--jobs": "1"}
    if not BUDGETS & set(options):
        quick["--updates"] = "5"
    base = [word for key, text in quick.items() if key not in options for word in (key, text)]
    done = straggler("run", *base, *options, *([] if flag == "--json" else ["--json"]))
    assert done.code == 0, done.err
    assert {key: done.settings[key] for key in expected} == expected
    folder = Path(value or "") if flag == "--out" else Path("runs")
    assert done.record.path == folder / done.summary["id"]
    assert (folder / done.summary["id"] / "summary.json").is_file()


def test_the_last_line_is_the_json_summary(straggler: Command) -> None:
    done = straggler("run", *DIGITS, "--lr", "0.05", "--epochs", "2", "--json")
    facts = done.summary
    assert done.code == 0
    assert not KEYS.keys() - facts.keys()
    assert {key: type(facts[key]) for key in KEYS} == KEYS
    hits = sum(row[i] for i, row in enumerate(facts["confusion"]))
    assert facts["test_accuracy"] == pytest.approx(100 * hits / sum(map(sum, facts["confusion"])))
    assert 50 < facts["test_accuracy"] <= 100 and 50 < facts["train_accuracy"] <= 100  # percent
    assert re.fullmatch(r"[0-9a-f]{64}", facts["weights_sha256"])
    assert facts["converged"] is True
    assert 0 < facts["train_seconds"] < facts["host_seconds"]
    assert facts["epochs"] == pytest.approx(2, abs=0.1)
    assert facts == done.record.summary


@pytest.mark.parametrize(
    "options",
    [
        ["--method", "asgd"],
        ["--method", "ssgd"],
        ["--method", "sgd", "--workers", "1"],
        ["--method", "asgd", "--seconds", "9.5", "--compute", "exponential(1, 0.1)"],
        ["--method", "ssgd", "--gradients", "10"],
        ["--method", "asgd", "--epochs", "1", "--stop", "each", "--delay", "constant(4, workers=[0])"],
    ],
    ids=" ".join,
)
def test_the_ledger_balances(options: list[str], straggler: Command) -> None:
    budget = [] if BUDGETS & set(options) else ["--updates", "20"]
    done = straggler("run", *QUICK[:4], "--jobs", "1", *options, *budget, "--json")
    facts, arrivals = done.summary, done.record.arrivals
    accounted = sum(facts[key] for key in ("applied", "dropped", "cancelled", "in_flight"))
    assert accounted == facts["dispatched"]
    held = facts["gradients"] - facts["applied"] - facts["dropped"]
    assert len(arrivals.filter(arrivals["decision"] != "cancelled")) == facts["gradients"]
    assert held >= 0 and facts["in_flight"] >= held
    assert arrivals["time"].is_sorted() and arrivals["time"].max() <= facts["seconds"]
    staleness = arrivals["staleness"]
    assert facts["max_staleness"] == staleness.max()
    if not held:
        assert facts["mean_staleness"] == pytest.approx(staleness.mean())


def test_a_diverged_run_succeeds_with_valid_json(straggler: Command) -> None:
    done = straggler(
        "run", "--dataset", "quadratic", "--lr", "1e25", "--updates", "50", "--jobs", "1", "--json"
    )
    assert done.code == 0, done.err
    assert done.summary["status"] == "diverged" and done.summary["converged"] is False
    assert "NaN" not in done.out and "Infinity" not in done.out
    shown = straggler("show", done.summary["record"])
    assert shown.code == 0 and "reported the loss" in shown.out


def test_flags_override_set_and_set_overrides_the_file(straggler: Command) -> None:
    Path("config.toml").write_text("lr = 0.1\nseed = 1\nworkers = 2\n")
    done = straggler(
        *("run", *QUICK, "--config", "config.toml", "--set", "seed=2", "--set", "workers=3"),
        *("--workers", "5", "--json"),
    )
    assert (done.settings["lr"], done.settings["seed"], done.settings["workers"]) == (0.1, 2, 5)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--method", "ssgd"], {"policy": "synchronous", "optimizer": "sgd(momentum=0.5)"}),
        (["--method", "nag-asgd"], {"optimizer": "sgd(momentum=0.5, nesterov=True)"}),
        (["--method", "ga"], {"correction": "gap-aware", "optimizer": "sgd(momentum=0.5, nesterov=True)"}),
        (["--method", "async-adam"], {"optimizer": "adam", "momentum": None}),
        (["--momentum", "0.75"], {"optimizer": "sgd(momentum=0.75)"}),
        (["--optimizer", "adam"], {"optimizer": "adam", "momentum": None}),
        (["--method", "ssgd", "--optimizer", "adam"], {"policy": "synchronous", "optimizer": "adam"}),
        (["--gradients", "7"], {"gradients": 7, "updates": None}),
        (["--workers", "2"], {"workers": 2, "min_workers": None}),
    ],
)
def test_flags_override_the_recorded_settings_that_they_stand_for(
    flags: list[str], expected: dict[str, Any], straggler: Command
) -> None:
    first = straggler("run", *QUICK, "--momentum", "0.5", "--workers", "3-4", "--json")
    file = str(first.record.path / "experiment.toml")
    again = straggler("run", "--config", file, *flags, "--jobs", "1", "--json")
    assert again.code == 0 and {key: again.settings.get(key) for key in expected} == expected
    unchanged = [key for key in ("dataset", "model", "lr", "partition", "compute") if key not in expected]
    assert [again.settings[key] for key in unchanged] == [first.settings[key] for key in unchanged]


def test_a_folder_may_have_any_name(straggler: Command) -> None:
    done = straggler("run", *QUICK, "--out", "a [2] *?", "--json")
    assert done.code == 0 and len(done.record.arrivals) == 5
    Path("trace [1].csv").write_text("worker,seconds\n0,1\n")
    traced = straggler("run", *QUICK, "--workers", "1", "--compute", "trace(file='trace [1].csv')", "--json")
    assert traced.summary["seconds"] == 5


@pytest.mark.slow
def test_a_folder_of_landscapes_is_skipped(straggler: Command) -> None:
    straggler("run", *QUICK, "--snapshots", "3", "--out", "l")
    for _ in range(2):
        there = [str(path) for path in sorted(Path("l").iterdir())]
        assert straggler("landscape", *there, "--grid", "2", "--samples", "20", "--jobs", "1").code == 0
    drawn = straggler("plot", "loss", *there)
    assert drawn.code == 0 and "Skipping l/landscapes" in drawn.err
    alone = straggler("plot", "loss", "l/landscapes")
    assert alone.code == 2 and "is not a run" in alone.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["accuracy", "error", "pareto", "heatmap"])
def test_figures_of_accuracy_require_an_accuracy(kind: str, straggler: Command) -> None:
    made = straggler("run", "--dataset", "quadratic", "--updates", "9", "--jobs", "1", "--json").record.path
    drawn = straggler("plot", kind, str(made))
    assert drawn.code == 2 and "lot the loss" in drawn.err
    assert not Path(f"{kind}.png").exists()


def test_a_schedule_that_ends_before_the_gradients_do_is_refused_at_once(straggler: Command) -> None:
    short = ["--schedule", "OneCycleLR(max_lr=0.1, total_steps=3)"]
    done = straggler("run", *DIGITS, "--gradients", "300", *short)
    assert done.code == 2 and "Make it last longer" in done.err
    assert not Path("runs").exists()


def test_commands_to_copy_are_quoted(straggler: Command) -> None:
    done = straggler("run", *QUICK, "--out", "two words")
    assert re.search(r"straggler show 'two words/\w+'", done.out)


@pytest.mark.parametrize(
    ("name", "reason"), [("weights.safetensors", "cannot be read"), ("arrivals.parquet", "no arrivals")]
)
def test_replay_refuses_a_damaged_record(name: str, reason: str, straggler: Command) -> None:
    record = straggler("run", *QUICK, "--json").record
    file = record.path / name
    file.unlink() if name.startswith("arrivals") else file.write_bytes(file.read_bytes()[:100])
    done = straggler("replay", str(record.path))
    assert done.code == 2 and reason in done.err and "identical" not in done.out


def test_show_prints_the_whole_curve_on_a_narrow_terminal(
    straggler: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = straggler(
        "run", *DIGITS, "--epochs", "1", "--validation", "0.2", "--train-metrics", "always", "--json"
    )
    monkeypatch.setattr(out, "width", 80)
    shown = straggler("show", str(made.record.path)).out
    curve = made.record.curve
    for column in ("test_loss", "validation_loss", "validation_accuracy", "train_loss", "train_accuracy"):
        assert all(f"{value:.3f}" in shown for value in curve[column]), column
    assert max(map(len, shown.splitlines())) <= 80


def test_components_override_the_method(straggler: Command) -> None:
    done = straggler("run", *QUICK, "--method", "ssgd", "--optimizer", "adamw", "--json")
    assert (done.settings["policy"], done.settings["optimizer"]) == ("synchronous", "adamw")


def test_set_parses_values_as_toml(straggler: Command) -> None:
    laws = '["constant(1)", {name = "gaussian", mean = 3, std = 0.5}]'
    done = straggler("run", *QUICK, "--set", f"delay={laws}", "--set", "partition=shards(3)", "--json")
    assert done.settings["delay"] == ["constant(seconds=1.0)", "gaussian(mean=3.0, std=0.5)"]
    assert done.settings["partition"] == "shards(per_worker=3)"


@pytest.mark.parametrize(
    "options",
    [
        ["--momentum", "0.9", "--nesterov"],
        ["--optimizer", "adam", "--schedule", "exponential(gamma=0.9)", "--warmup", "0.5"],
        ["--method", "ssgd", "--delay", "on-off(0.1, 0.2, 5, workers=[0])", "--partition", "shards"],
        ["--dataset", "quadratic(noise=0.1)", "--model", "lenet5"],  # the default model is ignored
    ],
    ids=" ".join,
)
def test_a_recorded_experiment_is_a_configuration(options: list[str], straggler: Command) -> None:
    """experiment.toml determines the run: the same id, the same weights."""
    first = straggler("run", *QUICK, *options, "--json")
    file = str(first.record.path / "experiment.toml")
    again = straggler("run", "--config", file, "--jobs", "1", "--out", "again", "--json")
    assert again.code == 0, again.err
    assert again.record.path != first.record.path
    assert again.summary["id"] == first.summary["id"]
    assert again.summary["weights_sha256"] == first.summary["weights_sha256"]


def times_of(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != ".lock"}


def test_identical_runs_are_cached(straggler: Command) -> None:
    first = straggler("run", *QUICK, "--json")
    before = times_of(first.record.path)
    second = straggler("run", *QUICK, "--json")
    assert second.summary == first.summary  # including the host seconds
    assert times_of(first.record.path) == before
    third = straggler("run", *QUICK, "--force", "--json")
    assert times_of(first.record.path)["summary.json"] > before["summary.json"]
    assert third.summary["weights_sha256"] == first.summary["weights_sha256"]
    assert third.summary["host_seconds"] != first.summary["host_seconds"]


def test_the_id_ignores_settings_that_do_not_change_the_run(straggler: Command) -> None:
    first = straggler("run", *QUICK, "--json").summary
    assert straggler("run", *QUICK, "--method", "asgd", "--json").summary["id"] == first["id"]
    assert straggler("run", *QUICK, "--out", "other", "--json").summary["id"] == first["id"]
    assert straggler("run", *QUICK, "--seed", "1", "--json").summary["id"] != first["id"]


def test_a_moved_record_is_found(straggler: Command) -> None:
    straggler("run", *QUICK, "--json")
    Path("runs").rename("moved")
    again = straggler("run", *QUICK, "--out", "moved", "--json")
    assert again.record.path.parent == Path("moved")


def test_without_json_the_result_is_a_table(straggler: Command) -> None:
    done = straggler("run", *DIGITS, "--updates", "5")
    assert done.code == 0
    assert "test accuracy" in done.out and "straggler show runs/" in done.out


# Invalid input: one line with the value, the rule and the remedy; exit code 2; no files are left.

BAD: dict[str, tuple[list[str], list[str]]] = {
    "unknown method": (["--method", "asdg"], ["'asdg'", "Unknown method", "Did you mean 'asgd'"]),
    "Unknown model": (["--model", "lenet6"], ["'lenet6'", "Unknown model", "Did you mean 'lenet5'"]),
    "Unknown data set": (["--dataset", "digitz"], ["'digitz'", "Unknown data set", "Did you mean 'digits'"]),
    "Unknown policy": (["--policy", "synchronus"], ["'synchronus'", "Did you mean 'synchronous'"]),
    "Unknown correction": (["--correction", "nonne"], ["'nonne'", "Did you mean 'none'"]),
    "Unknown optimizer": (["--optimizer", "rmspropp"], ["'rmspropp'", "Did you mean 'rmsprop'"]),
    "Unknown partition": (["--partition", "dirichlett(1)"], ["'dirichlett'", "Did you mean 'dirichlet'"]),
    "unknown law": (["--compute", "gama(1, 1)"], ["'gama'", "Did you mean 'gamma'"]),
    "unknown schedule": (["--schedule", "exponentail"], ["'exponentail'", "Did you mean 'exponential'"]),
    "lr 0": (["--lr", "0"], ["lr", "0.0", "greater than 0", "for example lr=0.01"]),
    "lr below 0": (["--lr", "-0.5"], ["lr", "-0.5", "greater than 0", "for example lr="]),
    "lr nan": (["--lr", "nan"], ["lr", "nan", "finite", "for example lr="]),
    "lr inf": (["--lr", "inf"], ["lr", "inf", "finite", "for example lr="]),
    "lr text": (["--set", "lr=fast"], ["lr", "'fast'", "valid number", "for example lr="]),
    "0 workers": (
        ["--workers", "0"],
        ["workers", "0", "greater than or equal to 1", "for example workers=4"],
    ),
    "workers in words": (["--workers", "many"], ["workers", "'many'", "valid integer"]),
    "fewer at most than at least": (["--workers", "8-2"], ["min_workers=8", "workers=2"]),
    "more workers than samples": (
        ["--workers", "1438"],
        ["1438 workers", "1437 samples", "at least 1 samples per worker", "Use at most 1437"],
    ),
    "batch of 0": (["--batch-size", "0"], ["batch_size", "0", "at least 1"]),
    "negative delay": (["--delay", "constant(-1)"], ["seconds", "-1", "greater than or equal to 0"]),
    "negative delay, second": (["--delay", "constant(1)", "--delay", "constant(-2)"], ["delay.1", "-2"]),
    "negative compute": (["--compute", "gaussian(-1, 1)"], ["mean", "-1", "greater than or equal to 0"]),
    "delay of a missing worker": (
        ["--delay", "constant(1, workers=[9])"],
        ["worker 9 does not exist", "0 to 3"],
    ),
    "compute time of 0": (["--compute", "constant(0)"], ["gives 0.0 seconds", "positive"]),
    "step of 0": (["--schedule", "step(step_size=0)"], ["fails after 0 epochs", "Change its numbers"]),
    "rate of inf": (
        ["--schedule", "exponential(gamma=1e999)", "--epochs", "3"],
        ["learning rate inf"],
    ),
    "text for epochs": (["--schedule", "multistep(milestones=[a])"], ["only numbers"]),
    "address without ray": (["--address", "1.2.3.4:5"], ["requires engine='ray'", "simulator"]),
    "resources without ray": (["--worker-resources", "CPU=2"], ["requires engine='ray'", "simulator"]),
    "invalid checkpoint interval": (["--checkpoint-every", "abc"], ["checkpoint_every", "'abc'", "60s"]),
    "a name too long": (["--out", "x" * 300], ["File name too long", "Choose a file or folder"]),
    "two budgets": (["--epochs", "1", "--seconds", "9"], ["epochs and seconds", "one budget"]),
    "no budget at all": (["--epochs", "0"], ["epochs", "0.0", "greater than 0"]),
    "share of updates": (["--updates", "9", "--stop", "each"], ["stop='each'", "epochs or gradients"]),
    "unknown stop": (["--stop", "some"], ["stop", "'some'", "'all' or 'each'"]),
    "one worker only": (["--method", "sgd"], ["method=sgd requires workers=1", "workers=4", "asgd"]),
    "momentum of 1": (["--momentum", "1"], ["momentum", "1.0", "less than 1"]),
    "momentum twice": (["--momentum", ".5", "--optimizer", "sgd(momentum=.9)"], ["momentum is set twice"]),
    "momentum for adam": (["--momentum", ".5", "--optimizer", "adam"], ["adam has no momentum", "sgd"]),
    "nesterov alone": (["--nesterov"], ["nesterov requires a momentum", "momentum", "0.9"]),
    "seed below 0": (["--seed", "-1"], ["seed", "-1", "greater than or equal to 0", "for example seed=0"]),
    "snapshots below 0": (["--snapshots", "-1"], ["snapshots", "-1", "greater than or equal to 0"]),
    "eval-every nan": (["--eval-every", "nan"], ["eval_every", "nan", "finite"]),
    "model for other data": (["--model", "asu-cifar"], ["3×32×32", "1×28×28", "lenet5"]),
    "a list for a method": (["--set", "method=[1]"], ["method", "[1]"]),
    "wrong optimizer in TOML": (
        ["--config", "optimizer.toml", "--momentum", ".5"],
        ["Unknown optimizer 'sdg'", "Did you mean 'sgd'"],
    ),
    "schedule too short": (
        ["--updates", "400", "--schedule", "onecycle(max_lr=.1, total_steps=3)"],
        ["ends after", "Make it last longer"],
    ),
    "a method for a policy": (["--policy", "ssgd"], ["'ssgd' is a method", "method='ssgd'"]),
    "a number for a list": (["--delay", "constant(1, workers=0)"], ["workers", "0", "Write workers=[0]"]),
    "nesterov without momentum": (
        ["--method", "ga", "--momentum", "0"],
        ["--no-nesterov", "momentum", "0.9"],
    ),
    "schedule too short for all shares": (
        ["--stop", "each", "--partition", "shared", "--schedule", "onecycle(max_lr=.1, total_steps=3)"],
        ["ends after", "Make it last longer"],
    ),
    "model for a formula": (
        ["--dataset", "quadratic", "--model", "linear"],
        ["model", "linear", "quadratic is a formula"],
    ),
    "decay divided and summed": (
        ["--method", "ga", "--policy", "k-batch-async(k=2, aggregate=sum)", "--weight-decay", ".1"],
        ["divides the weight decay", "Use aggregation='mean'"],
    ),
    "spikes in real time": (
        ["--engine", "processes", "--delay", "spikes(.1, 5)"],
        ["spikes", "requires engine='simulator'"],
    ),
    "unknown --set key": (["--set", "workres=3"], ["'workres'", "unknown key", "Did you mean 'workers'"]),
    "--set without =": (["--set", "workers"], ["'workers'", "key=value"]),
    "unknown key in TOML": (["--config", "typo.toml"], ["'batch_sise'", "Did you mean 'batch_size'"]),
    "broken TOML": (["--config", "broken.toml"], ["broken.toml", "line 1"]),
    "no TOML": (["--config", "absent.toml"], ["absent.toml", "No such file"]),
    "binary TOML": (["--config", "binary.toml"], ["binary.toml", "decode"]),
    "folder for TOML": (["--config", "."], ["Is a directory"]),
    "folder below a file": (["--out", "file/runs"], ["file/runs", "cannot be written", "--out"]),
    "file for a folder": (["--out", "file"], ["file", "cannot be written", "--out"]),
    "data folder that is none": (["--dataset", "mnist", "--data", "absent"], ["absent", "is not a folder"]),
    "unquoted file name": (["--delay", "trace(jobs.csv)"], ["trace(jobs.csv)", "'quoted text'"]),
    "absent trace": (["--delay", "trace('jobs.csv')"], ["jobs.csv", "columns worker and seconds"]),
    "10^9 workers": (["--workers", "1000000000"], ["workers", "1000000", "1000000000"]),
    "10^12 samples": (["--dataset", "mixture(samples=1000000000000)"], ["mixture", "1000000000000"]),
    "module that is missing": (["--policy", "absent_package:Name"], ["No module named 'absent_package'"]),
    "file that is missing": (["--policy", "./absent.py:Name"], ["absent.py does not exist"]),
    "name that is missing": (["--policy", "./custom.py:Quorun"], ["custom.py has no 'Quorun'", "'Quorum'"]),
    "class of the wrong kind": (["--correction", "./custom.py:Quorum"], ["Quorum is not a correction"]),
    "syntax error": (["--policy", "./broken.py:Name"], ["syntax error in line 2 of broken.py"]),
    "settings that do not fit": (["--policy", "./custom.py:Quorum(sharp=1)"], ["'sharp'", "'share'"]),
    "import string in a file": (
        ["--config", "custom.toml"],
        ["custom.toml", "./custom.py:Quorum", "--trust"],
    ),
}
BAD_FILES = {
    "typo.toml": b"batch_sise = 3\n",
    "broken.toml": b"workers = = 3\n",
    "optimizer.toml": b'optimizer = "sdg"\n',
    "binary.toml": b"\xff\xfe\x00",
    "file": b"in the way",
    "custom.py": b"from straggler import Policy\n\n\nclass Quorum(Policy):\n    share: float = 0.5\n\n"
    b"    def receive(self, server, arrival):\n        return ()\n",
    "broken.py": b"x = 1\ndef f(:\n",
    "custom.toml": b'policy = "./custom.py:Quorum"\n',
}


def check_refusal(done: Outcome, needles: list[str]) -> None:
    assert done.code == 2, done.err
    assert done.out == ""
    assert done.err.startswith("error: ") and done.err.count("\n") == 1, done.err
    assert [needle for needle in needles if needle not in done.err] == [], done.err


@pytest.mark.parametrize("case", BAD)
def test_wrong_input(case: str, straggler: Command, here: Path) -> None:
    options, needles = BAD[case]
    for name, content in BAD_FILES.items():
        Path(name).write_bytes(content)
    before = {path for path in here.rglob("*") if "__pycache__" not in path.parts}
    check_refusal(straggler("run", *DIGITS, *options, "--json"), needles)
    assert {path for path in here.rglob("*") if "__pycache__" not in path.parts} == before


@pytest.mark.parametrize("folder", ["/proc/straggler", "sealed/runs"])
def test_a_folder_that_cannot_be_written(folder: str, straggler: Command) -> None:
    if folder.startswith("/proc") and not Path("/proc/self").exists():
        pytest.skip("there is no /proc")
    Path("sealed").mkdir(mode=0o555)
    if folder.startswith("sealed") and os.access("sealed", os.W_OK):
        pytest.skip("root may write anywhere")
    check_refusal(straggler("run", *DIGITS, "--out", folder), [folder, "cannot be written", "--out"])
    assert not Path(folder).exists()


def broken_mnist(folder: Path, size: int | None, fill: bytes = b"") -> None:
    """MNIST's files with `size` bytes of black images, or with other content."""
    folder.mkdir()
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        images = folder / f"{part}-images-idx3-ubyte"
        images.write_bytes(fill or struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28))
        labels = folder / f"{part}-labels-idx1-ubyte"
        labels.write_bytes(struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(count))
        if size is not None:
            os.truncate(images, 16 + min(size, count * 784))


@pytest.mark.parametrize(
    ("size", "fill", "needle"),
    [
        (1000, b"", "truncated"),
        (60_000 * 784, b"", "SHA-256"),
        (None, b"<html>not found</html>", "train-images-idx3-ubyte"),
    ],
    ids=["truncated", "corrupted", "something else"],
)
def test_a_damaged_data_file(
    size: int | None, fill: bytes, needle: str, straggler: Command, here: Path
) -> None:
    broken_mnist(here / "mine", size, fill)
    done = straggler("run", "--dataset", "mnist", "--data", "mine", "--out", "runs", "--jobs", "1")
    remarks, error = done.err.splitlines()[:-1], done.err.splitlines()[-1]
    assert not [line for line in remarks if "Traceback" in line]
    check_refusal(Outcome(done.code, done.out, error + "\n"), ["mine", "images", needle, "--data"])
    assert not Path("runs").exists()


MISUSE: dict[str, tuple[list[str], list[str]]] = {
    "no such option": (["run", "--bogus"], ["--bogus", "see straggler run --help"]),
    "an option misspelt": (["run", "--worker", "3"], ["--worker", "--workers", "see straggler run --help"]),
    "no number": (
        ["run", "--lr", "abc"],
        ["'--lr'", "got 'abc'", "valid number", "see straggler run --help"],
    ),
    "too small": (
        ["run", "--jobs", "0"],
        ["'--jobs'", "got '0'", "or equal to 1", "see straggler run --help"],
    ),
    "no value": (["run", "--lr"], ["--lr", "requires an argument", "see straggler run --help"]),
    "no such command": (["frobnicate"], ["'frobnicate'", "see straggler --help"]),
    "a command misspelt": (["rum"], ["'rum'", "'run'", "see straggler --help"]),
    "no argument": (["show"], ["missing argument 'RUN'", "see straggler show --help"]),
    "one too many": (["cite", "asgd", "ssgd"], ["ssgd", "see straggler cite --help"]),
    "no such choice": (
        ["report", "x", "--format", "doc"],
        ["'doc'", "'html'", "see straggler report --help"],
    ),
}


@pytest.mark.parametrize("what", MISUSE)
def test_invalid_usage_is_an_error_of_one_line(what: str, straggler: Command, here: Path) -> None:
    arguments, needles = MISUSE[what]
    check_refusal(straggler(*arguments), needles)
    assert not list(here.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["densities", "--out", "/proc/none/x.png"],
        ["speedup", "--workers", "1", "--iterations", "1", "--repetitions", "1", "--out", "/proc/x.csv"],
    ],
    ids=lambda words: words[0],
)
def test_an_unwritable_file_is_an_error_of_one_line(arguments: list[str], straggler: Command) -> None:
    done = straggler(*arguments)
    assert done.code == 2 and done.err.splitlines()[-1].startswith("error: ") and "Traceback" not in done.err
    assert "/proc/" in done.err and "Choose a file or folder" in done.err


def test_no_command_shows_the_help(straggler: Command) -> None:
    done = straggler()
    assert done.code == 2 and "Usage: straggler" in done.out + done.err
    assert "error" not in done.err


# A failed run.


def test_an_impossible_duration_fails_the_run(straggler: Command) -> None:
    done = straggler("run", *SELDOM_ZERO, "--json")
    assert done.code == 1
    assert re.search(r"error: the run failed: worker \d, job \d+: gaussian\(mean=1.0, std=0.8\)", done.err)
    assert "Traceback" not in done.err and done.err.count("\n") == 1
    (folder,) = Path("runs").iterdir()
    facts = Record(folder).summary
    assert facts["status"] == "failed" and "worker" in facts["error"]
    assert straggler("show", str(folder)).code == 0


def test_an_unexpected_failure_prints_a_traceback(
    straggler: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("in the middle")

    reached = Budget.reached

    monkeypatch.setattr(Budget, "reached", fail)
    done = straggler("run", *QUICK)
    assert done.code == 1
    assert "Traceback" in done.err and done.err.endswith("error: the run failed: in the middle\n")
    (folder,) = Path("runs").iterdir()
    assert Record(folder).summary["error"] == "ZeroDivisionError: in the middle"
    monkeypatch.setattr(Budget, "reached", reached)
    assert straggler("run", *QUICK, "--json").summary["status"] == "finished"  # a failed run is run again


def test_ctrl_c_prints_the_folder_of_the_record(straggler: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Budget, "reached", press)
    done = straggler("run", *QUICK)
    (folder,) = Path("runs").iterdir()
    assert done.code == 130
    assert done.err.startswith("error: interrupted. The run so far is in ")
    assert Record(folder).summary["status"] == "interrupted"
    assert done.err.rstrip().endswith(f"straggler resume runs/{folder.name}")


def test_the_resume_command_of_custom_code_has_trust(
    straggler: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*_: Any) -> None:
        raise KeyboardInterrupt

    Path("custom.py").write_bytes(BAD_FILES["custom.py"])
    with monkeypatch.context() as patch:
        patch.setattr(Budget, "reached", press)
        done = straggler("run", *QUICK, "--policy", "./custom.py:Quorum")
    (folder,) = Path("runs").iterdir()
    assert done.code == 130 and done.err.rstrip().endswith(f"straggler resume runs/{folder.name} --trust")


# Commands that show something.


CATALOGUES = {name: [row[0] for row in table["rows"]] for name, table in read_listing().items()}


def test_the_committed_listing_is_current() -> None:
    assert read_listing() == build_listing(), "run: python -m straggler.config.listing"


@pytest.mark.parametrize("what", CATALOGUES)
def test_list_shows_every_entry(what: str, straggler: Command) -> None:
    done = straggler("list", what)
    assert done.code == 0
    firsts = {line.split()[0] for line in done.out.splitlines() if line.strip()}
    assert set(CATALOGUES[what]) <= firsts
    assert "lambda" not in done.out


def test_list_shows_every_catalogue(straggler: Command) -> None:
    done = straggler("list")
    firsts = {line.split()[0] for line in done.out.splitlines() if line.strip()}
    assert {name for catalogue in CATALOGUES.values() for name in catalogue} <= firsts
    assert set(CATALOGUES) <= firsts
    assert "gaussian" not in straggler("list", "models").out


def test_list_prints_settings_as_they_are_written(straggler: Command) -> None:
    assert "hidden=[64]" in straggler("list", "models").out
    assert "seconds, workers=None" in straggler("list", "delays").out


def test_list_suggests_a_catalogue(straggler: Command) -> None:
    check_refusal(straggler("list", "modles"), ["'modles'", "Did you mean 'models'"])


def test_show_by_folder_and_by_id(straggler: Command) -> None:
    facts = straggler("run", *DIGITS, "--updates", "8", "--workers", "2", "--json").summary
    shown = straggler("show", facts["record"])
    assert shown.code == 0
    for needle in (
        'dataset = "digits"',
        facts["weights_sha256"],
        "curve",
        "staleness",
        "precision",
        "finished",
    ):
        assert needle in shown.out
    assert straggler("show", facts["id"]).out == shown.out
    assert straggler("show", facts["id"][:4]).out == shown.out
    Path("runs").rename("other")
    assert straggler("show", facts["id"], "--out", "other").out == shown.out


@pytest.mark.parametrize("run", ["absent", "/absent/run", "**", "../*", "runs"])
def test_show_refuses_what_is_not_a_run(run: str, straggler: Command) -> None:
    straggler("run", *QUICK)
    needles = ["not a run"] if run == "runs" else [repr(run), "No run starts", "Pass its folder", "--runs"]
    check_refusal(straggler("show", run), needles)


def test_show_refuses_an_ambiguous_id(straggler: Command) -> None:
    ids = [straggler("run", *QUICK, "--seed", str(seed), "--json").summary["id"] for seed in range(20)]
    shared = next(first for first in "0123456789abcdef" if sum(i.startswith(first) for i in ids) > 1)
    check_refusal(straggler("show", shared), [repr(shared), "more of its id"])


def test_show_of_a_damaged_record(straggler: Command) -> None:
    record = straggler("run", *QUICK, "--json").record
    (record.path / "curve.parquet").write_bytes(b"PAR1 and then nothing")
    check_refusal(straggler("show", str(record.path)), ["curve.parquet", "cannot be read", "--force"])
    (record.path / "summary.json").write_text("{")
    check_refusal(straggler("show", str(record.path)), ["summary.json", "cannot be read"])
    assert (
        straggler("run", *QUICK, "--json").summary["status"] == "finished"
    )  # running again repairs the record


def test_data_with_an_empty_cache(straggler: Command, here: Path) -> None:
    done = straggler("data")
    rows = {line.split()[0]: line.split() for line in done.out.splitlines() if line.strip()}
    assert done.code == 0
    assert rows["fashion-mnist"][1] == rows["mnist"][1] == rows["cifar10"][1] == "no"
    assert rows["digits"][1] == rows["mixture"][1] == "yes"
    assert rows["digits"][2:5] == ["1,437", "+", "360"]
    assert straggler("data", "digits").code == 0
    check_refusal(straggler("data", "mnistt"), ["'mnistt'", "Did you mean 'mnist'"])


def test_data_reports_damaged_files(straggler: Command, here: Path) -> None:
    folder = here.parent / "cache" / "mnist"
    folder.mkdir(parents=True)
    (folder / "train-images.npy").write_bytes(b"half")
    rows = {line.split()[0]: line.split() for line in straggler("data").out.splitlines() if line.strip()}
    assert rows["mnist"][1] == "damaged"


COMMANDS = [str(command.name) for command in cli.build_app().registered_commands]


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help(command: str | None, straggler: Command) -> None:
    done = straggler(*([command] if command else []), "--help")
    assert done.code == 0 and "Usage: straggler" in done.out
    if command == "run":
        assert [flag for flag in FLAGS if not re.search(rf"{flag}\b", done.out)] == []
    if command is None:
        assert {"run", "list", "data", "show"} <= set(COMMANDS)
        assert [name for name in COMMANDS if name not in done.out] == []
        assert "Train" in done.out and "Show" in done.out  # groups


def test_the_version(straggler: Command) -> None:
    done = straggler("--version")
    assert done.code == 0 and done.out == f"straggler {metadata.version('straggler')}\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", [["--help"], ["list"], ["cite", "ga"], ["show"], ["--version"]])
def test_commands_that_only_show_do_not_import_torch(command: list[str], straggler: Command) -> None:
    if command == ["show"]:
        command = ["show", str(straggler("run", *DIGITS, "--epochs", "1", "--json").record.path)]
    code = (
        "import sys, atexit; from straggler.__main__ import main\n"
        "heavy = {'torch', 'sklearn', 'matplotlib', 'scipy', 'plotly', 'starlette', 'ray'}\n"
        "atexit.register(lambda: print('loaded:', *heavy & set(sys.modules)))\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines()[-1].split() == ["loaded:"]


# The progress bar.


def bar_text(terminal: bool) -> str:
    screen = io.StringIO()
    with ProgressBar(
        Console(file=screen, force_terminal=terminal, width=200, highlight=False), "title"
    ) as bar:
        bar.say("a remark [in brackets]")
        bar.update(RunProgress(0.25, 12.0, 30, 1.2345, 2.5, 87.65))
        bar.update(RunProgress(1.0, 12.0, 30, 1.2345, 2.5, None))
    return screen.getvalue()


def test_a_terminal_shows_a_bar() -> None:
    seen = bar_text(terminal=True)
    assert "100%" in seen and "loss 1.234" in seen and "a remark [in brackets]" in seen


def test_without_a_terminal_progress_is_printed_as_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bar_text(terminal=False) == "title: a remark [in brackets]\n"
    monkeypatch.setattr(progress, "LINE_SECONDS", -1.0)
    _, first, second = bar_text(terminal=False).splitlines()
    assert first == "title:  25%  12 s  loss 1.234  acc 87.7 %  τ 2.5"
    assert second == "title: 100%  12 s  loss 1.234  τ 2.5"


# The installed command, in a separate process.

LONG = ["run", "--dataset", "digits", "--model", "mlp", "--epochs", "1000000", "--eval-every", "0", "--json"]


def living(group: int) -> list[str]:
    """Return the processes of a group that have not ended; a zombie has."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return [" ".join(row) for row in rows if row[0] == str(group) and not row[1].startswith("Z")]


def wait_for(happened: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


@pytest.fixture
def running(here: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a long run on two processes and wait until it has written arrivals."""
    process = subprocess.Popen(
        [SCRIPT, *LONG, "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(lambda: list(here.glob("runs/*/arrivals.parts/*.parquet")) and len(living(process.pid)) == 3)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def the_record() -> Record:
    (folder,) = Path("runs").iterdir()
    return Record(folder)


@pytest.mark.slow
def test_sigint_ends_a_run_cleanly(running: subprocess.Popen[str], straggler: Command) -> None:
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    out, err = running.communicate(timeout=120)
    assert running.returncode == 130
    assert out == "" and "Traceback" not in err
    assert err.splitlines()[-1].startswith(f"error: interrupted. The run so far is in {the_record().path};")
    wait_for(lambda: not living(running.pid))
    record = the_record()
    assert record.summary["status"] == "interrupted"
    assert len(record.arrivals) > 0 and record.arrivals["time"].is_sorted()
    assert straggler("show", str(record.path)).code == 0


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "library"), [("landscape", "torch"), ("densities", "matplotlib")])
def test_sigint_during_the_imports(asked: str, library: str, here: Path) -> None:
    command = [sys.executable, "-m", "straggler", asked]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes)
    wait_for(lambda: library in Path(f"/proc/{process.pid}/maps").read_text())  # it imports
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "error: interrupted\n")


@pytest.mark.slow
def test_sigint_while_the_processes_start(here: Path) -> None:
    process = subprocess.Popen(
        [SCRIPT, *LONG, "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(lambda: len(living(process.pid)) == 2)  # the fork server is there, its children are not
        time.sleep(0.4)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 130
        assert err.startswith("error: interrupted. The run so far is in ")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_sigkill_leaves_a_readable_record(running: subprocess.Popen[str], straggler: Command) -> None:
    refused = straggler(*LONG, "--jobs", "1")  # while it is being written
    check_refusal(refused, ["Another process is writing runs/", "Wait until it ends", "--out"])
    os.kill(running.pid, signal.SIGKILL)
    running.communicate(timeout=120)
    wait_for(lambda: not living(running.pid))  # its child processes exit too
    record = the_record()
    assert record.summary["status"] == "running"
    assert len(record.arrivals) > 0 and record.arrivals["loss"].null_count() == 0
    assert straggler("show", str(record.path)).code == 0
    with pytest.MonkeyPatch.context() as patch:  # the same run starts over in the same folder
        patch.setattr(Budget, "reached", lambda budget, server: server.k >= 7)
        assert straggler(*LONG, "--jobs", "1").record.path == record.path
    record.reload()
    assert record.summary["status"] == "finished" and len(record.arrivals) == 7


@pytest.mark.slow
def test_the_installed_command(here: Path) -> None:
    def command(*arguments: str) -> Outcome:
        done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, timeout=120)
        return Outcome(done.returncode, done.stdout, done.stderr)

    done = command("run", *DIGITS[:4], "--jobs", "2", "--updates", "5", "--json")
    assert done.code == 0 and done.err == ""
    assert not KEYS.keys() - done.summary.keys()
    assert len(done.out.splitlines()) == 1
    assert done.record.environment["command"][1:] == [
        "run",
        *DIGITS[:4],
        "--jobs",
        "2",
        "--updates",
        "5",
        "--json",
    ]
    check_refusal(command("run", "--method", "asdg"), ["Did you mean 'asgd'"])
    assert command("run", "--bogus").code == 2
    assert command("run", *SELDOM_ZERO).code == 1


@pytest.mark.slow
def test_a_terminal_without_multiplication_signs_shows_question_marks() -> None:
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([SCRIPT, "list", "methods"], capture_output=True, env=ascii_only, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"") and b"?" in done.stdout
