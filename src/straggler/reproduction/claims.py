"""Claims: what a source concluded, read from claims.toml, and the verdict that follows from the runs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError

from straggler.analysis.intervals import Interval, Spread, mean_interval
from straggler.config.registry import InputError, explain_validation_error
from straggler.reproduction.contrasts import COMPUTED, Contrasts
from straggler.running.untrusted_files import parse_toml

Verdict = Literal[
    "replicated", "not replicated", "inconclusive", "by construction", "not measured", "rehearsed"
]
Range = Literal["points", "percent", "ratio", "any"]
POSSIBLE: dict[Range, tuple[float, float]] = {  # values beyond which no interval goes
    "points": (-100.0, 100.0),  # a difference of percentages
    "percent": (0.0, 100.0),
    "ratio": (0.0, math.inf),
    "any": (-math.inf, math.inf),
}


class Evidence(BaseModel):
    """A number that helps to explain a verdict."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    text: str
    contrast: str
    possible: Range = "points"
    scale: Literal["default", "paper"] | None = None  # only at this scale


class Claim(BaseModel):
    """A statement of the source. It is replicated if its contrast lies between `least` and `most`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    key: str
    statement: str
    where: str  # in the source
    measured: str  # the contrast in words
    contrast: str
    least: float = -math.inf
    most: float = math.inf
    said: float | None = None  # by the source, if its published numbers do not give it
    unit: str = "points"
    spread: Spread | None = None  # between single runs, from repeats of the source
    exact: bool = False  # about these very runs, or computed: it needs no interval
    constructed: bool = False  # decided by the design of the study: shown, not judged
    possible: Range = "points"
    causes: tuple[Evidence, ...] = ()
    comment: str = ""

    @property
    def bounds(self) -> str:
        """The values for which the claim counts as replicated, in words."""
        unit = self.unit_suffix
        if math.isinf(self.most):
            return f"at least {self.least:g}{unit}"
        if math.isinf(self.least):
            return f"at most {self.most:g}{unit}"
        return f"from {self.least:g} to {self.most:g}{unit}"

    @property
    def unit_suffix(self) -> str:
        return "" if self.unit == "points" else f" {self.unit}"


class ClaimFile(BaseModel):
    """The content of claims.toml."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    defaults: dict[str, Any] = {}  # labels of every selection that does not mention them
    names: dict[str, str] = {}  # contrasts that others use by name
    claim: tuple[Claim, ...] = ()


def read_claims(path: Path, words: Mapping[str, str]) -> ClaimFile:
    """Read claims.toml, with `{word}` replaced in all its texts."""
    try:
        text = path.read_text()
        for word, value in words.items():
            text = text.replace(f"{{{word}}}", value)
        return ClaimFile(**parse_toml(text))
    except FileNotFoundError:
        return ClaimFile()
    except ValidationError as error:
        raise InputError(f"{path}: {explain_validation_error(error, Claim.model_fields)}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None


@dataclass(frozen=True)
class Measurement:
    """A measured contrast, and whether runs that did not converge are among its runs."""

    interval: Interval
    with_lost: bool

    def format(self, unit: str = "") -> str:
        return f"{self.interval}{unit}{' (NC included)' if self.with_lost else ''}"


@dataclass(frozen=True)
class Judgement:
    """A claim, its verdict, and the numbers that the verdict rests on."""

    claim: Claim
    verdict: Verdict
    measured: Measurement | None
    said: float | None
    causes: tuple[tuple[str, Measurement], ...] = ()

    @property
    def comment(self) -> str:
        return self.claim.comment if self.measured else ""


def judge_claim(
    claim: Claim, contrasts: Contrasts, summaries: pl.DataFrame, scale: str = "default"
) -> Judgement:
    """Measure a claim. It is replicated if its whole interval is within the bounds."""
    ours = measure_contrast(claim.contrast, contrasts, summaries, claim.possible, claim.spread, claim.exact)
    theirs = measure_contrast(claim.contrast, contrasts, contrasts.source, "any")
    said = theirs.interval.mean if claim.said is None and theirs is not None else claim.said
    causes = [
        (cause.text, measure_contrast(cause.contrast, contrasts, summaries, cause.possible))
        for cause in claim.causes
        if cause.scale in (None, scale)
    ]
    known = tuple((text, number) for text, number in causes if number is not None)
    verdict = decide_verdict(claim, ours.interval if ours else None)
    return Judgement(claim, verdict, ours, said, known)


def decide_verdict(claim: Claim, effect: Interval | None) -> Verdict:
    if effect is None:
        return "not measured"
    if claim.constructed:
        return "by construction"
    if claim.least <= effect.low and effect.high <= claim.most:
        return "replicated"
    return "not replicated" if effect.high < claim.least or effect.low > claim.most else "inconclusive"


def measure_contrast(
    contrast: str,
    contrasts: Contrasts,
    summaries: pl.DataFrame,
    possible: Range,
    spread: Spread | None = None,
    exact: bool = False,
) -> Measurement | None:
    """Return the contrast over the seeds that have all its cells, or None if no seed has."""
    found = contrasts.evaluate(contrast, summaries)
    known = {seed: number for seed, number in found.items() if math.isfinite(number.value)}
    if not known:
        return None
    values = [number.value for number in known.values()]
    effect = mean_interval(values, spread, exact).clip(*POSSIBLE[possible])
    effect = replace(effect, seeds=0) if COMPUTED in known else effect
    return Measurement(effect, with_lost=any(number.lost for number in known.values()))
