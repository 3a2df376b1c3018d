"""Verdicts: claims measured over the seeds, and judged with Holm's correction within each family."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from straggler.analysis.intervals import FEWEST_SEEDS, Array, Interval, mean_interval
from straggler.analysis.study_statistics import (
    LEVEL,
    MOST_SEEDS,
    BandTest,
    as_array,
    compare_with_band,
    compute_equivalence,
    correct_by_holm,
    estimate_seeds,
    exact_share,
    smallest_rank_p,
)
from straggler.reproduction.claims import POSSIBLE, Claim, Range
from straggler.reproduction.contrasts import COMPUTED, Contrasts

Verdict = Literal[
    "replicated",
    "not replicated",
    "equivalent",
    "inconclusive",
    "by construction",
    "not measured",
    "rehearsed",
]


@dataclass(frozen=True)
class Measurement:
    """A measured contrast: one value per seed, their mean with its interval, and the runs behind it."""

    values: Array
    interval: Interval
    seeds: int  # 0 if the number needs no run
    runs: int  # that the contrast rests on
    lost: int  # of them did not converge
    has_lost: bool = False  # whether runs that did not converge count in the values

    def format(self, unit: str = "") -> str:
        return f"{self.interval}{unit}{' (NC included)' if self.has_lost else ''}"

    @property
    def lost_share(self) -> Interval | None:
        """The share of runs that did not converge, if there are any."""
        return exact_share(self.lost, self.runs) if self.lost else None


@dataclass(frozen=True)
class Tests:
    """The p-values of a claim: alone, and corrected for the tests of its family."""

    band: BandTest
    rank: BandTest
    equivalence: float | None
    corrected: float = 1.0
    corrected_equivalence: float = 1.0


@dataclass(frozen=True)
class Judgement:
    """A claim, its verdict, and the numbers that the verdict rests on."""

    claim: Claim
    verdict: Verdict
    reason: str  # why it is inconclusive
    measured: Measurement | None
    said: float | None
    causes: tuple[tuple[str, Measurement], ...] = ()
    included: Measurement | None = None  # with runs that did not converge, where they are left out
    tests: Tests | None = None
    planned: int | None = None  # seeds that the protocol asks for

    @property
    def seeds(self) -> str:
        """The number of seeds, and how many the protocol asks for if these are more."""
        if self.measured is None or not self.measured.seeds:
            return "–"
        more = self.planned is not None and self.measured.seeds < self.planned
        return f"{self.measured.seeds}{f' of {self.planned}' if more else ''}"

    @property
    def comment(self) -> str:
        return self.claim.comment if self.measured else ""

    @property
    def rank_text(self) -> str:
        """What the signed-rank test says, in words."""
        if self.tests is None or self.measured is None:
            return "–"
        rank = self.tests.rank
        if rank.p <= LEVEL:
            return f"{'inside' if rank.is_inside else 'outside'}, {format_p(rank.p)}"
        few = smallest_rank_p(self.measured.seeds) > LEVEL
        return f"undecided, {format_p(rank.p)}" + (" (too few seeds)" if few else "")


def judge_claims(
    claims: Iterable[Claim],
    contrasts: Contrasts,
    summaries: pl.DataFrame,
    scale: str = "default",
    seeds: int | None = None,
) -> list[Judgement]:
    """Measure the claims and judge them; the tests of a family keep its level together."""
    claims = list(claims)
    rows = {claim.key: select_seeds(summaries, claim.seeds or seeds) for claim in claims}
    found = {
        claim.key: measure_contrast(
            claim.contrast, contrasts, rows[claim.key], claim.possible, claim.lost == "apart"
        )
        for claim in claims
    }
    tests = {claim.key: make_tests(claim, found[claim.key]) for claim in claims}
    for family in {claim.family for claim in claims}:
        mine = {claim.key: test for claim in claims if claim.family == family and (test := tests[claim.key])}
        values = {(key, "band"): test.band.p for key, test in mine.items()}
        values |= {
            (key, "equivalence"): test.equivalence
            for key, test in mine.items()
            if test.equivalence is not None
        }
        corrected = correct_by_holm(values)
        for key, test in mine.items():
            ps = corrected[key, "band"], corrected.get((key, "equivalence"), 1.0)
            tests[key] = replace(test, corrected=ps[0], corrected_equivalence=ps[1])
    return [
        replace(
            judge_claim(claim, found[claim.key], tests[claim.key], contrasts, rows[claim.key], scale),
            planned=claim.seeds or seeds,
        )
        for claim in claims
    ]


def select_seeds(summaries: pl.DataFrame, seeds: int | None) -> pl.DataFrame:
    return summaries.filter(pl.col("seed") < seeds) if seeds else summaries


def judge_claim(
    claim: Claim,
    measured: Measurement | None,
    tests: Tests | None,
    contrasts: Contrasts,
    summaries: pl.DataFrame,
    scale: str,
) -> Judgement:
    """Return a measured claim with its verdict and the numbers that explain it."""
    apart = claim.lost == "apart"
    theirs = measure_contrast(claim.contrast, contrasts, contrasts.source, "any", apart)
    theirs = theirs or measure_contrast(claim.contrast, contrasts, contrasts.source, "any", apart=False)
    said = theirs.interval.mean if claim.said is None and theirs is not None else claim.said
    causes = [
        (cause.text, measure_contrast(cause.contrast, contrasts, summaries, cause.possible, apart))
        for cause in claim.causes
        if cause.scale in (None, scale)
    ]
    known = tuple((text, number) for text, number in causes if number is not None)
    included = None
    if apart and not claim.exact and (measured is None or measured.lost):
        included = measure_contrast(claim.contrast, contrasts, summaries, claim.possible, apart=False)
    verdict, reason = decide_verdict(claim, measured, included, tests)
    return Judgement(claim, verdict, reason, measured, said, known, included, tests)


def decide_verdict(
    claim: Claim, measured: Measurement | None, included: Measurement | None, tests: Tests | None
) -> tuple[Verdict, str]:
    """Return the verdict, and why it is inconclusive."""
    if measured is None and included is not None:
        return (
            "inconclusive",
            f"no seed without lost runs: {included.lost} of {included.runs} did not converge",
        )
    if measured is None:
        return "not measured", ""
    if claim.constructed:
        return "by construction", ""
    if 0 < measured.seeds < FEWEST_SEEDS:
        return "inconclusive", f"{format_seeds(measured.seeds)}; at least {FEWEST_SEEDS} are needed"
    if tests is None:
        return ("replicated" if claim.band.contains(measured.interval.mean) else "not replicated"), ""
    if tests.corrected <= LEVEL:
        return ("replicated" if tests.band.is_inside else "not replicated"), ""
    if tests.corrected_equivalence <= LEVEL:
        return "equivalent", ""
    if tests.band.p <= LEVEL:
        return "inconclusive", (
            f"{format_p(tests.band.p)} alone, {format_p(tests.corrected)} corrected for its family"
        )
    needed = estimate_seeds(measured.values, claim.band)
    many = f"about {needed}" if needed else f"more than {MOST_SEEDS:,}"
    return "inconclusive", f"{format_seeds(measured.seeds)}; {many} would decide at this variation"


def make_tests(claim: Claim, measured: Measurement | None) -> Tests | None:
    """Return the tests of a claim, unless its verdict needs none."""
    if measured is None or claim.exact or claim.constructed or measured.seeds < FEWEST_SEEDS:
        return None
    band, rank = (compare_with_band(measured.values, claim.band, rank=rank) for rank in (False, True))
    equivalence = None if claim.margin is None else compute_equivalence(measured.values, claim.margin)
    return Tests(band, rank, equivalence)


def measure_contrast(
    contrast: str, contrasts: Contrasts, summaries: pl.DataFrame, possible: Range, apart: bool
) -> Measurement | None:
    """Return the contrast over the seeds that have all its cells, or None if no seed has."""
    found = contrasts.evaluate(contrast, summaries, apart)
    known = {seed: number for seed, number in found.numbers.items() if math.isfinite(number.value)}
    if not known:
        return None
    lost, runs = sum(found.runs.values()), len(found.runs)
    values = as_array([number.value for number in known.values()])
    if COMPUTED in known:
        number = known[COMPUTED].value
        return Measurement(values, Interval(number, number, number, 0, 0.0), 0, runs, lost)
    share = found.is_share and runs > 0
    effect = exact_share(lost, runs) if share else mean_interval(values).clip(*POSSIBLE[possible])
    has_lost = any(number.lost for number in known.values())
    return Measurement(values, effect, len(known), runs, lost, has_lost)


def format_seeds(seeds: int) -> str:
    return "computed, not run" if seeds == 0 else "1 seed" if seeds == 1 else f"{seeds} seeds"


def format_p(p: float) -> str:
    """Format a p-value with two digits."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}" if p < 0.1 else f"p = {p:.2f}"
