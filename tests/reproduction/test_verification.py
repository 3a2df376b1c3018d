"""straggler verify: the same rows again are identical; a changed number, weight or schedule is found."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from straggler.cli.study import study as run_study
from straggler.cli.verify import verify
from straggler.config.registry import InputError
from straggler.reproduction import load_study
from straggler.reproduction.verification import choose_rows, compare_rows
from straggler.running.recorder import describe_processor
from straggler.sweeps.summaries import read_summaries

pytestmark = pytest.mark.slow
STUDY = """
from pathlib import Path
from straggler.reproduction import Cell, Study

FIXED = {"dataset": "digits", "model": "linear", "lr": 0.1, "epochs": 0.5, "eval_every": 0}


def make_cells(scale):
    for workers in (2, 3):
        yield Cell({"table": "1", "workers": workers}, FIXED | {"workers": workers})


STUDY = Study(Path(__file__).parent, "Tiny", "Nobody, 2026", make_cells, seeds=2)
"""
FILE = Path("results/tiny/summaries.parquet")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run a tiny study in the current folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "study.py").write_text(STUDY)
    (folder / "tables.toml").write_text("[1]\ncaption = 'c'\nrows = '{workers}'\ncolumns = 'accuracy'")
    (folder / "protocol.toml").write_text("frozen = 2026-01-01\nseeds = 2")
    run_study("./tiny", cores=1)
    return folder


def change(**facts: Any) -> None:
    table = read_summaries(FILE.parent)
    table.with_columns(**{name: pl.lit(value) for name, value in facts.items()}).write_parquet(FILE)


def test_rows_are_verified(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = read_summaries(FILE.parent)
    assert rows["processor"].unique().to_list() == [describe_processor()]
    assert rows["protocol_sha256"].n_unique() == 1 and rows["weights_sha256"].n_unique() == 4
    verify("./tiny", rows=2, cores=1)
    assert "All rows are identical." in capsys.readouterr().out and not list(Path("runs").glob("verify*"))

    change(test_loss=0.5)  # in the committed rows; losses depend on rounding
    with pytest.raises(SystemExit) as failed:
        verify("./tiny", rows=1, cores=1)
    assert failed.value.code == 1 and "test_loss 0.5 →" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit):
        verify("./tiny", rows=1, cores=1, allow_rounding=True)  # the same kind of processor: no excuse
    change(processor=None, test_loss=0.5, weights_sha256="0")
    verify("./tiny", rows=1, cores=1, allow_rounding=True)  # compares the finished run again
    assert "not recorded" in capsys.readouterr().out
    change(max_staleness=77, processor=None)
    with pytest.raises(SystemExit):
        verify("./tiny", rows=1, cores=1, allow_rounding=True)


def test_choice_depends_on_the_seed_only(tiny: Path) -> None:
    cells, rows = load_study("./tiny").cells(), read_summaries(FILE.parent)
    first, shuffled = (choose_rows(cells, table, 2, 0, None) for table in (rows, rows.reverse()))
    assert [run.id for run in first] == [run.id for run in shuffled]
    assert {run.id for run in choose_rows(cells, rows, 99, 0, None)} == set(rows["id"])
    outdated = rows.with_columns(id=pl.lit("0"))
    for table, limit in ((outdated, None), (rows, 0.0)):
        with pytest.raises(InputError, match="no row"):
            choose_rows(cells, table, 2, 0, limit)
    with pytest.raises(InputError, match="Run straggler study"):
        verify("./tiny", results=tiny)


def test_a_finished_folder_is_compared_without_running(tiny: Path) -> None:
    cells, rows = load_study("./tiny").cells(), read_summaries(FILE.parent)
    found = compare_rows(choose_rows(cells, rows, 4, 0, None), rows, FILE.parent, allow_rounding=False)
    assert len(found) == 4 and all(one.verdict == "identical" and one.weights == "identical" for one in found)
    assert all(one.compared > 10 for one in found)
