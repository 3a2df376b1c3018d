"""The claims of a study as text: tables, explanations, counts, and claims.json."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from straggler.analysis.study_figures import Effect
from straggler.reproduction.verdicts import Judgement, Verdict, format_p

COLUMNS = ("claim", "verdict", "ours", "replicated if", "source", "seeds", "p (Holm)", "rank test", "lost")


def build_claim_rows(judgements: Iterable[Judgement]) -> tuple[list[str], list[list[str]]]:
    """Return the heads and rows of a table with one claim per row."""
    rows = []
    for one in judgements:
        unit, measured = one.claim.unit_suffix, one.measured
        ours = "–" if measured is None else measured.format(unit)
        theirs = "–" if one.said is None else f"{one.said:.2f}{unit}"
        p = "–" if one.tests is None else format_p(one.tests.corrected).removeprefix("p = ")
        lost = "–" if measured is None or not measured.runs else f"{measured.lost} of {measured.runs}"
        place = [one.claim.statement, one.verdict, ours, one.claim.bounds, theirs, one.seeds]
        rows.append([*place, p.removeprefix("p "), one.rank_text, lost])
    return list(COLUMNS), rows


def count_verdicts(judgements: Sequence[Judgement]) -> str:
    """Return how many claims have which verdict, as text."""
    counts = [(sum(one.verdict == verdict for one in judgements), verdict) for verdict in get_args(Verdict)]
    many = "1 claim" if len(judgements) == 1 else f"{len(judgements)} claims"
    return f"{many}: " + ", ".join(f"{count} {verdict}" for count, verdict in counts if count)


def list_undecided(judgements: Iterable[Judgement]) -> tuple[list[str], list[list[str]]]:
    """Return the inconclusive claims, each with the reason."""
    undecided = [one for one in judgements if one.verdict == "inconclusive"]
    return ["inconclusive", "why"], [[one.claim.key, one.reason] for one in undecided]


def encode_judgement(one: Judgement, protocol: str) -> dict[str, Any]:
    """Return a claim for claims.json, without numbers that are unknown or infinite."""
    claim, measured, tests = one.claim, one.measured, one.tests
    numbers: dict[str, float] = {"least": claim.least, "most": claim.most}
    if measured is not None:
        effect = measured.interval
        numbers |= {"effect": effect.mean, "low": effect.low, "high": effect.high, "seeds": measured.seeds}
        numbers |= {"runs": measured.runs, "lost": measured.lost}
    if tests is not None:
        numbers |= {"p": tests.band.p, "p_holm": tests.corrected, "p_rank": tests.rank.p}
        numbers |= {} if tests.equivalence is None else {"p_equivalent": tests.equivalence}
    texts = {
        "statement": claim.statement,
        "source": claim.where,
        "verdict": one.verdict,
        "cause": one.comment,
    }
    texts |= {"key": claim.key, "family": claim.family, "reason": one.reason, "protocol_sha256": protocol}
    known = {key: float(f"{value:.6g}") for key, value in numbers.items() if math.isfinite(value)}
    return {key: text for key, text in texts.items() if text} | known


def make_effects(judgements: Iterable[Judgement]) -> list[Effect]:
    """Return the measured claims for a forest plot."""
    effects = []
    for one in judgements:
        if (measured := one.measured) is not None:
            interval, claim = measured.interval, one.claim
            low, high = (
                end if math.isfinite(end) else interval.mean for end in (interval.low, interval.high)
            )
            place = claim.name, claim.unit, one.verdict, interval.mean, low, high
            effects.append(Effect(*place, claim.least, claim.most, one.said))
    return effects


def explain_claims(judgements: Iterable[Judgement]) -> str:
    """Return what was measured for each claim, the comment, and the numbers that explain the verdict."""
    return "\n\n".join("\n".join([explain_claim(one), *list_causes(one)]) for one in judgements)


def explain_claim(one: Judgement) -> str:
    claim, reason = one.claim, f" ({one.reason})" if one.reason else ""
    place = f"{claim.where}. Measured: {claim.measured}."
    return f"**{claim.statement}** *{one.verdict}*{reason}. {place} {one.comment}".rstrip()


def list_causes(one: Judgement) -> list[str]:
    """Return the runs that did not converge and the evidence, as items of a list."""
    items = []
    if one.included is not None and (share := one.included.lost_share):
        items.append(
            f"- runs that did not converge: {one.included.lost} of {one.included.runs}, {share} %; counted "
            f"with the accuracy they have, the number is {one.included.interval}{one.claim.unit_suffix}"
        )
    equivalence = None if one.tests is None else one.tests.equivalence
    if equivalence is not None and one.claim.margin is not None:
        unit = one.claim.unit_suffix or " points"
        text = f"an effect within ± {one.claim.margin:g}{unit} counts as none: {format_p(equivalence)}"
        items.append(f"- {text} (two one-sided tests)")
    return [*items, *(f"- {text}: {number.format()}" for text, number in one.causes)]
