"""Contrasts: selection, pairing, reductions, lost runs, and errors."""

from collections.abc import Mapping

import polars as pl
import pytest

from straggler.config.registry import InputError
from straggler.reproduction.contrasts import COMPUTED, Contrasts, Number


def make_rows(values: Mapping[int, Mapping[tuple[str, int], float]]) -> pl.DataFrame:
    """Return hand-made summaries: by seed, then by split and number of workers."""
    rows = [
        {
            "table": "T",
            "split": split,
            "workers": workers,
            "seed": seed,
            "value": value,
            "converged": value > 12,
        }
        for seed, cells in values.items()
        for (split, workers), value in cells.items()
    ]
    return pl.DataFrame(rows)


CELLS = pl.DataFrame([{"table": "T", "split": split, "workers": n} for split in "ab" for n in (2, 5)])
WHOLE = {("a", 2): 80.0, ("a", 5): 70.0, ("b", 2): 60.0, ("b", 5): 65.0}
ROWS = make_rows({0: WHOLE, 1: {key: value + 1 for key, value in WHOLE.items()}})
SOURCE = make_rows({0: {("a", 2): 50.0, ("a", 5): 50.0, ("b", 2): 40.0, ("b", 5): 10.0}})
CONTRASTS = Contrasts(
    CELLS, SOURCE, {"left": 'value(split="a")'}, {"table": "T"}, {"double": lambda x: 2 * x}
)


def evaluate(text: str, rows: pl.DataFrame = ROWS) -> dict[int, float]:
    return {seed: number.value for seed, number in CONTRASTS.evaluate(text, rows).numbers.items()}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('value(split="a", workers=2)', 80),
        ('mean(value(split="a"))', 75),
        ('mean(value(split="a") - value(split="b"))', 12.5),
        ('min(value(split="a") - value(split="b"))', 5),
        ('max(value(split="a") / value(split="b"))', 80 / 60),
        ('mean(value(workers=[2, 5]))', 68.75),
        ("mean(left) - 70", 5),
        ('mean(abs(value(split="b") - value(split="a")))', 12.5),
        ('share(value(split="a") >= max(value(split="b"), 72))', 50),
        ('mean(min(value(split="a"), 75))', 72.5),
        ('mean_positive(value(split="a") - 75)', 5),
        ('mean_positive(value(split="a") - 90)', 0),
        ('best(value(workers=5))', 70),
        ('-mean(value(split="a")) * 2', -150),
        ("share_lost(workers=2)", 0),
        ('mean(value(split="a") - value(split="b", workers=2))', 15),  # the same for both numbers of workers
    ],
)  # fmt: skip
def test_contrast_of_hand_made_rows(text: str, value: float) -> None:
    found = evaluate(text)
    assert found[0] == pytest.approx(value) and set(found) == {0, 1}


def test_numbers_without_runs_are_computed() -> None:
    assert evaluate("double(3) + 1") == {COMPUTED: 7}
    assert CONTRASTS.evaluate(
        'source(mean(value(split="a") - value(split="b")))', ROWS, apart=True
    ).numbers == {COMPUTED: Number(10)}
    assert evaluate('mean(value(split="a")) - source(mean(value(split="a")))') == {0: 25, 1: 26}


def test_seed_without_all_cells_does_not_count() -> None:
    rows = make_rows({0: WHOLE, 1: {("a", 2): 99.0}})
    assert evaluate('mean(value(split="a"))', rows) == {0: 75}
    assert evaluate('value(split="a", workers=2)', rows) == {0: 80, 1: 99}
    assert evaluate('test_loss(split="a", workers=2)', rows) == {}, "no such column"


LOST = make_rows({0: WHOLE | {("b", 5): 10.0}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('mean(value(split="a"))', Number(75, False)),
        ('mean(value(split="b"))', Number(35, True)),
        ('share(value(split="a") >= value(split="b"))', Number(100, True)),
        ('max(value(split="b"))', Number(60, True)),
        ('best(value(split="b"))', Number(60, False)),
        ('share_lost(split="b")', Number(50, False)),
    ],
)
def test_numbers_tell_whether_runs_did_not_converge(text: str, expected: Number) -> None:
    assert CONTRASTS.evaluate(text, LOST).numbers[0] == expected


def test_unknown_values_stay_unknown() -> None:
    rows = ROWS.with_columns(value=pl.when(workers=5).then(None).otherwise("value"))
    assert evaluate('best(value(split="a"))', rows)[0] == 80
    assert all(value != value for value in evaluate('mean(value(split="a"))', rows).values())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('value(split="a")', "workers"),
        ('mean(value(split="c"))', "no cell"),
        ('mean(value(splitt="a"))', "splitt"),
        ('median(value(split="a"))', "median"),
        ("nonsense", "nonsense"),
        ("mean(", "never closed"),
        ('__import__("os").system("true")', "not part"),
        ("[x for x in (1, 2)]", "not part"),
        ('mean(value(workers=2) - value(split="a"))', "paired"),
    ],
)
def test_wrong_contrasts_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        evaluate(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('mean(value(split="b"))', 60),
        ('mean(value(split="a") - value(split="b"))', 20),  # the partner drops out too
        ('min(value(split="b"))', 60),
        ('share(value(split="a") >= value(split="b"))', 100),
        ("share_lost(split='b')", 50),
        ('value(split="b", workers=5)', None),
        ('mean(value(split="b", workers=[5]))', None),
    ],
)
def test_runs_that_did_not_converge_can_be_left_out(text: str, expected: float | None) -> None:
    found = CONTRASTS.evaluate(text, LOST, apart=True)
    assert {seed: number.value for seed, number in found.numbers.items()} == (
        {} if expected is None else {0: pytest.approx(expected)}
    )
    lost = sum(found.runs.values())
    assert lost == 1 and len(found.runs) == len(set(found.runs)) >= lost, "every run is counted once"


def test_a_run_that_cells_share_counts_once() -> None:
    shared = LOST.with_columns(id=pl.when(workers=5).then(pl.lit("same")).otherwise(pl.lit("other")))
    assert len(CONTRASTS.evaluate("mean(value(workers=[2, 5]))", shared).runs) == 2
