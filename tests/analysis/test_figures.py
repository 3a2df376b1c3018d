"""Figures show what the records say; every kind is drawn, in every format, whole or not at all."""

import json
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure
from rich.console import Console
from straggler.analysis.outcome_figures import heat_figure, outcomes, pareto
from straggler.analysis.run_figures import KINDS
from typer.testing import CliRunner

from straggler.analysis import style
from straggler.analysis.curves import progressed, thinned
from straggler.analysis.intervals import format_interval, mean_interval, share_interval
from straggler.analysis.labels import group_seeds, name_runs
from straggler.analysis.tables import build_table, error_rows
from straggler.analysis.workers import draw_staleness, spans
from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.record import Record, RecordError

pytestmark = pytest.mark.timeout(120)
POLICIES = ("asynchronous", "synchronous", "k-sync(k=2)", "ssp(bound=1.0)", "k-batch-sync(k=3)")


def trained(folder: Path, **settings: Any) -> Record:
    defaults = {"dataset": "quadratic(noise=0.1)", "workers": 4, "lr": 0.05, "gradients": 200}
    slow = {"compute": "gamma(mean=1, cv=0.3)", "delay": "constant(2, workers=[0])", "eval_every": 0.02}
    return Experiment(**defaults | slow | settings).run(folder, jobs=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    folder = tmp_path_factory.mktemp("runs")
    return name_runs([trained(folder, policy=policy) for policy in POLICIES])


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A run with classes: the figures of accuracy need one."""
    folder = tmp_path_factory.mktemp("digits")
    return trained(folder, dataset="digits", model="asu-mnist", gradients=60, eval_every=0.5, delay=[])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures as they are when they are saved."""
    seen: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (seen.append(self), save(self, *a, **k))[1])
    return seen


# Every kind.


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn(kind: str, runs: dict[str, Record], digits: Record, tmp_path: Path) -> None:
    of_classes = kind in ("accuracy", "pareto", "heatmap", "error")
    records = {"digits": [digits]} if of_classes else {name: [run] for name, run in runs.items()}
    for suffix in style.FORMATS:
        target = tmp_path / f"{kind}{suffix}"
        assert KINDS[kind].draw(records, target, "updates") == target
        assert target.stat().st_size > 3_000
    assert len(list(tmp_path.iterdir())) == len(style.FORMATS)  # nothing half-written is left


@pytest.mark.parametrize("against", ["seconds", "updates", "epochs", "gradients"])
def test_a_curve_is_the_record_s(against: str, digits: Record, tmp_path: Path, drawn: list[Figure]) -> None:
    KINDS["accuracy"].draw({"a": [digits]}, tmp_path / "a.svg", against)
    line = drawn[0].axes[0].get_lines()[0]
    assert line.get_xdata().tolist() == digits.curve[against].to_list()  # type: ignore[union-attr]
    assert line.get_ydata().tolist() == digits.curve["test_accuracy"].to_list()  # type: ignore[union-attr]


def test_staleness_bars_add_up(runs: dict[str, Record], tmp_path: Path, drawn: list[Figure]) -> None:
    KINDS["staleness"].draw({name: [run] for name, run in runs.items()}, tmp_path / "s.svg", "")
    assert len(drawn[0].axes[0].containers) == len(runs)
    for bars in drawn[0].axes[0].containers:
        assert sum(bar.get_height() for bar in bars) == pytest.approx(100)  # type: ignore[attr-defined]


def test_a_figure_that_fails_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "f.png"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), style.drawn(target, 2, 2):
        raise ZeroDivisionError
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]


# The timeline.


@pytest.mark.parametrize("policy", POLICIES)
def test_spans_fill_every_worker_s_time(policy: str, runs: dict[str, Record]) -> None:
    """Work and waits of a worker follow each other without a hole or an overlap, from 0 on."""
    jobs = runs[policy].jobs
    table = spans(jobs)
    assert len(table.filter(~pl.col("kind").is_in(["waiting", "delayed"]))) == len(jobs)
    for _, mine in table.group_by("worker"):
        mine = mine.sort("begin", "end")
        assert mine["begin"][0] == 0
        assert mine["begin"].to_list()[1:] == mine["end"].to_list()[:-1]


