"""Reports: what they say is what the record says, whatever is in the record."""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
import pytest
import torch
import typer

from straggler.algorithms.methods import METHODS
from straggler.analysis.timeline import jobs
from straggler.cli import offered
from straggler.cli.pages import report
from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.timing import Durations
from straggler.web.curves import curves
from straggler.web.figure import thin
from straggler.web.gallery import gallery, named, partition_counts
from straggler.web.printed_report import draw_pages
from straggler.web.report import build_summary_rows, describe_rerun, dump_json, render_html_report
from straggler.web.run_facts import RunFacts, build_command, label_runs, minimal_settings
from straggler.web.staleness import gaps
from straggler.web.study_page import StudyPage, is_study_folder
from straggler.web.timeline import MOST_BARS, timeline

SLOW_WORKER: dict[str, Any] = {
    "dataset": "digits",
    "model": "linear",
    "workers": 4,
    "compute": "gamma(mean=1, cv=0.3)",
    "delay": ["constant(3, workers=[0])"],
    "gradients": 60,
    "eval_every": 0.5,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Records of one cluster under several methods, and of three seeds."""
    out = tmp_path_factory.mktemp("records") / "runs"
    found = {}
    for method in ("asgd", "ssgd", "k-sync", "k-batch-sync"):
        found[method] = Experiment(**SLOW_WORKER, method=method, snapshots=5).run(out, jobs=1).path
    for seed in (1, 2):
        found[f"seed {seed}"] = Experiment(**SLOW_WORKER, seed=seed, snapshots=5).run(out, jobs=1).path
    return found


def test_the_same_run_twice_and_a_copy_of_it(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["asgd"], tmp_path / runs["asgd"].name)
    both = [RunFacts(runs["asgd"]), RunFacts(tmp_path / runs["asgd"].name)]
    assert len(named(both)[0]) == 2
    report([str(runs["asgd"]), str(runs["asgd"])], tmp_path / "one.md")
    assert (tmp_path / "one.md").read_text().count("straggler run") == 1


# The jobs of a record.


@pytest.mark.parametrize("method", ["asgd", "ssgd", "k-sync", "k-batch-sync"])
def test_jobs_of_a_worker_follow_one_another_and_take_what_the_laws_say(
    runs: dict[str, Path], method: str
) -> None:
    facts = RunFacts(runs[method])
    experiment = facts.experiment
    assert experiment is not None
    durations = Durations(experiment.compute, experiment.delay, experiment.workers, experiment.seed)
    every = jobs(facts.arrivals)
    for _, mine in every.group_by("worker"):
        assert (mine["started"][1:] >= mine["time"][:-1] - 1e-9).all()
        assert mine["launch"].to_list() == list(range(len(mine)))
    done = every.filter(pl.col("decision") != "cancelled")
    for worker, launch, started, computed, time in done.select(
        "worker", "launch", "started", "computed", "time"
    ).iter_rows():
        compute, delay = durations.parts(worker, launch)
        assert time - started == pytest.approx(compute + delay)
        dropped = done.filter(worker=worker, launch=launch)["decision"][0] == "dropped"
        assert computed - started == pytest.approx(compute + delay if dropped else compute)
        assert delay == (3.0 if worker == 0 else 0.0)


def test_a_cancelled_job_began_when_the_others_of_its_round_did(runs: dict[str, Path]) -> None:
    every = jobs(RunFacts(runs["k-sync"]).arrivals)
    cancelled = every.filter(pl.col("decision") == "cancelled")
    assert len(cancelled) > 20
    starts = set(every.filter(pl.col("decision") != "cancelled")["started"])
    assert set(cancelled["started"]) <= starts
    assert (cancelled["started"] < cancelled["time"]).all()


def test_who_waits_is_seen_under_ssgd_and_not_under_asgd(runs: dict[str, Path]) -> None:
    def waits(method: str) -> int:
        return int(jobs(RunFacts(runs[method]).arrivals)["idle_from"].count())

    assert waits("asgd") == 0
    assert waits("ssgd") >= 30


def test_a_long_run_is_shown_in_pieces() -> None:
    count = 200_000
    arrivals = pl.DataFrame(
        {
            "worker": [number % 5 for number in range(count)],
            "started": [float(number // 5) for number in range(count)],
            "time": [float(number // 5 + 1) for number in range(count)],
            "version": list(range(count)),
            "staleness": [4] * count,
            "decision": ["applied"] * count,
            "delay": [0.0] * count,
        }
    )
    figure = timeline(arrivals, "time (s)")
    assert list(figure.views) == ["the beginning", "the middle", "the end"]
    for view in figure.views.values():
        assert sum(len(trace["x"]) for trace in view["data"]) == MOST_BARS
    assert figure.views["the end"]["data"][0]["base"][-1] == count // 5 - 1


def test_failures_are_marked_where_they_happened(runs: dict[str, Path]) -> None:
    """An event within the picture's time is in it, with its words; one outside is not."""
    arrivals = RunFacts(runs["asgd"]).arrivals
    events = [{"time": 2.0, "worker": 1, "what": "died"}, {"time": 1e9, "worker": 0, "what": "late"}]
    *_, last = timeline(arrivals, "time (s)", events).data
    assert (last["name"], last["x"], last["y"], last["text"]) == ("failure", [2], [1], ["died"])


def test_thinning_keeps_the_ends() -> None:
    table = pl.DataFrame({"x": range(100_000)})
    few = thin(table, 400)["x"].to_list()
    assert few[0] == 0 and few[-1] == 99_999 and len(few) <= 400
    assert max(np.diff(few)) <= 2 * 100_000 / 400
    assert thin(table[:300], 400).equals(table[:300])


# Words.


@pytest.mark.parametrize("method", METHODS)
def test_the_command_that_is_shown_makes_the_same_run(method: str) -> None:
    settings: dict[str, Any] = {"workers": 1 if METHODS[method].single else 6, "lr": 0.05, "seconds": 70.0}
    settings |= {"delay": ["constant(2, workers=[0])", "spikes(0.1, 5)"], "partition": "dirichlet(alpha=0.3)"}
    experiment = Experiment(method=method, **settings)
    words = build_command(minimal_settings(experiment))
    command: Any = typer.main.get_command(offered())
    given = command.commands["run"].make_context("run", words[2:]).params
    flags = {k: v for k, v in given.items() if k in Experiment.model_fields and v not in (None, ())}
    again = Experiment(**flags | ({"delay": list(flags["delay"])} if "delay" in flags else {}))
    assert again.id == experiment.id


def test_settings_beside_the_method_are_in_the_command() -> None:
    odd = Experiment(
        momentum=0.5, weight_decay=0.001, stop="each", gradients=40, train_metrics=True, engine="processes"
    )
    words = build_command(minimal_settings(odd))
    command: Any = typer.main.get_command(offered())
    given = command.commands["run"].make_context("run", words[2:]).params
    flags = {k: v for k, v in given.items() if k in Experiment.model_fields and v not in (None, ())}
    assert Experiment(**flags).id == odd.id


def test_the_command_of_a_run_whose_workers_come_and_go() -> None:
    for workers in ("2-4", "2-8", "3-3"):
        elastic = Experiment(workers=workers, engine="processes", gradients=40)
        words = build_command(minimal_settings(elastic))
        command: Any = typer.main.get_command(offered())
        given = command.commands["run"].make_context("run", words[2:]).params
        flags = {k: v for k, v in given.items() if k in Experiment.model_fields and v not in (None, ())}
        assert Experiment(**flags).id == elastic.id


def test_labels_say_what_differs_and_seeds_share_one(runs: dict[str, Path]) -> None:
    three = [RunFacts(runs[name]) for name in ("asgd", "seed 1", "ssgd")]
    assert label_runs(three) == ["asgd", "asgd", "ssgd"]
    rows = build_summary_rows(three)
    assert [row[:2] for row in rows] == [["asgd", "2"], ["ssgd", "1"]]
    low, high = sorted(run.summary["test_accuracy"] for run in three[:2])
    assert rows[0][2] == f"{(low + high) / 2:.2f}" and "[" in rows[1][2]


def test_a_run_that_goes_on_is_counted_beside_those_that_have_ended(runs: dict[str, Path]) -> None:
    ended, going_on = RunFacts(runs["asgd"]), RunFacts(runs["seed 1"])
    facts = {"status": "interrupted", "updates": 1, "test_loss": 99.0}
    vars(going_on)["summary"] = facts
    (row,), (alone,) = build_summary_rows([ended, going_on]), build_summary_rows([ended])
    assert row[1] == "1 (and 1 unfinished)" and row[2:] == alone[2:]
    assert build_summary_rows([going_on])[0][3] == "99.0000"


def test_the_partition_is_the_one_the_run_used(runs: dict[str, Path]) -> None:
    counted = partition_counts(RunFacts(runs["asgd"]))
    assert counted is not None
    problem = Experiment(**SLOW_WORKER).problem()
    assert counted[1].sum(axis=1).tolist() == [len(part) for part in problem.parts]  # type: ignore[attr-defined]


# Pictures.


@pytest.mark.slow
def test_plotly_takes_every_figure(runs: dict[str, Path]) -> None:
    """Its Python side knows every property by name and refuses the others."""
    for some in (["asgd"], list(runs)):
        figures = gallery([RunFacts(runs[name]) for name in some])
        names = {figure.name for figure in figures}
        wanted = {"accuracy", "loss", "staleness", "staleness-time", "gaps", "norms"}
        assert names >= wanted | {"classes", "confusion", "partition", "trajectory"}
        for figure in figures:
            for view in figure.views.values() or [{"data": figure.data, "layout": figure.layout}]:
                text = json.dumps(view).replace('"paper"', '"#ffffff"')
                go.Figure(json.loads(text))


def test_the_staleness_that_is_drawn_is_the_staleness_that_was(runs: dict[str, Path]) -> None:
    facts = RunFacts(runs["asgd"])
    figure = next(f for f in gallery([facts]) if f.name == "staleness")
    drawn = dict(zip(figure.data[0]["x"], figure.data[0]["y"], strict=True))
    true = facts.arrivals["staleness"].value_counts(normalize=True)
    assert drawn == {tau: pytest.approx(100 * share, rel=1e-5) for tau, share in true.iter_rows()}


def test_seeds_share_a_colour_and_an_entry(runs: dict[str, Path]) -> None:
    figures = gallery([RunFacts(runs[name]) for name in ("asgd", "seed 1", "seed 2", "ssgd")])
    traces = next(figure for figure in figures if figure.name == "accuracy").data
    assert [trace["name"] for trace in traces if trace["showlegend"]] == ["asgd", "ssgd"]
    assert len({trace["line"]["color"] for trace in traces[:3]}) == 1


@pytest.mark.filterwarnings("error")
def test_gaps_without_end_are_left_out(runs: dict[str, Path]) -> None:
    arrivals = RunFacts(runs["asgd"]).arrivals
    endless = pl.when(pl.int_range(pl.len()) % 3 == 0).then(float("inf")).otherwise("gap")
    figure = gaps({"a": arrivals.with_columns(gap=endless), "b": arrivals.with_columns(gap=float("inf"))})
    assert sum(figure.data[0]["y"]) > 90 and sum(figure.data[1]["y"]) == 0
    assert 0 < figure.data[0]["x"][-1] < 1e3


@pytest.mark.parametrize(("largest", "scale"), [(99.0, None), (101.0, "log")])
def test_a_loss_that_explodes_has_a_logarithmic_axis(largest: float, scale: str | None) -> None:
    table = pl.DataFrame({"seconds": [0.0, 1.0, 2.0], "test_loss": [0.5, 1.0, largest]})
    (figure,) = curves({"a": table}, "time (s)")
    assert figure.layout["yaxis"].get("type") == scale
    assert all(view["layout"]["yaxis"].get("type") == scale for view in figure.views.values() if view["data"])


def test_pictures_of_the_first_runs_only_say_so(runs: dict[str, Path], tmp_path: Path) -> None:
    copies = [RunFacts(shutil.copytree(runs["asgd"], tmp_path / str(number))) for number in range(9)]
    said = "Only the first 8 of 9 runs are shown."
    told = {figure.name: said in figure.note for figure in gallery(copies)}
    assert told["staleness"] and told["confusion"] and not told["accuracy"]
    assert not any(said in figure.note for figure in gallery(copies[:8]))


def test_what_colours_mean_stands_below_the_printed_timelines(runs: dict[str, Path]) -> None:
    _, curves, timelines, _ = draw_pages(
        [RunFacts(runs[name]) for name in ("asgd", "ssgd", "k-sync", "seed 1")], "# Title"
    )
    assert not any(axes.get_legend() for axes in timelines.axes)
    words = [text.get_text() for legend in timelines.legends for text in legend.get_texts()]
    assert sorted(words) == sorted({*words}) and {"delayed", "waiting", "cancelled"} <= {*words}
    curves.draw_without_rendering()
    timelines.draw_without_rendering()
    below = min(axes.get_tightbbox().y0 for axes in timelines.axes)  # type: ignore[union-attr]
    assert timelines.legends[0].get_window_extent().y1 < below
    assert all(", the first" in axes.get_title() for axes in timelines.axes)
    ticks = next(axes for axes in curves.axes if "staleness" in axes.get_xlabel()).get_xticks()
    assert all(float(tick).is_integer() for tick in ticks)
    entries = [text.get_text() for text in curves.axes[0].get_legend().get_texts()]
    assert entries == ["asgd", "ssgd", "k-sync"]


# Files.


def written(tmp_path: Path, *things: Path, form: str = "html") -> Path:
    path = tmp_path / f"page.{form}"
    report([str(thing) for thing in things], path)
    return path


def test_the_html_needs_nothing_but_itself(runs: dict[str, Path], tmp_path: Path) -> None:
    text = written(tmp_path, runs["asgd"], runs["ssgd"]).read_text()
    page = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)  # what plotly itself says is not ours
    assert not re.findall(r"""(?:src|href)=["'](?!data:)[^"']+""", page)
    assert "straggler run --method ssgd" in page
    assert RunFacts(runs["asgd"]).summary["weights_sha256"] in page


