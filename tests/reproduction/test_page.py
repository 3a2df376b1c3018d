"""The page of a study: drawn from summaries alone, complete, and honest about rehearsals."""

import json
import math
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from documents import compare_texts
from straggler.cli.study import show_study
from straggler.cli.study import study as run_study
from straggler.config.registry import InputError
from straggler.reproduction import Cell, load_study
from straggler.reproduction.claims import Protocol
from straggler.reproduction.page import draw_study, format_account, judge_study, place_runs
from straggler.reproduction.provenance import (
    count_outdated,
    describe_coverage,
    describe_protocol,
    describe_rows,
)
from straggler.reproduction.study import Scale, list_builtin_studies
from straggler.sweeps.summaries import read_summaries

RESULTS = Path(__file__).parents[2] / "results"
COMMITTED = [name for name in list_builtin_studies() if (RESULTS / name / "summaries.parquet").is_file()]
CELL: dict[str, Any] = {"table": "T", "protocol": "p", "row": "r", "column": "c"}
TINY = {"dataset": "digits", "model": "linear", "epochs": 0.5, "eval_every": 0}


def copy_summaries(name: str, folder: Path, pattern: str = "summaries.parquet") -> None:
    for file in (RESULTS / name).glob(pattern):
        (folder / file.name).write_bytes(file.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMITTED)
def test_drawing_the_committed_results_changes_nothing(name: str, tmp_path: Path) -> None:
    copy_summaries(name, tmp_path, "*.parquet")
    drawn = draw_study(load_study(name), tmp_path)
    for file in ("README.md", "claims.json", *(f"tables/{table.name}.csv" for table in drawn.tables)):
        compare_texts((tmp_path / file).read_text(), (RESULTS / name / file).read_text())  # make findings
    page = (tmp_path / "README.md").read_text()
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    believed = ["What to believe", "What to doubt", "What was not run, and why", "What was fixed when"]
    agreement = ["Agreement with the source"] if (load_study(name).folder / "numbers.csv").exists() else []
    expected = [f"## {heading}" for heading in (*agreement, *believed)]
    assert headings[: len(expected)] == expected
    undecided = [one for one in drawn.judgements if one.verdict == "inconclusive"]
    assert all(one.reason for one in undecided), "every inconclusive claim says why"
    for one in drawn.judgements:
        if one.measured is not None and one.claim.possible == "percent":
            low, high = one.measured.interval.low, one.measured.interval.high
            assert high < 0 or low > 100 or low == -math.inf or 0 <= low <= high <= 100
    assert "](forest.png)" in page and f"{name}/forest.png" in format_account(load_study(name), drawn, name)
    for figure in tmp_path.glob("*.png"):
        assert figure.stat().st_size > 10_000 and f"({figure.name})" in page


REHEARSED = ("asu", "unequal")  # in every test run; the other studies differ in their cells only


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in REHEARSED else pytest.param(name, marks=pytest.mark.chaos) for name in COMMITTED]
)
def test_rehearsal_judges_nothing(name: str, tmp_path: Path) -> None:
    copy_summaries(name, tmp_path)
    drawn = draw_study(load_study(name), tmp_path, rehearsal=True)
    page = (tmp_path / "README.md").read_text()
    assert {one.verdict for one in drawn.judgements} <= {"rehearsed", "not measured"}
    assert page.splitlines()[2].startswith("> **This is a rehearsal, not a result.**"), "said first"
    assert not (tmp_path / "forest.png").exists() and f"`straggler study {name} --quick`" in page
    assert not any(f"| {verdict} |" in page for verdict in ("replicated", "not replicated", "inconclusive"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in COMMITTED if name != "gap-aware"])  # not run yet
def test_few_cells_can_be_drawn(name: str, tmp_path: Path) -> None:
    study = load_study(name)
    labels = pl.DataFrame([dict(cell.labels) for cell in study.select_cells("default", quick=True)])
    committed = read_summaries(RESULTS / name).filter(pl.col("seed") == 0)
    few = committed.join(labels, on=labels.columns, how="semi", nulls_equal=True)
    assert len(few) >= 4
    few.write_parquet(tmp_path / "summaries.parquet")
    copy_summaries(name, tmp_path, "curves.parquet")
    drawn = draw_study(study, tmp_path, rehearsal=True)
    assert drawn.tables and bool(list(tmp_path.glob("*.png"))) == (name != "one-step")
    claims = json.loads((tmp_path / "claims.json").read_text())
    assert {claim["verdict"] for claim in claims} <= {"rehearsed", "not measured"}
    assert not (tmp_path / "training.png").exists(), "needs 16 workers"


def test_rehearsal_replaces_no_results(tmp_path: Path) -> None:
    copy_summaries("epfl", tmp_path)
    (tmp_path / "README.md").write_text("# Results")
    with pytest.raises(InputError, match="Choose another"):
        run_study("epfl", quick=True, results=tmp_path, runs=tmp_path / "runs")
    with pytest.raises(InputError, match="judges no claims"):
        run_study("epfl", quick=True, into=tmp_path / "README.md")
    assert not (tmp_path / "runs").exists()


def test_results_with_other_labels_are_refused(tmp_path: Path) -> None:
    pl.DataFrame([CELL | {"seed": 0, "id": "x"}]).write_parquet(tmp_path / "summaries.parquet")
    with pytest.raises(InputError, match="lacks the labels"):
        run_study("epfl", results=tmp_path, runs=tmp_path / "runs")