def test_spans_know_when_cancelled_jobs_began(runs: dict[str, Record]) -> None:
    """In K-sync every round starts together, when the last one ended."""
    table = spans(runs["k-sync(k=2)"].jobs)
    ends = set(table.filter(kind="cancelled")["end"]) | {0.0}
    assert set(table.filter(kind="cancelled")["begin"]) <= ends
    assert set(table.filter(kind="applied")["begin"]) <= ends
    slow = table.filter(worker=0)
    assert set(slow["kind"]) == {"cancelled"}


def test_nobody_waits_in_an_asynchronous_run(runs: dict[str, Record]) -> None:
    assert set(spans(runs["asynchronous"].jobs)["kind"]) == {"applied", "delayed"}
    waits = spans(runs["synchronous"].jobs).filter(kind="waiting")
    assert 0 not in waits["worker"] and waits["worker"].n_unique() == 3  # the slow one is waited for


@pytest.mark.parametrize("kind", ["timeline", "workers"])
def test_a_worker_that_never_delivers_has_its_place(kind: str, tmp_path: Path, drawn: list[Figure]) -> None:
    run = trained(tmp_path, updates=20, gradients=None, delay="constant(500, workers=[0])")
    KINDS[kind].draw({"run": [run]}, tmp_path / "t.svg", "")
    if kind == "timeline":
        assert list(drawn[0].axes[0].get_yticks()) == [0, 1, 2, 3]
        assert drawn[0].axes[0].get_ylim() == (3.5, -0.5)
    else:
        assert list(drawn[0].axes[2].get_lines()[0].get_ydata()) == [0, 0]


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_single_evaluation_is_a_point_that_is_seen(seeds: int, tmp_path: Path, drawn: list[Figure]) -> None:
    tiny = {"dataset": "digits", "model": "linear", "gradients": 8, "eval_every": 0, "delay": []}
    group = [trained(tmp_path, **tiny, seed=seed) for seed in range(seeds)]
    KINDS["accuracy"].draw({"run": group}, tmp_path / "a.svg", "seconds")
    (point, *_) = drawn[0].axes[0].get_lines()
    assert len(point.get_xdata()) == 1 and point.get_marker() == "o"


def test_long_timelines_are_cut_and_say_so(tmp_path: Path, drawn: list[Figure]) -> None:
    long = trained(tmp_path, gradients=3000, eval_every=0)
    KINDS["timeline"].draw({"run": [long]}, tmp_path / "t.svg", "")
    axes = drawn[0].axes[0]
    bars = sum(len(collection.get_paths()) for collection in axes.collections)
    assert bars < 200
    assert "the first" in axes.get_title(loc="left")


# Thinning.


def test_thinning_keeps_means_and_few_points() -> None:
    table = pl.DataFrame({"time": np.arange(10_000.0), "gap": np.arange(10_000.0) ** 2})
    thin = thinned(table, "time", ["gap"])
    assert 100 <= len(thin) <= 120
    assert thin["time"][0] == table["time"][:84].mean()
    assert thin["gap"][0] == pytest.approx(table["gap"][:84].mean())
    short = table.head(50)
    assert thinned(short, "time", ["gap"]).select("time", "gap").equals(short)


def test_progress_of_arrivals_ends_where_the_run_did(runs: dict[str, Record]) -> None:
    for record in runs.values():
        last = progressed(record).row(-1, named=True)
        assert last["gradients"] == record.summary["gradients"]
        assert last["epochs"] == pytest.approx(record.summary["epochs"])
        assert last["updates"] <= record.summary["updates"]


# Many runs.


def front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    seconds, accuracy = zip(*points, strict=True)
    table = pl.DataFrame(
        {"seconds": seconds, "accuracy": accuracy}, schema={"seconds": float, "accuracy": float}
    )
    return pareto(table).rows()


