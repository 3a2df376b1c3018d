"""How sure a number is: 95 % intervals of a mean over seeds, and of a share over the samples counted."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit

from straggler.analysis.tables import number

__all__ = ["Interval", "Spread", "interval", "plus_minus", "share_interval"]

QUANTILE = 0.975  # 2.5 % on either side
NORMAL = float(ndtri(QUANTILE))  # standard deviations on either side


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and where it may lie, at 95 %; open where one seed cannot tell."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def half(self) -> float:
        """Half of its width."""
        return self.high - self.mean

    @property
    def bar(self) -> float:
        """As long as a figure draws it: nothing where nothing is known."""
        return self.half if math.isfinite(self.half) else 0.0

    def __str__(self) -> str:
        if math.isinf(self.low) or self.low == self.high:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Spread:
    """How much one seed's number varies, known from elsewhere: a standard deviation, and how well known."""

    deviation: float
    degrees: float  # of freedom


def interval(values: ArrayLike, spread: Spread | None = None, exact: bool = False) -> Interval:
    """Student's t over seeds; with one seed, the spread that is known from elsewhere, or nothing is known."""
    found = np.asarray(values, dtype=float)
    mean, count = float(found.mean()) if found.size else math.nan, found.size
    if exact:
        half = 0.0
    elif count > 1:
        half = float(stdtrit(count - 1, QUANTILE) * found.std(ddof=1) / math.sqrt(count))
    else:
        half = math.inf if spread is None else float(stdtrit(spread.degrees, QUANTILE)) * spread.deviation
    return Interval(mean, mean - half, mean + half, count)


def plus_minus(values: ArrayLike, digits: int = 2) -> str:
    """`mean ± half of the interval`; a mean alone if there is one value."""
    found = interval(values)
    return number(found.mean, digits) + (f" ± {number(found.half, digits)}" if found.seeds > 1 else "")


def share_interval(percent: float, samples: int) -> tuple[float, float]:
    """Wilson's interval of a percentage that was counted on so many samples."""
    share, z2 = percent / 100, NORMAL * NORMAL
    middle = share + z2 / (2 * samples)
    width = NORMAL * math.sqrt(share * (1 - share) / samples + z2 / (4 * samples * samples))
    scale = 100 / (1 + z2 / samples)
    return max(0.0, scale * (middle - width)), min(100.0, scale * (middle + width))
