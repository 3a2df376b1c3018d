"""The studies of questions: tuning chooses by validation accuracy, and the cells use what it chose."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from straggler.reproduction import load_study
from straggler.reproduction.papers.questions import average_curves, format_fact
from straggler.reproduction.papers.rates import TUNING, choose_rates, read_rates
from straggler.reproduction.study import Study

QUESTIONS = ("unequal", "need-async", "control", "one-step")


def make_runs(*rows: tuple[str, str, float, int, float | None]) -> pl.DataFrame:
    columns = ("method", "variant", "lr", "seed", "validation_accuracy")
    return pl.DataFrame([dict(zip(columns, row, strict=True)) | {"protocol": "p"} for row in rows])


def test_best_mean_validation_accuracy_is_chosen() -> None:
    runs = make_runs(
        *(
            ("a", "", lr, seed, score + seed)
            for lr, score in ((0.1, 60), (0.2, 80), (0.4, 70))
            for seed in (0, 1)
        ),
        ("a", "", 0.8, 0, 99.0),  # only one of two seeds: it does not count
        *(("b", variant, 0.1, 0, score) for variant, score in (("k=2", 50.0), ("k=4", 55.0))),
    )
    first, second = choose_rates(runs)
    choice = {"protocol": "p", "method": "a", "variant": "", "lr": 0.2}
    assert first == choice | {"validation_accuracy": 80.5, "seeds": 2, "at_edge": False}
    assert (second["variant"], second["at_edge"]) == ("k=4", True)


def test_runs_without_an_accuracy_lose_and_ties_go_to_the_smaller_rate() -> None:
    runs = make_runs(("a", "", 0.1, 0, 20.0), ("a", "", 0.2, 0, 20.0), ("a", "", 0.05, 0, None))
    assert [row["lr"] for row in choose_rates(runs)] == [0.1]


@pytest.mark.parametrize("name", QUESTIONS)
def test_cells_have_the_rates_that_were_chosen(name: str) -> None:
    """Every answer is one of the candidates, evaluated in between; chosen rates have a cell each."""
    study = load_study(name)
    cells = study.cells()
    candidates: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in cells:
        if cell.labels["table"] == TUNING:
            key = (cell.labels["protocol"], cell.labels["method"])
            candidates.setdefault(key, []).append({**cell.settings, "eval_every": 0})
    chosen = read_rates(study.folder)
    answers = [cell for cell in cells if cell.labels["table"] != TUNING]
    for cell in answers:
        key = (cell.labels["protocol"], cell.labels["method"])
        assert {**cell.settings, "eval_every": 0} in candidates[key]
    assert chosen and set(chosen) <= set(candidates)


def check_protocol(study: Study) -> None:
    claims = study.read_claims()
    assert claims.protocol.frozen is not None and claims.claim
    for claim in claims.claim:
        study.contrasts().evaluate(claim.contrast, pl.DataFrame(), True)


@pytest.mark.parametrize("name", [*QUESTIONS, "epfl-jitter", "gap-aware"])
def test_every_claim_has_a_rule_that_can_be_evaluated(name: str) -> None:
    check_protocol(load_study(name))


def test_curves_are_averaged_at_equal_costs() -> None:
    """Two straight lines with points at different costs have their mean between them, up to the first end."""
    lines = {"a": ([0, 4, 10], 1.0), "b": ([0, 7, 20], 3.0)}
    rows = [
        {"id": name, "seconds": float(x), "test_accuracy": slope * x}
        for name, (xs, slope) in lines.items()
        for x in xs
    ]
    ((x, y),) = average_curves(pl.DataFrame(rows), "seconds")
    assert x[-1] == 10 and np.allclose(y, 2 * x)
    assert list(average_curves(pl.DataFrame(rows).clear(), "seconds")) == []


def test_facts_have_an_interval_only_where_values_differ() -> None:
    assert format_fact([2.0, 2.0, 2.0], 1) == "2.0" and format_fact([1.0, 3.0], 1) == "2.0"
    assert "±" in format_fact([1.0, 2.0, 3.0], 1) and format_fact([], 1) == "–"


def test_example_prints_the_bounds_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """0.75 % of the total of 2,250 batches: √2250 · 0.75 % / 0.669 = 0.53."""
    source = (Path(__file__).parents[3] / "examples" / "epfl_jitter.py").read_text()
    exec(compile(source, "epfl_jitter.py", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    (line,) = [line.split() for line in printed if line.startswith("lenet5   split")]
    assert line[2:6] == ["6", "2,250", "0.75", "%"] and line[6:8] == ["0.53", "0.79"]
