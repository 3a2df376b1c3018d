"""`plot` in Python and on the command line: every kind of figure, labels, sizes and refusals."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from figure_testing import copy_with, invoke, legend_of

from straggler.analysis.figures.plot import KINDS, plot
from straggler.config.registry import InputError
from straggler.record import Record, RecordError

pytest_plugins = ["figure_testing"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn(kind: str, runs: dict[str, Record], digits: Record, tmp_path: Path) -> None:
    needs_classes = kind in ("accuracy", "pareto", "heatmap", "error")
    records = {"digits": digits} if needs_classes else runs
    target = tmp_path / f"{kind}.png"
    plot(records, kind, against="updates", out=target)
    assert target.stat().st_size > 3_000 and list(tmp_path.iterdir()) == [target]


def test_records_may_be_objects_paths_lists_or_dictionaries(runs: dict[str, Record]) -> None:
    first, second = runs["asynchronous"], runs["synchronous"]
    assert plot(first, "loss").axes
    assert legend_of(plot([str(first.path), second.path], "loss")) == ["ssgd", "asgd"]
    assert legend_of(plot({"mine": first, "other": [second]}, "loss")) == ["mine", "other"]


def test_labels_size_and_title(runs: dict[str, Record], digits: Record, tmp_path: Path) -> None:
    two = [runs["asynchronous"], runs["synchronous"]]
    figure = plot(two, "staleness", labels=["one", "two"], size=(7, 3), title="Mine")
    assert [label.split(" (")[0] for label in legend_of(figure)] == ["one", "two"]
    assert figure.get_size_inches().tolist() == [7, 3] and "Mine" in figure.get_suptitle()
    assert legend_of(plot(two, "loss", labels=["same", "same"])) == ["test loss", "batch loss"]
    seeds = [copy_with(digits, tmp_path, seed=seed, lr=lr) for seed in range(2) for lr in (0.1, 0.2)]
    assert legend_of(plot(seeds, labels=["low", "high"])) == ["low", "high"]
    with pytest.raises(InputError, match="3 labels do not fit"):
        plot(seeds, labels=["a", "b", "c"])


def test_the_folder_of_a_sweep_stands_for_its_runs(digits: Record, tmp_path: Path) -> None:
    records = [copy_with(digits, tmp_path / "runs", lr=lr) for lr in (0.1, 0.2)]
    (tmp_path / "results").mkdir()
    names = [record.path.name for record in records]
    pl.DataFrame({"id": [*names, "missing"]}).write_parquet(tmp_path / "results" / "summaries.parquet")
    labels = ["asgd, lr 0.1", "asgd, lr 0.2"]
    assert legend_of(plot(tmp_path / "results", runs=tmp_path / "runs")) == labels
    out = tmp_path / "f.svg"
    result = invoke(
        "plot", "accuracy", str(tmp_path / "results"), "--runs", str(tmp_path / "runs"), "--out", str(out)
    )
    assert result.exit_code == 0 and all(label in out.read_text() for label in labels)
    with pytest.raises(InputError, match="None of the runs"):
        plot(tmp_path / "results", runs=tmp_path)
    named = {"runs": tmp_path / "runs", "results": tmp_path}
    assert legend_of(plot("results", **named)) == labels  # the name of a sweep
    chosen = plot({"low": "results"}, "loss", **named, only=["lr=0.1"])
    assert legend_of(chosen) == ["test loss", "batch loss"]
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path), "--out", str(out)]
    assert invoke("plot", "accuracy", "results", *places, "--style", "paper").exit_code == 0
    assert all(label in out.read_text() for label in labels) and 'width="241.2pt"' in out.read_text()


def test_only_runs_with_a_setting_are_drawn(runs: dict[str, Record]) -> None:
    every = list(runs.values())
    assert legend_of(plot(every, "loss", only=["method=ssgd"])) == ["test loss", "batch loss"]
    assert len(legend_of(plot(every, "loss", only=["lr=0.05", "workers=4"]))) == len(runs)
    for wrong, rule in (
        ("lr", "must be a setting"),
        ("speed=1", "must be a setting"),
        ("lr=7", "lr is 0.05"),
        ("method=ga", "leaves no run"),
    ):
        with pytest.raises(InputError, match=rule):
            plot(every, "loss", only=[wrong])


def test_the_command_draws_with_labels_size_and_title(runs: dict[str, Record], tmp_path: Path) -> None:
    target = tmp_path / "gap.svg"
    folders = [str(record.path) for record in runs.values()]
    more = ["--against", "gradients", "--size", "7", "4", "--title", "A title", "--out", str(target)]
    result = invoke("plot", "gap", *folders, *more)
    assert result.exit_code == 0, result.output
    assert "ssp(bound=1.0)" in target.read_text() and "A title" in target.read_text()
    result = invoke("plot", "gap", *folders[:2], *more, "--label", "mine", "--label", "other")
    assert result.exit_code == 0 and "other" in target.read_text()


@pytest.mark.filterwarnings("error::UserWarning", "error::RuntimeWarning")
@pytest.mark.parametrize("kind", ["accuracy", "loss", "gap", "staleness"])
def test_seeds_are_one_entry_of_the_legend(kind: str, digits: Record, tmp_path: Path) -> None:
    laws = [f"spikes(probability=0.1, seconds={seconds}.0, workers=[0, 1, 2, 3])" for seconds in range(2, 14)]
    some = [copy_with(digits, tmp_path / str(n), delay=[law], seed=n) for n in range(2) for law in laws]
    seconds = [label.split("seconds=")[1].split(".")[0] for label in legend_of(plot(some, kind))]
    assert seconds == [str(number) for number in range(2, 14)]  # 10 comes after 9
    more = copy_with(digits, tmp_path, delay=[], seed=5)
    with pytest.raises(InputError, match="at most 12 settings, got 13"):
        plot([*some, more], kind)


def test_a_heatmap_refuses_other_differences(mixed: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="also differ in workers, partition"):
        plot(mixed, "heatmap")
    figure = plot(mixed[6:9], "heatmap")
    assert [text.get_text() for text in figure.axes[0].texts] == ["81.5\n1 of 3 NC"]


@pytest.mark.parametrize("kind", ["error", "pareto", "heatmap"])
def test_unfinished_runs_are_left_out_of_results(kind: str, digits: Record, tmp_path: Path) -> None:
    unfinished = tmp_path / "unfinished"
    shutil.copytree(digits.path, unfinished)
    summary = digits.summary | {"status": "interrupted", "test_accuracy": 1.0, "converged": False}
    (unfinished / "summary.json").write_text(json.dumps(summary | {"weights_sha256": "other"}))
    messages: list[str] = []
    figure = plot([digits, unfinished], kind, report=messages.append)
    assert messages == [f"left out: {unfinished} has not ended"]
    words = [*legend_of(figure), *(text.get_text() for text in figure.axes[0].texts)]
    assert not any("NC" in word for word in words)


def test_a_broken_link_is_left_out(tmp_path: Path, digits: Record) -> None:
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    result = invoke(
        "plot", "loss", str(digits.path), str(tmp_path / "broken"), "--out", str(tmp_path / "l.png")
    )
    assert result.exit_code == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_run_is_named_in_the_error(kind: str, digits: Record, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(digits.path, tmp_path / "damaged"))
    (damaged / "experiment.toml").write_text("")
    with pytest.raises(RecordError, match=r"damaged/experiment.toml"):
        plot([digits, damaged], kind)


def test_the_help_explains_every_kind() -> None:
    text = " ".join(invoke("plot", "--help").output.replace("│", " ").split())
    assert all(f"{kind}:" in text for kind in KINDS)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [(["gaps"], "'gaps'"), (["gap", "--against", "hours"], "'hours'"), (["gap", "--out", "x.jpeg"], ".png")],
)
def test_wrong_arguments_are_refused(arguments: list[str], part: str, runs: dict[str, Record]) -> None:
    kind, *more = arguments
    error = invoke("plot", kind, str(runs["synchronous"].path), *more).exception
    assert isinstance(error, InputError) and part in str(error)
