"""How sure a number is: 95 % intervals of a mean over seeds, and of a share over the samples counted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit

from straggler.analysis.tables import format_number

Array = np.ndarray[Any, Any]
QUANTILE = 0.975  # 2.5 % on either side
NORMAL = float(ndtri(QUANTILE))  # standard deviations on either side


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and where it may lie, at 95 %; open where one seed cannot tell."""

    mean: float
    low: float
    high: float
    seeds: int
    both: tuple[float, float] | None = None  # where two seeds are all: the interval is 13 times as wide

    @property
    def half(self) -> float:
        """Half of its width."""
        return self.high - self.mean

    @property
    def bar(self) -> float:
        """As long as a figure draws it: nothing where nothing is known, and of two seeds to either."""
        if self.both:
            return (self.both[1] - self.both[0]) / 2
        return self.half if math.isfinite(self.half) else 0.0

    def within(self, least: float, most: float) -> "Interval":
        """The same without what cannot be."""
        if math.isinf(self.low):
            return self
        low, high = min(self.mean, max(self.low, least)), max(self.mean, min(self.high, most))
        return replace(self, low=low, high=high)

    def __str__(self) -> str:
        """With as many digits as it takes to tell its ends apart."""
        if math.isinf(self.low) or self.low == self.high:
            return f"{self.mean:.2f}"
        if self.both:
            return f"{self.mean:.2f} ({self.both[0]:.2f} and {self.both[1]:.2f})"
        digits = next((n for n in (2, 3) if f"{self.low:.{n}f}" != f"{self.high:.{n}f}"), 4)
        return f"{self.mean:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


@dataclass(frozen=True)
class Spread:
    """How much one seed's number varies, known from elsewhere: a standard deviation, and how well known."""

    deviation: float
    degrees: float  # of freedom


def mean_interval(values: ArrayLike, spread: Spread | None = None, exact: bool = False) -> Interval:
    """Student's t over seeds; with one seed, the spread that is known from elsewhere, or nothing is known."""
    found = np.asarray(values, dtype=float)
    mean, count = float(found.mean()) if found.size else math.nan, found.size
    if exact:
        half = 0.0
    elif count > 1:
        half = float(stdtrit(count - 1, QUANTILE) * found.std(ddof=1) / math.sqrt(count))
    else:
        half = math.inf if spread is None else float(stdtrit(spread.degrees, QUANTILE)) * spread.deviation
    both = (float(found.min()), float(found.max())) if count == 2 and not exact else None
    return Interval(mean, mean - half, mean + half, count, both)


def error_bars(found: Sequence[Interval], highest: float = math.inf) -> tuple[Array, Array]:
    """Return how far error bars reach below and above the means, within [0, highest]; none for one seed."""
    reach = np.array([one.bar if one.seeds > 1 else math.nan for one in found])
    means = np.array([one.mean for one in found])
    return np.minimum(reach, means), np.minimum(reach, highest - means)


def format_interval(values: ArrayLike, digits: int = 2) -> str:
    """`mean ± half of the interval`; of two values both, `mean (a, b)`; one alone."""
    found = mean_interval(values)
    spread = f" ± {format_number(found.half, digits)}" if found.seeds > 1 else ""
    if found.both:
        spread = f" ({', '.join(format_number(value, digits) for value in found.both)})"
    return format_number(found.mean, digits) + spread


def share_interval(percent: float, samples: int) -> tuple[float, float]:
    """Wilson's interval of a percentage that was counted on so many samples."""
    share, z2 = percent / 100, NORMAL * NORMAL
    middle = share + z2 / (2 * samples)
    width = NORMAL * math.sqrt(share * (1 - share) / samples + z2 / (4 * samples * samples))
    scale = 100 / (1 + z2 / samples)
    return max(0.0, scale * (middle - width)), min(100.0, scale * (middle + width))