def test_missing_summaries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Run straggler study epfl first"):
        draw_study(load_study("epfl"), tmp_path)


@pytest.mark.parametrize("name", list_builtin_studies())
@pytest.mark.parametrize("scale", ["default", "paper"])
def test_every_claim_is_judged_if_every_cell_has_run(name: str, scale: Scale) -> None:
    study = load_study(name)
    names = ["value", "test_accuracy", "test_loss", "train_loss", "mean_gap", "seconds", "gradients"]
    names += ["slow_recall", "penalty", "penalty_first_half", "penalty_second_half"]  # of measurements
    cells = study.cells(scale)
    rows = [
        {**cell.labels, "seed": seed, "converged": True, **dict.fromkeys(names, 50.0), cell.metric: 50.0}
        for cell in cells
        for seed in (0, 1)
    ]
    found = judge_study(study, pl.DataFrame(rows, infer_schema_length=None), scale)
    assert [one.claim.key for one in found if one.verdict == "not measured"] == []
    for one in found:
        assert len(one.causes) == sum(cause.scale in (None, scale) for cause in one.claim.causes)
        assert one.claim.least <= one.claim.most and one.claim.bounds
    assert len({one.claim.key for one in found}) == len(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMITTED)
def test_committed_rows_have_the_settings_of_the_study(name: str) -> None:
    assert count_outdated(read_summaries(RESULTS / name), load_study(name).cells()) == 0


def make_row(cell: Cell, **facts: Any) -> pl.DataFrame:
    return pl.DataFrame([{**cell.labels, "seed": 0, "id": cell.experiment(0).id, **facts}])


def test_rows_of_other_settings_are_counted() -> None:
    labels = {"table": "T", "protocol": "p"}
    cell = Cell(labels, TINY)
    assert count_outdated(make_row(cell), [cell]) == 0
    assert count_outdated(make_row(cell), [Cell(labels, TINY | {"lr": 0.5})]) == 1
    assert count_outdated(make_row(cell), []) == 1


def test_runs_get_the_current_numbers_of_the_source() -> None:
    cells = pl.DataFrame(
        [{"table": "T", "workers": 2, "row": "r", "column": "c", "metric": "test_error", "source": 3.0}]
    )
    old = pl.DataFrame([{"table": "T", "workers": 2, "value": None, "source": 1.0, "test_error": 20.0}])
    assert place_runs(old, cells).select("value", "source", "row").row(0) == (20.0, 3.0, "r")
    assert place_runs(old.with_columns(workers=5), cells).is_empty(), "not a cell of the study"


def test_the_page_says_which_runs_are_later_than_the_protocol() -> None:
    protocol = Protocol(frozen=date(2026, 1, 2), sha256="abc", note="Honest.")
    rows = pl.DataFrame(
        {
            "protocol_sha256": ["abc", "abc", "old", None],
            "started": [
                "2026-01-03T00:00:00+00:00",
                "2026-01-01T00:00:00+00:00",
                "2026-01-03T00:00:00+00:00",
                None,
            ],
        }
    )
    text = describe_protocol(protocol, rows)
    assert "1 of 4 rows" in text and "abc" in text and text.endswith("Honest.")
    assert "0 of 4 rows" in describe_protocol(protocol, rows.select("started")), "not recorded"
    assert "exploratory" in describe_protocol(Protocol(), rows)


def test_what_is_not_recorded_is_said() -> None:
    old = pl.DataFrame({"seed": [0, 1]})
    assert "torch: not recorded (2 rows)" in describe_rows(old)
    new = pl.DataFrame({"seed": [2], "torch_version": ["2.9"], "weights_sha256": ["12ab"]})
    text = describe_rows(pl.concat([old, new], how="diagonal"))
    assert "torch: not recorded (2 rows), 2.9 (1 rows)" in text
    assert "weights: not recorded (2 rows), recorded (1 rows)" in text and "12ab" not in text


def make_runs(values: dict[int, str], table: str = "T") -> pl.DataFrame:
    rows = [
        CELL | {"table": table, "row": row, "seed": seed} for seed, names in values.items() for row in names
    ]
    return pl.DataFrame(rows)


def test_coverage_says_what_is_missing() -> None:
    cells = [Cell({"table": "T", "protocol": "p", "row": row}, {}) for row in "ab"]
    cells += [Cell({"table": "U", "protocol": protocol, "row": "a"}, {}) for protocol in "pq"]
    runs = pl.concat([make_runs({0: "ab", 1: "a"}), make_runs({0: "a"}, "U")])
    text = describe_coverage(cells, runs)
    assert text == "Complete seeds per table: 1 (another begun): T; 1: U p; 0: U q."
    limited = [cells[0], Cell(cells[1].labels, {}, seeds=1)]
    assert describe_coverage(limited, make_runs({0: "ab", 1: "a"})) == "Complete seeds per table: 2: T."


@pytest.mark.slow
def test_times_and_verdicts_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_summaries("asu", tmp_path)
    show_study(load_study("asu"), tmp_path, "default", ["4"], None, rehearsal=False)
    printed = capsys.readouterr().out
    assert "Training time" in printed and "source (s)" in printed and "ratio" in printed
    verdicts = printed.split("claims")[1]
    assert "not replicated" in verdicts and "inconclusive" in verdicts, "also with 80 columns"