def test_the_front_is_what_none_beats() -> None:
    assert front([(1, 50), (2, 60), (3, 55), (4, 70), (4, 65), (1, 40)]) == [(1, 50), (2, 60), (4, 70)]
    points = [tuple(point) for point in np.random.default_rng(0).random((200, 2)).tolist()]
    chosen = front(points)
    for point in points:
        beaten = any(s <= point[0] and a >= point[1] and (s, a) != point for s, a in points)
        assert (point in chosen) is not beaten


def test_the_map_marks_what_did_not_converge(tmp_path: Path, drawn: list[Figure]) -> None:
    table = pl.DataFrame(
        {
            "lr": [0.1, 0.1, 0.2, 0.2],
            "momentum": [0.0, 0.0, 0.0, 0.9],
            "accuracy": [80.0, 90.0, 10.0, 70.0],
            "converged": [True, True, False, True],
        }
    )
    heat_figure(table, tmp_path / "h.svg")
    assert sorted(text.get_text() for text in drawn[0].axes[0].texts) == ["70.0", "85.0", "NC"]


def variant(record: Record, folder: Path, facts: dict[str, Any] | None = None, **settings: Any) -> Record:
    """A copy of a record that says it is of other settings, and that other things came of it."""
    copy = folder / "-".join(f"{key}{value}" for key, value in settings.items()).replace("/", "_")
    shutil.copytree(record.path, copy)
    keys = record.settings | settings
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    (copy / "experiment.toml").write_text("\n".join(lines))
    (copy / "summary.json").write_text(json.dumps(record.summary | {"converged": True} | (facts or {})))
    return Record(copy)


def words_of(figure: Figure) -> list[str]:
    """What the legend says, wherever it stands."""
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    return [text.get_text() for legend in legends for text in legend.get_texts()]


@pytest.fixture
def mixed(digits: Record, tmp_path: Path) -> list[str]:
    """Two partitions and two sizes with three seeds each; of one cell a seed is lost, of another all are."""
    folders = []
    for partition in ("iid", "label"):
        for workers in (2, 10):
            for seed in range(3):
                lost = partition == "label" and (workers == 10 or seed == 0)
                facts = (
                    {"test_accuracy": 10.0, "converged": False} if lost else {"test_accuracy": 80.0 + seed}
                )
                told = {"partition": partition, "workers": workers, "seed": seed}
                folders.append(str(variant(digits, tmp_path / "mixed", facts, **told).path))
    return folders


def test_an_error_is_of_one_setting_and_without_the_lost(
    mixed: list[str], tmp_path: Path, drawn: list[Figure]
) -> None:
    assert invoke("plot", "error", *mixed, "--out", str(tmp_path / "e.png")).exit_code == 0
    axes = drawn[0].axes[0]
    assert words_of(drawn[0]) == ["iid", "label (1 of 3 NC at 2, NC at 10)"]
    means = [container.lines[0].get_ydata().tolist() for container in axes.containers]  # type: ignore[union-attr]
    assert means == [pytest.approx([19.0, 19.0]), pytest.approx([18.5])]
    assert axes.get_ylim()[0] < 0 < 19 < axes.get_ylim()[1]


def test_a_point_of_one_seed_has_no_bar(digits: Record, tmp_path: Path, drawn: list[Figure]) -> None:
    one = variant(digits, tmp_path, workers=3)
    for kind in ("error", "pareto"):
        assert invoke("plot", kind, str(one.path), "--out", str(tmp_path / "e.png")).exit_code == 0
        (container,) = drawn[-1].axes[0].containers
        segments = [segment for bars in container.lines[2] for segment in bars.get_segments()]  # type: ignore
        assert not any(np.isfinite(segment).all() and segment.size for segment in segments)


def test_a_front_is_of_settings_and_not_of_seeds(
    mixed: list[str], tmp_path: Path, drawn: list[Figure]
) -> None:
    assert invoke("plot", "pareto", *mixed, "--out", str(tmp_path / "p.png")).exit_code == 0
    lost = [" (1 of 3 NC)", " (NC)"]
    said = ["workers 2, iid", "workers 2, label" + lost[0], "workers 10, iid", "workers 10, label" + lost[1]]
    assert words_of(drawn[0]) == [*said, "Pareto front"]


