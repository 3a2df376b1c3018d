"""95 % confidence intervals: of a mean over seeds, and of a percentage counted on a sample."""

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
FEWEST_SEEDS = 3  # for which an interval is shown: with two it is 13 standard errors wide on either side


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its 95 % confidence interval, which is infinite for a single seed."""

    mean: float
    low: float
    high: float
    seeds: int
    half: float  # half of its width; infinite if the interval is not symmetric

    @property
    def is_shown(self) -> bool:
        """Whether text and figures show the interval: from three seeds on."""
        return 0 < self.half < math.inf and self.seeds >= FEWEST_SEEDS

    def clip(self, least: float, most: float) -> "Interval":
        """Return the interval without impossible values, such as an accuracy below 0."""
        if math.isinf(self.low) or (least <= self.low and self.high <= most):
            return self
        low, high = min(self.mean, max(self.low, least)), max(self.mean, min(self.high, most))
        return replace(self, low=low, high=high, half=math.inf)

    def __str__(self) -> str:
        """Format as `mean ± half-width`, or as `mean [low, high]` if the interval is not symmetric."""
        if math.isinf(self.half) and math.isfinite(self.low) and self.seeds >= FEWEST_SEEDS:
            return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"
        if not self.is_shown:
            return f"{self.mean:.2f}"
        digits = next((count for count in (2, 3) if float(f"{self.half:.{count}f}")), 4)
        return f"{self.mean:.{digits}f} ± {self.half:.{digits}f}"


def mean_interval(values: ArrayLike) -> Interval:
    """Return the mean with Student's interval, which is infinite for one seed."""
    found = np.asarray(values, dtype=float)
    mean, count = float(found.mean()) if found.size else math.nan, found.size
    half = math.inf
    if count > 1:
        half = float(stdtrit(count - 1, QUANTILE) * found.std(ddof=1) / math.sqrt(count))
    return Interval(mean, mean - half, mean + half, count, half)


def error_bars(found: Sequence[Interval], highest: float = math.inf) -> tuple[Array, Array]:
    """Return how far error bars reach below and above the means, within [0, highest]; NaN if not shown."""
    reach = np.array([one.half if one.seeds >= FEWEST_SEEDS else math.nan for one in found])
    means = np.array([one.mean for one in found])
    return np.minimum(reach, means), np.minimum(reach, highest - means)


def format_interval(values: ArrayLike, digits: int = 2) -> str:
    """Format values as `mean ± half-width`, or as their mean if there are fewer than three."""
    found = mean_interval(values)
    spread = f" ± {format_number(found.half, digits)}" if found.seeds >= FEWEST_SEEDS else ""
    return format_number(found.mean, digits) + spread


def share_interval(percent: float, samples: int) -> tuple[float, float]:
    """Return Wilson's interval of a percentage that was counted on so many samples."""
    share, z2 = percent / 100, NORMAL * NORMAL
    middle = share + z2 / (2 * samples)
    width = NORMAL * math.sqrt(share * (1 - share) / samples + z2 / (4 * samples * samples))
    scale = 100 / (1 + z2 / samples)
    return max(0.0, scale * (middle - width)), min(100.0, scale * (middle + width))
