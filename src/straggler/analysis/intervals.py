"""A mean and how sure one is of it."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from straggler.analysis.tables import number

__all__ = ["interval", "plus_minus"]


def interval(values: ArrayLike) -> tuple[float, float]:
    """The mean and half of its 95 % interval (Student's t); nan where one value says nothing of a spread."""
    found = np.asarray(values, dtype=float)
    mean = float(found.mean()) if found.size else float("nan")
    if found.size < 2:
        return mean, float("nan")
    return mean, float(stdtrit(found.size - 1, 0.975) * found.std(ddof=1) / np.sqrt(found.size))


def plus_minus(values: ArrayLike, digits: int = 2) -> str:
    """`mean ± half of the interval`; a mean alone if there is one value."""
    mean, half = interval(values)
    return number(mean, digits) + ("" if np.isnan(half) else f" ± {number(half, digits)}")
