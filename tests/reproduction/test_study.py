"""Studies: loading, selection of cells, and a fourth paper from the documentation."""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from straggler.cli.study import study as run_study
from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.reproduction import Study, load_study
from straggler.reproduction import study as module
from straggler.reproduction.study import Scale, list_builtin_studies, read_numbers
from straggler.sweeps.grid import plan_runs
from straggler.timing.clusters import Repetition

DOCUMENT = Path(__file__).parents[2] / "docs" / "studies.md"
FILES = ("study.py", "numbers.csv", "tables.toml", "claims.toml", "protocol.toml")


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the example of docs/studies.md into ./my_paper."""
    folder = tmp_path / "my_paper"
    folder.mkdir()
    for name, text in re.findall(
        r"^```\w+ (\S+\.\w+)\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE
    ):
        if name in FILES:
            (folder / name).write_text(text)
    (folder / "notes.md").write_text("What was not run: everything else.")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.slow
def test_study_of_the_documentation_runs(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sum(len((paper / name).read_text().splitlines()) for name in FILES) <= 40
    run_study("./my_paper/", cores=2)
    printed = " ".join(capsys.readouterr().out.split())
    assert "ssgd" in printed and "1 claim: 1 replicated" in printed
    page = Path("results/my-paper/README.md").read_text()
    for text in ("Doe and Roe", "straggler study ./my_paper/ --draw", "not run: everything", "beside.png"):
        assert text in page
    (claim,) = json.loads(Path("results/my-paper/claims.json").read_text())
    assert claim["verdict"] == "replicated" and claim["effect"] > 0
    cells = load_study("my_paper").describe_cells()
    assert cells.filter(method="asgd", workers=8)["source"].to_list() == [61.0]


@pytest.mark.slow
def test_rehearsal_says_so_first(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_study("./my_paper", quick=True, cores=2)
    assert capsys.readouterr().out.startswith("This is a rehearsal")
    page = Path("results/my-paper-quick/README.md").read_text().splitlines()
    assert "not a result" in page[2], "before everything but the title"


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("study.py", "x = = 1", "line 1"),
        ("study.py", "STUDIES = 1", "STUDY"),
        ("study.py", "STUDY = 1", "STUDY must be"),
        ("tables.toml", "[2]\ncaption = 'c'\nrows = 'r'\ncolumns = 'c'", "table '1'"),
        ("tables.toml", "[1]\ncaption = 1", "rows"),
        ("numbers.csv", "table,value\n1,2.0\n1,3.0", "2 rows"),
        ("claims.toml", '[[claim]]\nkey = "sync-better"', "statement"),
        ("protocol.toml", "[claim.sync-better]\nleast = 0", "contrast"),
    ],
)
def test_wrong_files_are_refused(paper: Path, file: str, text: str, reason: str) -> None:
    (paper / file).write_text(text)
    with pytest.raises(InputError, match=reason):
        found = load_study(str(paper))
        found.describe_cells(), found.contrasts()


def test_unknown_studies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Did you mean 'epfl'"):
        load_study("eplf")
    with pytest.raises(InputError, match=r"has no study\.py"):
        load_study(str(tmp_path))


def test_installed_packages_register_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "other"

        def load(self) -> Study:
            return load_study("asu")

    def find(group: str, name: str = "") -> list[Point]:
        return [Point()] if group == "straggler.studies" and name in ("", "other") else []

    monkeypatch.setattr(module, "entry_points", find)
    assert load_study("other") == load_study("asu")
    with pytest.raises(InputError, match="other"):
        load_study("others")


@pytest.mark.slow
@pytest.mark.parametrize("name", list_builtin_studies())
@pytest.mark.parametrize("scale", ["default", "paper"])
def test_every_experiment_can_be_built_and_every_table_has_cells(name: str, scale: Scale) -> None:
    study = load_study(name)
    cells = study.cells(scale)
    for cell in cells:
        task = plan_runs([cell], [0])[0]
        order = pickle.loads(pickle.dumps(task.order))  # a process that receives it finds the same experiment
        assert (order if isinstance(order, Repetition) else Experiment(**order)).id == task.id
    if scale == "default":
        assert {cell.labels["table"] for cell in cells} == set(study.tables)
    places = study.describe_cells(scale).select("table", "protocol", "row", "column")
    assert places.is_duplicated().sum() == 0


@pytest.mark.parametrize("name", list_builtin_studies())
def test_rehearsal_has_a_few_short_cells(name: str) -> None:
    cells = load_study(name).select_cells("default", quick=True)
    assert 4 <= len(cells) <= 16
    for cell in cells:
        experiment = cell.experiment(0)
        assert isinstance(experiment, Experiment)
        assert (experiment.epochs or 0) <= 0.05 or (experiment.gradients or 1e9) <= 100
    if name == "gap-aware":
        assert "dana-ga" in {cell.labels["method"] for cell in cells}


def test_cells_are_selected_by_table_and_label() -> None:
    epfl = load_study("epfl")
    cells = epfl.select_cells("default", ["II"], only=["as coded", "workers=2", "split=labels"])
    assert [cell.labels["mode"] for cell in cells] == ["sync", "async", *["all"] * 3, *["one"] * 3]
    assert len(epfl.select_cells("default", ["II"], only=["2 workers, labels"])) == 16, (
        "the column of the table"
    )
    with pytest.raises(InputError, match="VIII"):
        epfl.select_cells("default", ["VIII"])
    with pytest.raises(InputError, match="'workers=7' matches none"):
        epfl.select_cells("default", only=["as coded", "workers=7"])


@pytest.mark.parametrize("name", list_builtin_studies())
def test_every_number_of_the_source_belongs_to_a_cell(name: str) -> None:
    study = load_study(name)
    cells = [cell.labels for cell in study.cells()]
    labels = {label for cell in cells for label in cell}
    for row in read_numbers(study.folder):
        if row["table"] != "I":  # EPFL's scores by class
            assert any(all(cell.get(k) == v for k, v in row.items() if k in labels) for cell in cells), row


@pytest.mark.parametrize("other", [{"dry_run": True}, {"only": ["as coded"]}])
def test_draw_cannot_be_combined_with_a_selection_of_runs(other: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="cannot be combined"):
        run_study("epfl", draw_only=True, **other)
