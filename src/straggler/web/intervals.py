"""How sure a number is: 95 % intervals over seeds, or of a share over the samples it was counted on."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from scipy.stats import t

__all__ = ["over_seeds", "share_interval"]

LEVEL = 0.95
NORMAL = 1.959964  # standard deviations on either side


def over_seeds(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and half the width of its interval (Student's t); one value has none."""
    if len(values) < 2:
        return fmean(values), None
    quantile = float(t.ppf((1 + LEVEL) / 2, len(values) - 1))
    return fmean(values), quantile * stdev(values) / math.sqrt(len(values))


def share_interval(percent: float, samples: int) -> tuple[float, float]:
    """Wilson's interval of a percentage that was counted on so many samples."""
    share, z2 = percent / 100, NORMAL * NORMAL
    middle = share + z2 / (2 * samples)
    width = NORMAL * math.sqrt(share * (1 - share) / samples + z2 / (4 * samples * samples))
    scale = 100 / (1 + z2 / samples)
    return max(0.0, scale * (middle - width)), min(100.0, scale * (middle + width))
