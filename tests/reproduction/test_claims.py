"""Claims and their verdicts: what the protocol fixes, what seeds can decide, and where lost runs go."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from straggler.config.registry import InputError
from straggler.reproduction.account import (
    build_claim_rows,
    count_verdicts,
    encode_judgement,
    explain_claims,
    list_undecided,
    make_effects,
)
from straggler.reproduction.claims import EXPLORATORY, Claim, read_claims
from straggler.reproduction.contrasts import Contrasts
from straggler.reproduction.verdicts import Judgement, judge_claims

CONTRASTS = Contrasts(pl.DataFrame({"row": ["a", "b"]}), pl.DataFrame())
LOST = 10.0  # the accuracy of a run that did not converge
Values = dict[int, dict[str, float]]


def make_rows(values: Values) -> pl.DataFrame:
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


def make_gains(*gains: float) -> Values:
    return {seed: {"a": 50 + gain, "b": 50.0} for seed, gain in enumerate(gains)}


def judge(claim: Claim, values: Values, seeds: int | None = None) -> Judgement:
    (found,) = judge_claims([claim], CONTRASTS, make_rows(values), seeds=seeds)
    return found


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((5.0, 5.2, 4.8), "replicated"),
        ((-5.0, -5.2, -4.8), "not replicated"),
        ((5.0, -5.2, 4.8), "inconclusive"),
        ((5.0, 5.2), "inconclusive"),  # two seeds
        ((5.0,), "inconclusive"),
    ],
)
def test_verdict_follows_from_the_seeds(gains: tuple[float, ...], verdict: str) -> None:
    found = judge(make_claim(least=0), make_gains(*gains))
    assert found.verdict == verdict and bool(found.reason) == (verdict == "inconclusive")


def test_a_claim_without_its_cells_is_not_measured() -> None:
    assert judge(make_claim(least=0), {0: {"a": 1.0}}).verdict == "not measured"


def test_differences_are_taken_within_a_seed() -> None:
    noisy = {seed: {"a": 51.0 + 10 * seed, "b": 50.0 + 10 * seed} for seed in range(3)}
    found = judge(make_claim(least=0.5), noisy)
    assert found.verdict == "replicated" and found.measured is not None
    assert found.measured.interval.low == pytest.approx(1.0)


def test_more_tests_in_a_family_decide_less() -> None:
    """The same claim is decided alone, and not among undecided ones; another family does not matter."""
    gains = make_gains(1.0, 1.4, 1.9)
    contrast = {"contrast": 'value(row="a") - 51.4'}
    others = [make_claim(key=str(n), least=0, **contrast) for n in range(4)]
    claims = [make_claim(least=0), *others]
    alone, (together, *_) = (judge_claims(some, CONTRASTS, make_rows(gains)) for some in (claims[:1], claims))
    assert (alone[0].verdict, together.verdict) == ("replicated", "inconclusive")
    assert "alone" in together.reason
    (apart, *_) = judge_claims([make_claim(least=0, family="mine"), *others], CONTRASTS, make_rows(gains))
    assert apart.verdict == "replicated"


def test_equivalence_needs_a_margin() -> None:
    gains = make_gains(0.1, -0.1, 0.05, -0.04)
    assert judge(make_claim(least=0), gains).verdict == "inconclusive"
    assert judge(make_claim(least=0, margin=1.0), gains).verdict == "equivalent"
    assert judge(make_claim(least=0, margin=0.01), gains).verdict == "inconclusive"
    assert judge(make_claim(least=0, margin=1.0), make_gains(0.4, 0.5, 0.6)).verdict == "replicated"


@pytest.mark.parametrize(("seeds", "verdict"), [(2, "inconclusive"), (3, "replicated")])
def test_exact_verdicts_need_three_seeds(seeds: int, verdict: str) -> None:
    values = {seed: {"a": LOST, "b": LOST} for seed in range(seeds)}
    claim = make_claim(contrast="share_lost(row=['a', 'b'])", least=100, unit="%", exact=True)
    found = judge(claim, values)
    assert found.verdict == verdict and found.measured is not None
    assert (found.measured.lost, found.measured.runs) == (2 * seeds, 2 * seeds)
    assert 0 < found.measured.interval.low < found.measured.interval.high == 100, "of other runs of the kind"


def test_runs_that_did_not_converge_are_apart_from_accuracy() -> None:
    values = make_gains(5.0, 5.2, 4.8, 5.1) | {4: {"a": 55.0, "b": LOST}}
    apart, included = (
        judge(make_claim(least=0, most=10, lost=lost), values) for lost in ("apart", "included")
    )
    assert apart.verdict == "replicated" and included.verdict == "inconclusive"
    assert apart.measured is not None and apart.measured.seeds == 4
    assert (apart.measured.lost, apart.measured.runs) == (1, 10) and apart.measured.lost_share is not None
    text = explain_claims([apart])
    assert "1 of 10, 10.00 [0.25, 44.50] %" in text and "NC included" not in text
    assert "NC included" in build_claim_rows([included])[1][0][2]


def test_a_claim_whose_runs_are_all_lost_says_so() -> None:
    found = judge(make_claim(least=0), {seed: {"a": 55.0, "b": LOST} for seed in range(3)})
    assert (found.verdict, found.measured) == ("inconclusive", None) and "3 of 6 did not" in found.reason
    assert "3 of 6" in explain_claims([found]) and "45.00" in explain_claims([found])


def test_only_the_seeds_of_the_protocol_count() -> None:
    values = make_gains(5.0, 5.2, 4.8, -30.0)
    assert judge(make_claim(least=0), values, seeds=3).verdict == "replicated"
    assert judge(make_claim(least=0), values).verdict == "inconclusive"
    assert judge(make_claim(least=0, seeds=4), values, seeds=3).verdict == "inconclusive"


def test_intervals_stay_within_what_is_possible() -> None:
    found = judge(make_claim(least=0), {seed: {"a": 100.0 * (seed > 0), "b": 13.0} for seed in range(3)})
    found_measure = judge(
        make_claim(contrast='value(row="a")', possible="percent", lost="included"),
        {0: {"a": 0.0}, 1: {"a": 100.0}, 2: {"a": 100.0}},
    ).measured
    assert found.measured is not None and found_measure is not None
    assert found_measure.interval.high == 100 and "±" not in str(found_measure.interval)


def test_constructed_claims_are_not_judged() -> None:
    assert judge(make_claim(least=0, constructed=True), make_gains(5.0)).verdict == "by construction"


def test_computed_numbers_have_no_seeds() -> None:
    found = judge(make_claim(contrast="3 + 0.14", least=3, comment="More."), {0: {"a": 1.0}})
    assert found.verdict == "replicated" and build_claim_rows([found])[1][0][5] == "–"


def test_tables_show_bounds_counts_and_reasons() -> None:
    values = {seed: {"a": 55.0 + seed, "b": 50.0} for seed in range(3)}
    found = [judge(make_claim(least=least), values) for least in (0.0, 0.0, 50.0, 6.0)]
    found.append(judge(make_claim(most=-1.0), {0: {"a": 1.0}}))
    counts = "5 claims: 2 replicated, 1 not replicated, 1 inconclusive, 1 not measured"
    assert count_verdicts(found) == counts
    bounds = [row[3] for row in build_claim_rows(found)[1]]
    assert bounds == ["at least 0", "at least 0", "at least 50", "at least 6", "at most -1"]
    assert make_claim(least=5, most=17.5, unit="%").bounds == "from 5 to 17.5 %"
    (reason,) = list_undecided(found)[1]
    assert reason[0] == "k" and "seeds" in reason[1]
    encoded = encode_judgement(found[0], "abc")
    assert encoded["protocol_sha256"] == "abc" and encoded["low"] < encoded["effect"] < encoded["high"]
    assert "most" not in encoded and "low" not in encode_judgement(found[4], "")
    effects = make_effects(found)
    assert len(effects) == 4 and effects[0].low < effects[0].mean


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
    assert read_claims(tmp_path / "none" / "claims.toml", {}).claim == ()


CLAIM = '[[claim]]\nkey="k"\nstatement="s"\nwhere="w"\nmeasured="m"\n'


def test_the_protocol_has_what_decides(tmp_path: Path) -> None:
    (tmp_path / "claims.toml").write_text(CLAIM)
    (tmp_path / "protocol.toml").write_text(
        'frozen = 2026-01-02\nseeds = 5\n[names]\nx = "1"\n[claim.k]\ncontrast = "x"\nleast = 3\nfamily = "f"'
    )
    found = read_claims(tmp_path / "claims.toml", {})
    (claim,) = found.claim
    assert (claim.contrast, claim.least, claim.family) == ("x", 3, "f") and found.names == {"x": "1"}
    assert found.protocol.seeds == 5 and len(found.protocol.sha256) == 64
    before = found.protocol.sha256
    (tmp_path / "protocol.toml").write_text((tmp_path / "protocol.toml").read_text().replace("3", "4"))
    assert read_claims(tmp_path / "claims.toml", {}).protocol.sha256 != before


@pytest.mark.parametrize(
    ("claims", "protocol", "reason"),
    [
        (CLAIM, '[claim.other]\ncontrast = "1"', "no claim 'other'"),
        (CLAIM + 'contrast = "1"', '[claim.k]\ncontrast = "1"', "'contrast' is also in"),
        (CLAIM, '[claim.k]\ncontrast = "1"\nlest = 3', "lest"),
        (CLAIM, "[claim.k]\nleast = 3", "contrast"),
        (CLAIM, "seeds = 0", "seeds"),
        (CLAIM, "seedz = 3", "seedz"),
    ],
)
def test_wrong_protocols_are_refused(claims: str, protocol: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "claims.toml").write_text(claims)
    (tmp_path / "protocol.toml").write_text(protocol)
    with pytest.raises(InputError, match=reason):
        read_claims(tmp_path / "claims.toml", {})


def test_claims_that_no_protocol_mentions_are_exploratory(tmp_path: Path) -> None:
    (tmp_path / "claims.toml").write_text(CLAIM + 'contrast = "1"')
    (claim,) = read_claims(tmp_path / "claims.toml", {}).claim
    assert claim.family == EXPLORATORY
