"""Claims: verdicts follow from the confidence interval over seeds."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from straggler.analysis.intervals import Spread
from straggler.config.registry import InputError
from straggler.reproduction.claims import Claim, Judgement, judge_claim, read_claims
from straggler.reproduction.contrasts import Contrasts
from straggler.reproduction.page import build_claim_rows, count_verdicts, encode_judgement, format_account

CONTRASTS = Contrasts(pl.DataFrame({"row": ["a", "b"]}), pl.DataFrame())


def make_rows(values: dict[int, dict[str, float]]) -> pl.DataFrame:
    rows = [
        {"row": row, "seed": seed, "value": value, "converged": value > 12}
        for seed, cells in values.items()
        for row, value in cells.items()
    ]
    return pl.DataFrame(rows)


def make_claim(**more: Any) -> Claim:
    contrast = {"contrast": 'value(row="a") - value(row="b")'}
    return Claim(
        **{"key": "k", "statement": "a beats b", "where": "here", "measured": "a - b"} | contrast | more
    )


def judge(claim: Claim, values: dict[int, dict[str, float]]) -> Judgement:
    return judge_claim(claim, CONTRASTS, make_rows(values))


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((5.0, 5.2, 4.8), "replicated"),
        ((-5.0, -5.2, -4.8), "not replicated"),
        ((5.0, -5.2, 4.8), "inconclusive"),
        ((5.0,), "inconclusive"),  # one seed has no interval
        ((), "not measured"),
    ],
)
def test_verdict_follows_from_interval(gains: tuple[float, ...], verdict: str) -> None:
    values = {seed: {"a": 50 + gain, "b": 50.0} for seed, gain in enumerate(gains)} or {0: {"a": 1.0}}
    assert judge(make_claim(least=0), values).verdict == verdict


@pytest.mark.parametrize(
    ("spread", "verdict"),
    [
        (Spread(1.0, 3), "replicated"),
        (Spread(4.0, 3), "inconclusive"),
        (Spread(2.0, 1000), "replicated"),
        (Spread(2.0, 2), "inconclusive"),  # too few degrees of freedom
    ],
)
def test_one_seed_with_a_known_spread_is_enough(spread: Spread, verdict: str) -> None:
    assert judge(make_claim(least=0, spread=spread), {0: {"a": 55.0, "b": 50.0}}).verdict == verdict


def test_differences_are_taken_within_a_seed() -> None:
    noisy = {seed: {"a": 51.0 + 10 * seed, "b": 50.0 + 10 * seed} for seed in range(3)}
    found = judge(make_claim(least=0.5), noisy)
    assert found.verdict == "replicated" and found.measured is not None
    assert found.measured.interval.low == pytest.approx(1.0)


def test_interval_is_clipped_to_possible_values() -> None:
    found = judge(make_claim(least=0), {seed: {"a": 100.0 * (seed > 0), "b": 0.0} for seed in range(3)})
    assert found.measured is not None and found.measured.interval.high == 100


def test_constructed_claims_are_not_judged_and_exact_ones_need_no_interval() -> None:
    one = {0: {"a": 55.0, "b": 50.0}}
    assert judge(make_claim(least=0, constructed=True), one).verdict == "by construction"
    assert judge(make_claim(least=5, exact=True), one).verdict == "replicated"


def test_text_says_if_runs_did_not_converge() -> None:
    good = {seed: {"a": 55.0, "b": 50.0} for seed in range(3)}
    for values, lost in ((good, False), (good | {2: {"a": 55.0, "b": 10.0}}, True)):
        text = format_account([judge(make_claim(least=0, comment="So it is."), values)])
        assert ("NC included" in text) == lost


def test_computed_numbers_have_no_seeds() -> None:
    found = judge(make_claim(contrast="3 + 0.14", least=3, exact=True, comment="More."), {0: {"a": 1.0}})
    assert found.verdict == "replicated" and "computed" in format_account([found])


def test_account_shows_bounds_and_counts() -> None:
    values = {seed: {"a": 55.0 + seed, "b": 50.0} for seed in range(3)}
    found = [judge(make_claim(least=least), values) for least in (0.0, 0.0, 50.0)]
    found.append(judge(make_claim(most=-1.0), {0: {"a": 1.0}}))
    assert count_verdicts(found) == "4 claims: 2 replicated, 1 not replicated, 1 not measured"
    assert [row[3] for row in build_claim_rows(found)[1]] == [
        "at least 0",
        "at least 0",
        "at least 50",
        "at most -1",
    ]
    assert make_claim(least=5, most=17.5, unit="%").bounds == "from 5 to 17.5 %"
    assert (
        "low" in encode_judgement(found[0])
        and "most" not in encode_judgement(found[0])
        and "low" not in encode_judgement(found[3])
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[claim]]\nkey = 1", "statement"),
        ("[[claim]", "line 1"),
        ("[[claims]]", "claims"),
        ('[[claim]]\nkey="k"\nstatement="s"\nwhere="w"\nmeasured="m"\ncontrast="1"\nleast="much"', "least"),
    ],
)
def test_wrong_claims_files_are_refused_with_file_and_key(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "claims.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=rf"claims\.toml.*{reason}"):
        read_claims(file, {})


def test_words_are_replaced_in_claims(tmp_path: Path) -> None:
    file = tmp_path / "claims.toml"
    file.write_text('[names]\nx = "{network}"')
    assert read_claims(file, {"network": "lenet5"}).names == {"x": "lenet5"}
    assert read_claims(tmp_path / "none.toml", {}).claim == ()