@pytest.mark.slow
@pytest.mark.parametrize(("form", "magic"), [("pdf", b"%PDF"), ("png", b"\x89PNG"), ("md", b"# Straggler")])
def test_other_formats(runs: dict[str, Path], tmp_path: Path, form: str, magic: bytes) -> None:
    path = written(tmp_path, runs["asgd"], runs["k-sync"], form=form)
    assert path.read_bytes().startswith(magic) and path.stat().st_size > 500
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_wrong_input_leaves_nothing(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "table.md").write_text("| a |\n|---|\n| 1 |\n")
    for things, out, rule in (
        (["nobody"], tmp_path / "a.html", "names 0 runs"),
        ([str(runs["asgd"])], tmp_path / "a.doc", "must end with"),
        ([str(tmp_path / "study")], tmp_path / "a.png", "is a study"),
        ([str(runs["asgd"])], Path("/proc/no/a.md"), "Cannot write"),
    ):
        with pytest.raises(InputError, match=rule):
            report(things, out)
    assert [file.name for file in tmp_path.iterdir()] == ["study"]


def test_what_is_no_run_among_runs_is_left_out_and_said(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As runs/* gives it: the folder of landscapes, a file."""
    (tmp_path / "landscapes").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    others = [str(tmp_path / name) for name in ("landscapes", "notes.txt")]
    report([*others, str(runs["asgd"])], tmp_path / "one.md")
    told = capsys.readouterr().err
    assert told.count("\n") == 2 and all(f"left out: {other} is neither" in told for other in others)
    (tmp_path / "one.md").unlink()
    for nothing in (others[:1], others):
        with pytest.raises(InputError, match=r"landscapes.*: not a run or study"):
            report(nothing, tmp_path / "one.md")
    with pytest.raises(InputError, match="'nobody' names 0 runs"):
        report(["nobody", str(runs["asgd"])], tmp_path / "one.md")
    assert not (tmp_path / "one.md").exists()


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def test_what_a_record_says_stays_text(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "evil"
    folder.mkdir()
    for file in runs["asgd"].iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    summary = json.loads((folder / "summary.json").read_text())
    classes = summary["classes"]
    summary |= {
        "status": EVIL,
        "error": EVIL,
        "classes": {f"{EVIL}{name}": classes[name] for name in classes},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    text = render_html_report([RunFacts(folder)])
    assert "<img src=x" not in text and "</script><script>alert" not in text
    assert json.loads(dump_json(EVIL)) == EVIL


@pytest.mark.parametrize("name", ["summary.json", "environment.json", "curve.parquet", "arrivals.parquet"])
def test_a_damaged_file_is_named_and_the_rest_is_shown(
    runs: dict[str, Path], tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "hurt"
    folder.mkdir()
    for file in runs["asgd"].iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(b"\x00nonsense" if file.name == name else file.read_bytes())
    text = render_html_report([RunFacts(folder)])
    assert "<h2>Problems" in text and name in text
    assert text.count("data-figure=") > 2


def test_what_was_given_in_python_is_no_trouble(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(64, 4), torch.arange(64) % 2
    model = torch.nn.Linear(4, 2)
    settings: dict[str, Any] = {"workers": 2, "updates": 4, "lr": 0.1, "dataset": (inputs, labels) * 2}
    run = Experiment(model=model, **settings).run(tmp_path, jobs=1)
    for form in ("html", "md"):
        text = written(tmp_path, run.path, form=form).read_text()
        assert "custom Python objects" in text and "<h2>Problems" not in text
    assert "left out" not in capsys.readouterr().err
    assert describe_rerun(RunFacts(run.path), "")["toml"] == run.text


def test_every_setting_is_shown_whatever_else_is_damaged(runs: dict[str, Path], tmp_path: Path) -> None:
    hurt = Path(shutil.copytree(runs["asgd"], tmp_path / "hurt"))
    (hurt / "curve.parquet").write_text("nonsense")
    assert render_html_report([RunFacts(hurt)], embedded=False).count("weight_decay = 0.0") == 1


@pytest.mark.parametrize("text", ["", "= =", "\x00", "workers = 3"])
def test_of_nothing_there_is_no_report(runs: dict[str, Path], tmp_path: Path, text: str) -> None:
    hurt = Path(shutil.copytree(runs["asgd"], tmp_path / "hurt"))
    (hurt / "experiment.toml").write_text(text)
    for form in ("html", "md", "png"):
        with pytest.raises(InputError, match=r"experiment.toml cannot be read: .*; run it again"):
            written(tmp_path, hurt, form=form)
    assert [file.name for file in tmp_path.iterdir()] == ["hurt"]
    assert "experiment.toml cannot be read" in written(tmp_path, hurt, runs["ssgd"]).read_text()


GARBAGE: list[Any] = [None, "x", [], {}, -1e300, [[1], [2, "3"]], {"a": 1}, True]


@pytest.mark.parametrize("garbage", GARBAGE, ids=repr)
@pytest.mark.parametrize("file", ["summary.json", "environment.json"])
def test_whatever_a_record_says_there_is_a_page(
    runs: dict[str, Path], tmp_path: Path, file: str, garbage: Any
) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    for name in ("experiment.toml", "summary.json", "environment.json", "curve.parquet"):
        (folder / name).write_bytes((runs["asgd"] / name).read_bytes())
    whole = json.loads((folder / file).read_text())
    for facts in [
        dict.fromkeys(whole, garbage),
        *(whole | {key: garbage} for key in ("classes", "confusion")),
    ]:
        (folder / file).write_text(json.dumps(facts))
        assert "<h1>Straggler" in render_html_report([RunFacts(folder)], embedded=False)


# Studies.

CLAIM = {"statement": "async is <b>faster</b>", "source": "Table 3", "verdict": "holds", "effect": 1.5}
CLAIM |= {"low": 1.2, "high": 1.8, "cause": "no waiting"}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "epfl"
    folder.mkdir()
    (folder / "table.md").write_text(
        "# Table\n\n| method | ours |\n|---|---|\n| asgd | 91 |\n\n![f](fig.png)\n<i>x</i>"
    )
    (folder / "claims.json").write_text(json.dumps([CLAIM]))
    picture = bytes.fromhex("89504e470d0a1a0a")
    (folder / "fig.png").write_bytes(picture)
    (folder / "other.png").write_bytes(picture)
    pl.DataFrame({"seed": [0, 1]}).write_parquet(folder / "summaries.parquet")
    return folder


def test_a_study_shows_its_tables_claims_and_figures(study: Path) -> None:
    found = StudyPage(study)
    text = render_html_report([], [found])
    assert is_study_folder(study) and found.run_count == 2 and found.verdicts == {"holds": 1}
    assert "<td>asgd</td>" in text and "async is &lt;b&gt;faster" in text and "[1.20, 1.80]" in text
    assert text.count('src="data:image/png;base64') == 2  # one in the document, one beside it
    assert "&lt;i&gt;x" in text and found.problems == []


def test_a_study_embeds_only_its_own_files(study: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    (study / "table.md").write_text(
        "![a](../secret.png) ![b](https://example.org/x.png) [c](javascript:alert(1))"
    )
    text = StudyPage(study).documents["table"]
    assert "c2VjcmV0" not in text and "example.org" not in text and 'href="javascript' not in text


@pytest.mark.parametrize("claims", ["nonsense", '{"a": 1}', "[1]", "null"])
def test_damaged_claims_are_said(study: Path, claims: str) -> None:
    (study / "claims.json").write_text(claims)
    text = render_html_report([], [StudyPage(study)])
    assert "claims.json cannot be read" in text and "<td>asgd</td>" in text


def test_the_experiment_of_a_record_is_read_back(runs: dict[str, Path]) -> None:
    facts = RunFacts(runs["k-sync"])
    assert facts.experiment is not None and facts.experiment.id == facts.id
    assert tomllib.loads(facts.record.text) == facts.settings