def test_a_map_of_other_differences_is_refused(mixed: list[str], tmp_path: Path, drawn: list[Figure]) -> None:
    error = invoke("plot", "heatmap", *mixed, "--out", str(tmp_path / "h.png")).exception
    assert isinstance(error, InputError) and "differ in workers, partition too; name runs that" in str(error)
    assert invoke("plot", "heatmap", *mixed[6:9], "--out", str(tmp_path / "h.png")).exit_code == 0
    assert [text.get_text() for text in drawn[0].axes[0].texts] == ["81.5\n1 of 3 NC"]


@pytest.mark.filterwarnings("error::UserWarning", "error::RuntimeWarning")
@pytest.mark.parametrize("kind", ["accuracy", "loss", "gap", "staleness"])
def test_seeds_of_a_setting_are_one_entry_and_panels_keep_their_size(
    kind: str, digits: Record, tmp_path: Path, drawn: list[Figure]
) -> None:
    long = [f"spikes(probability=0.1, seconds={seconds}.0, workers=[0, 1, 2, 3])" for seconds in range(2, 14)]
    some = [variant(digits, tmp_path / str(n), delay=[law], seed=n) for n in range(2) for law in long]
    folders = [str(record.path) for record in some]
    for given in (folders[:1], folders):
        assert invoke("plot", kind, *given, "--out", str(tmp_path / "k.png")).exit_code == 0
    seconds = [word.split("seconds=")[1].split(".")[0] for word in words_of(drawn[1])]
    assert seconds == [str(number) for number in range(2, 14)]  # one each, 10 after 9
    heights = [figure.axes[0].get_window_extent().height for figure in drawn]
    assert heights[1] == pytest.approx(heights[0], rel=0.2)
    more = [str(variant(digits, tmp_path, delay=[], seed=5).path)]
    error = invoke("plot", kind, *folders, *more, "--out", str(tmp_path / "k.png")).exception
    assert str(error) == "13 settings; name fewer runs, or use plot error"


def test_a_curve_of_seeds_is_their_mean_with_a_band(
    digits: Record, tmp_path: Path, drawn: list[Figure]
) -> None:
    seeds = [variant(digits, tmp_path, seed=seed) for seed in range(3)]
    for seed, record in enumerate(seeds):
        table = record.curve.with_columns(pl.col("test_accuracy") + seed)
        table.write_parquet(record.path / "curve.parquet")
        record.reload()
    KINDS["accuracy"].draw({"a": seeds}, tmp_path / "a.svg", "epochs")
    axes = drawn[0].axes[0]
    (mean,), (band,) = axes.get_lines(), axes.collections
    assert mean.get_ydata() == pytest.approx(digits.curve["test_accuracy"].to_numpy() + 1)
    half = mean_interval([0.0, 1.0, 2.0]).half
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(max(mean.get_ydata()) + half)  # type: ignore
    seeds[0].curve.head(2).write_parquet(seeds[0].path / "curve.parquet")
    seeds[0].reload()
    KINDS["accuracy"].draw({"a": seeds}, tmp_path / "a.svg", "epochs")
    axes = drawn[1].axes[0]
    assert len(axes.get_lines()) == 3 and not axes.collections
    assert len({line.get_color() for line in axes.get_lines()}) == 1 and words_of(drawn[1]) == []


def test_outcomes_say_what_was_run(digits: Record) -> None:
    row = outcomes({"x": [digits]}).row(0, named=True)
    assert row["setting"] == "x" and row["workers"] == 4
    assert row["accuracy"] == digits.summary["test_accuracy"]


# Names and intervals.


