"""Reports: the summary, the files, and safety against what records contain."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from straggler.analysis.labels import label_runs, name_runs
from straggler.cli.pages import report
from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.record import Record, RecordError
from straggler.web.report import build_summary_rows, describe_rerun, dump_json, render_html_report
from straggler.web.report import report as write_report
from straggler.web.run_facts import RunFacts


def test_copies_of_a_run_count_once(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["asgd"], tmp_path / runs["asgd"].name)
    both = [RunFacts(runs["asgd"]), RunFacts(tmp_path / runs["asgd"].name)]
    assert len(name_runs(both)) == 1 and [row[1] for row in build_summary_rows(both)] == ["1"]
    report([str(runs["asgd"]), str(runs["asgd"])], tmp_path / "one.md")
    assert (tmp_path / "one.md").read_text().count("straggler run") == 1


def test_summary_groups_seeds(runs: dict[str, Path]) -> None:
    three = [RunFacts(runs[name]) for name in ("asgd", "seed 1", "ssgd")]
    assert label_runs(three) == ["asgd", "asgd", "ssgd"]
    rows = sorted(build_summary_rows(three))
    assert [row[:2] for row in rows] == [["asgd", "2"], ["ssgd", "1"]]
    low, high = sorted(run.summary["test_accuracy"] for run in three[:2])
    assert rows[0][2] == f"{(low + high) / 2:.2f}" and "[" in rows[1][2]


def test_unfinished_runs_are_counted_separately(runs: dict[str, Path]) -> None:
    ended, unfinished = RunFacts(runs["asgd"]), RunFacts(runs["seed 1"])
    facts = {"status": "interrupted", "updates": 1, "test_loss": 99.0}
    vars(unfinished)["summary"] = facts
    (row,), (alone,) = build_summary_rows([ended, unfinished]), build_summary_rows([ended])
    assert row[1] == "1 (and 1 unfinished)" and row[2:] == alone[2:]
    assert build_summary_rows([unfinished])[0][3] == "99.0000"


def test_report_in_python(runs: dict[str, Path], tmp_path: Path) -> None:
    records = [Record(runs["asgd"]), Record(runs["ssgd"])]
    path = write_report(records, tmp_path / "two.txt", title="Two methods", format="md")
    assert path.read_text().startswith("# Two methods\n") and "| ssgd | 1 |" in path.read_text()
    assert write_report(records[0], tmp_path / "one.html").read_text().count("<h1>") == 1
    damaged = Path(shutil.copytree(runs["asgd"], tmp_path / "damaged"))
    (damaged / "curve.parquet").write_text("nonsense")
    with pytest.warns(UserWarning, match="curve.parquet"):
        write_report(damaged, tmp_path / "damaged.html")
    for nothing in ([], tmp_path / "missing"):
        with pytest.raises((InputError, RecordError)):
            write_report(nothing, tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()


def write_report_file(tmp_path: Path, *items: Path, form: str = "html") -> Path:
    path = tmp_path / f"page.{form}"
    report([str(item) for item in items], path)
    return path


def test_html_needs_no_other_file(runs: dict[str, Path], tmp_path: Path) -> None:
    text = write_report_file(tmp_path, runs["asgd"], runs["ssgd"]).read_text()
    page = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)  # plotly's own code
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)[^"']+""", page)
    assert "--method ssgd" in page
    assert RunFacts(runs["asgd"]).summary["weights_sha256"] in page


@pytest.mark.slow
@pytest.mark.parametrize(("form", "magic"), [("pdf", b"%PDF"), ("png", b"\x89PNG"), ("md", b"# Straggler")])
def test_other_formats(runs: dict[str, Path], tmp_path: Path, form: str, magic: bytes) -> None:
    path = write_report_file(tmp_path, runs["asgd"], runs["k-sync"], form=form)
    assert path.read_bytes().startswith(magic) and path.stat().st_size > 500
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_invalid_input_writes_nothing(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "table.md").write_text("| a |\n|---|\n| 1 |\n")
    for items, out, rule in (
        (["unknown-run"], tmp_path / "a.html", "unknown-run"),
        ([str(runs["asgd"])], tmp_path / "a.doc", "must end with"),
        ([str(runs["asgd"])], Path("/proc/no/a.md"), "Cannot write"),
    ):
        with pytest.raises(InputError, match=rule):
            report(items, out)
    assert [file.name for file in tmp_path.iterdir()] == ["study"]


def test_other_folders_are_left_out_with_a_warning(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`runs/*` also matches the folder of landscapes and other files."""
    (tmp_path / "landscapes").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    others = [str(tmp_path / name) for name in ("landscapes", "notes.txt")]
    report([*others, str(runs["asgd"])], tmp_path / "one.md")
    output = capsys.readouterr().err
    assert output.count("\n") == 2 and all(f"left out: {other} is neither" in output for other in others)
    (tmp_path / "one.md").unlink()
    for nothing in (others[:1], others):
        with pytest.raises(InputError, match=r"landscapes.*: not a run or study"):
            report(nothing, tmp_path / "one.md")
    with pytest.raises(InputError, match="unknown-run"):
        report(["unknown-run", str(runs["asgd"])], tmp_path / "one.md")
    assert not (tmp_path / "one.md").exists()


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def test_text_of_a_record_is_escaped(runs: dict[str, Path], tmp_path: Path) -> None:
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
def test_damaged_file_is_named_and_the_rest_is_shown(
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


def test_custom_objects_are_not_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(64, 4), torch.arange(64) % 2
    model = torch.nn.Linear(4, 2)
    settings: dict[str, Any] = {"workers": 2, "updates": 4, "lr": 0.1, "dataset": (inputs, labels) * 2}
    run = Experiment(model=model, **settings).run(tmp_path, jobs=1)
    for form in ("html", "md"):
        text = write_report_file(tmp_path, run.path, form=form).read_text()
        assert "custom Python objects" in text and "<h2>Problems" not in text
    assert "left out" not in capsys.readouterr().err
    assert describe_rerun(RunFacts(run.path), "")["toml"] == run.text


def test_settings_are_shown_when_other_files_are_damaged(runs: dict[str, Path], tmp_path: Path) -> None:
    hurt = Path(shutil.copytree(runs["asgd"], tmp_path / "hurt"))
    (hurt / "curve.parquet").write_text("nonsense")
    assert render_html_report([RunFacts(hurt)], embedded=False).count("batch_size = 32") == 1


@pytest.mark.parametrize("text", ["", "= =", "\x00", "workers = 3"])
def test_unreadable_settings_give_no_report(runs: dict[str, Path], tmp_path: Path, text: str) -> None:
    hurt = Path(shutil.copytree(runs["asgd"], tmp_path / "hurt"))
    (hurt / "experiment.toml").write_text(text)
    for form in ("html", "md", "png"):
        with pytest.raises(InputError, match=r"experiment.toml cannot be read: .* Run it again"):
            write_report_file(tmp_path, hurt, form=form)
    assert [file.name for file in tmp_path.iterdir()] == ["hurt"]
    assert "experiment.toml cannot be read" in write_report_file(tmp_path, hurt, runs["ssgd"]).read_text()


GARBAGE: list[Any] = [None, "x", [], {}, -1e300, [[1], [2, "3"]], {"a": 1}, True]


@pytest.mark.parametrize("garbage", GARBAGE, ids=repr)
@pytest.mark.parametrize("file", ["summary.json", "environment.json"])
def test_invalid_values_in_a_record_still_give_a_page(
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