def test_runs_are_named_by_what_differs(runs: dict[str, Record], tmp_path: Path) -> None:
    assert list(runs) == sorted(POLICIES)
    pair = [trained(tmp_path, momentum=momentum, updates=5, gradients=None) for momentum in (0.0, 0.9)]
    assert list(name_runs(pair)) == list(name_runs(pair[::-1])) == ["momentum 0.0", "momentum 0.9"]
    alone = pair[0]
    assert list(name_runs([alone])) == ["asynchronous × 4"]
    assert len(name_runs([alone, trained(tmp_path / "again", momentum=0.0, updates=5, gradients=None)])) == 1
    other = trained(tmp_path, momentum=0.0, seed=3, updates=5, gradients=None)
    assert list(name_runs([alone, other])) == ["seed 0", "seed 3"]
    assert {name: len(group) for name, group in group_seeds([alone, other, alone, pair[1]]).items()} == {
        "momentum 0.0": 2,
        "momentum 0.9": 1,
    }


def test_optimizers_that_differ_in_more_than_momentum_are_told_apart(digits: Record, tmp_path: Path) -> None:
    texts = {"sgd(momentum=0.5)": 0.5, "sgd(momentum=0.5, dampening=0.1)": 0.5, "sgd": 0.0}
    some = [variant(digits, tmp_path, optimizer=text, momentum=momentum) for text, momentum in texts.items()]
    assert len(group_seeds(some)) == 3 and len(group_seeds(some, ("momentum",))) > 1


def test_intervals_are_student_s() -> None:
    found = mean_interval([1.0, 2.0, 3.0])
    assert found.mean == 2 and found.half == pytest.approx(4.302653 / np.sqrt(3))
    single = mean_interval([5.0])
    assert single.mean == 5 and np.isinf(single.half) and single.bar == 0
    assert np.isnan(mean_interval([]).mean)
    assert format_interval([1.0, 1.0, 1.0], 1) == "1.0 ± 0.0"
    assert format_interval([5.0]) == "5.00" and format_interval([1.0, 2.0], 1) == "1.5 (1.0, 2.0)"


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    draws = np.random.default_rng(1).standard_normal((4000, 5))
    covered = [abs(found.mean) <= found.half for found in map(mean_interval, draws)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)


def test_the_interval_of_a_share_is_wilson_s() -> None:
    low, high = share_interval(50.0, 100)
    assert (low, high) == (pytest.approx(40.383, abs=1e-3), pytest.approx(59.617, abs=1e-3))
    assert share_interval(100.0, 50)[1] == pytest.approx(100.0)
    assert share_interval(0.0, 50)[0] == pytest.approx(0.0)


def test_lines_can_be_told_apart() -> None:
    looks = [tuple(style.line(position).values()) for position in range(32)]
    assert len(set(looks)) == 32
    points = [tuple(style.point(position).values()) for position in range(64)]
    assert len(set(points)) == 64


# The command.


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(build_app(load_all=True), arguments)


def test_plot_command(runs: dict[str, Record], tmp_path: Path) -> None:
    target = tmp_path / "gap.svg"
    folders = [str(record.path) for record in runs.values()]
    result = invoke("plot", "gap", *folders, "--against", "gradients", "--out", str(target))
    assert result.exit_code == 0, result.output
    assert "ssp(bound=1.0)" in target.read_text()


@pytest.mark.parametrize("kind", ["error", "pareto", "heatmap"])
def test_a_run_that_goes_on_is_left_out_of_what_came_out(
    kind: str, digits: Record, tmp_path: Path, drawn: list[Figure]
) -> None:
    shutil.copytree(digits.path, tmp_path / "cut")
    facts = digits.summary | {"status": "interrupted", "test_accuracy": 1.0, "converged": False}
    (tmp_path / "cut" / "summary.json").write_text(json.dumps(facts))
    target = str(tmp_path / "figure.png")
    result = invoke("plot", kind, str(digits.path), str(tmp_path / "cut"), "--out", target)
    assert result.exit_code == 0 and "cut has not ended" in " ".join(result.output.split())
    axes = drawn[0].axes[0]
    words = [axes.get_title(), *(text.get_text() for text in axes.texts)]
    assert not any("1 NC" in word or "did not converge" in word for word in words)
    if kind == "error":
        assert axes.lines[0].get_ydata() == pytest.approx([100 - digits.summary["test_accuracy"]])


def test_many_runs_share_the_colours(runs: dict[str, Record]) -> None:
    many = {f"{name} {number}": [record] for name, record in runs.items() for number in range(3)}
    assert len(many) > len(style.COLOURS)
    draw_staleness(Figure().subplots(), many)


def test_a_link_that_leads_nowhere_is_left_out(tmp_path: Path, digits: Record) -> None:
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    there = [str(digits.path), str(tmp_path / "broken")]
    assert invoke("plot", "loss", *there, "--out", str(tmp_path / "loss.png")).exit_code == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_does_not_say_what_it_is_is_named(kind: str, digits: Record, tmp_path: Path) -> None:
    hurt = Path(shutil.copytree(digits.path, tmp_path / "hurt"))
    (hurt / "experiment.toml").write_text("")
    for given in ([hurt], [digits.path, hurt]):
        error = invoke("plot", kind, *map(str, given), "--out", str(tmp_path / "k.png")).exception
        assert isinstance(error, RecordError) and "hurt/experiment.toml cannot be read" in str(error)


def test_plot_explains_its_kinds() -> None:
    told = " ".join(invoke("plot", "--help").output.replace("│", " ").split())
    for kind in KINDS:
        assert f"{kind}:" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gaps"], "unknown kind of figure 'gaps'. Did you mean 'gap'"),
        (["gap", "--against", "hours"], "--against 'hours'"),
        (["gap", "--out", "x.jpeg"], "must end with .png, .pdf, .svg"),
    ],
)
def test_plot_refuses(arguments: list[str], said: str, runs: dict[str, Record]) -> None:
    kind, *more = arguments
    error = invoke("plot", kind, str(runs["synchronous"].path), *more).exception
    assert isinstance(error, InputError) and said in str(error)


def test_an_error_has_its_spread_its_lost_runs_and_where_they_differ_its_rate() -> None:
    runs = pl.DataFrame(
        {
            "method": ["ga"] * 5,
            "workers": [4, 4, 4, 8, 8],
            "lr": [0.1] * 5,
            "error": [10.0, 12.0, 90.0, 90.0, 90.0],
            "converged": [True, True, False, False, False],
        }
    )
    assert error_rows(runs) == (["method", "N = 4", "N = 8"], [["ga", "11.00 ± 1.41 (1 of 3 NC)", "NC"]])
    tuned = runs.with_columns(lr=pl.when(pl.col("workers") == 4).then(0.1).otherwise(0.02))
    assert error_rows(tuned)[1] == [["ga", "11.00 ± 1.41 (1 of 3 NC) at 0.1", "NC at 0.02"]]


def test_heads_of_a_table_are_broken_between_words_only() -> None:
    heads = ["", "test accuracy", "time to 80 %", "updates", "gradients", "staleness", "time"]
    table = build_table(
        "two runs", heads, [["asynchronous", "86.42 %", "391 s", "10,799", "10,799", "6.99", "1,500 s"]]
    )
    printed = StringIO()
    Console(width=80, file=printed).print(table)
    words = printed.getvalue().split()
    assert {"accuracy", "updates", "gradients", "staleness"} <= set(words)


@pytest.mark.parametrize(("low", "high"), [(1.2, 1.4), (2.2, 6.0), (0.3, 40.0), (1e-3, 500.0)])
def test_a_logarithmic_scale_has_numbers_to_read_it_by(low: float, high: float) -> None:
    figure = Figure()
    axes = figure.subplots()
    axes.plot([low, high])
    style.plain_log(axes)
    figure.draw_without_rendering()
    ticks = [*axes.yaxis.get_major_ticks(), *axes.yaxis.get_minor_ticks()]
    inside = [tick for tick in ticks if low <= tick.get_loc() <= high and tick.label1.get_text()]
    assert 3 <= len(inside) <= 10
