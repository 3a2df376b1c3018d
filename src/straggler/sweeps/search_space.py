"""Search spaces: the values of a setting that tuning may try, written as `log(1e-4, 1)` or as a list."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from straggler.config.registry import InputError, format_value, parse_call, suggest_name

Side = Literal["lower", "upper"]
RANGES = ("log", "uniform", "int")
FORMS = "'log(1e-4, 1)', 'uniform(0, 0.9)', 'int(1, 8)', or a list such as [0, 0.5, 0.9]"
EDGE = 0.1  # the outer share of a range that counts as its edge
GROWTH = 0.25  # of the width by which a range is widened
DIGITS = 3  # significant digits of a suggested number, so that settings stay readable
LIMITS = {"momentum": 1.0}  # that a wider space approaches, and does not reach


@dataclass(frozen=True)
class Range:
    """All numbers between two bounds, evenly distributed on a linear or logarithmic scale."""

    kind: Literal["log", "uniform", "int"]
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.kind}({self.low:.6g}, {self.high:.6g})"

    @property
    def examples(self) -> list[Any]:
        """Values whose validity stands for that of all others."""
        return [self.low, self.high]

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers."""
        return True

    @property
    def is_logarithmic(self) -> bool:
        """Whether figures have a logarithmic axis."""
        return self.kind == "log"

    def contains(self, value: Any) -> bool:
        """Return whether a value is in the range."""
        return isinstance(value, int | float) and self.low <= value <= self.high

    def suggest(self, trial: Any, key: str) -> Any:
        """Return the value that an Optuna trial suggests, rounded."""
        if self.kind == "int":
            return trial.suggest_int(key, int(self.low), int(self.high))
        value = trial.suggest_float(key, self.low, self.high, log=self.kind == "log")
        return min(max(round_value(value), self.low), self.high)

    def encode(self, value: Any) -> Any:
        """Return a value as Optuna stores it."""
        return value

    def find_edge(self, value: float) -> Side | None:
        """Return the edge that a value lies on."""
        low, high, place = (self._scale(each) for each in (self.low, self.high, value))
        share = (place - low) / (high - low)
        return "lower" if share <= EDGE else "upper" if share >= 1 - EDGE else None

    def widen(self, side: Side, limit: float | None) -> tuple["Range", "Range"]:
        """Return a wider range, and the part of it that is new."""
        low, high = self._scale(self.low), self._scale(self.high)
        step = GROWTH * (high - low)
        edge = self._unscale(high + step if side == "upper" else low - step)
        edge = max(edge, self.high + 1) if self.kind == "int" and side == "upper" else edge
        edge = min(edge, self.low - 1) if self.kind == "int" and side == "lower" else edge
        if side == "lower":
            return replace(self, low=edge), replace(self, low=edge, high=self.low)
        if limit is not None and edge >= limit:
            edge = (self.high + limit) / 2
        return replace(self, high=edge), replace(self, low=self.high, high=edge)

    def _scale(self, value: float) -> float:
        return math.log(value) if self.kind == "log" else value

    def _unscale(self, value: float) -> float:
        value = math.exp(value) if self.kind == "log" else value
        return round(value) if self.kind == "int" else round_value(value)


@dataclass(frozen=True)
class Choices:
    """A list of values; numbers are in increasing order."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"[{', '.join(f'{v:g}' if isinstance(v, float) else format_value(v) for v in self.values)}]"

    @property
    def examples(self) -> list[Any]:
        """All values."""
        return list(self.values)

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers, so that they have an order."""
        return all(is_number(value) for value in self.values)

    @property
    def is_logarithmic(self) -> bool:
        """Whether figures have a logarithmic axis: the values span more than a factor of ten."""
        return self.is_numeric and 0 < 10 * self.values[0] < self.values[-1]

    def contains(self, value: Any) -> bool:
        """Return whether a value is in the list."""
        return value in self.values

    def suggest(self, trial: Any, key: str) -> Any:
        """Return the value that an Optuna trial suggests; numbers are ordered, other values are not."""
        last = len(self.values) - 1
        number = (
            trial.suggest_int(key, 0, last)
            if self.is_numeric
            else trial.suggest_categorical(key, range(last + 1))
        )
        return self.values[number]

    def encode(self, value: Any) -> Any:
        """Return a value as Optuna stores it: its position in the list."""
        return self.values.index(value)

    def find_edge(self, value: Any) -> Side | None:
        """Return the edge that a value lies on; values without an order have none."""
        if not self.is_numeric or len(self.values) < 2:
            return None
        return {self.values[0]: "lower", self.values[-1]: "upper"}.get(value)  # type: ignore[return-value]

    def widen(self, side: Side, limit: float | None) -> tuple["Choices", "Choices"]:
        """Return the list with one more value, and a list of this value."""
        first, second = self.values[:2] if side == "lower" else self.values[:-3:-1]
        new = first * first / second if self.values[0] > 0 else 2 * first - second
        if limit is not None and side == "upper" and new >= limit:
            new = (first + limit) / 2
        whole = all(isinstance(value, int) for value in self.values)
        new = (math.floor if side == "lower" else math.ceil)(new) if whole else round_value(new)
        wider = (new, *self.values) if side == "lower" else (*self.values, new)
        return Choices(wider), Choices((new,))


Values: TypeAlias = Range | Choices
Space: TypeAlias = Mapping[str, Values]


def is_number(value: Any) -> bool:
    """Return whether a value is a number, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def round_value(value: float) -> float:
    """Round to a few significant digits."""
    return float(f"{value:.{DIGITS}g}")


def parse_values(key: str, value: Any) -> Values:
    """Return the values that a text or a list stands for."""
    if isinstance(value, str) and value.strip().startswith("["):
        value = parse_call(f"list(values={value})")[2]["values"]
    if isinstance(value, Range | Choices):
        return value
    if isinstance(value, str):
        return parse_range(key, value)
    if not isinstance(value, Sequence) or not value:
        raise InputError(f"search {key}={value!r}: write {FORMS}")
    different = [each for number, each in enumerate(value) if each not in value[:number]]
    if len(different) < len(value):
        raise InputError(f"search {key}={value}: a value appears twice. List different values")
    return Choices(tuple(sorted(value) if all(map(is_number, value)) else value))


def parse_range(key: str, text: str) -> Values:
    """Parse `log(1e-4, 1)` into a range, and `log(1e-4, 1, points=5)` into five evenly spaced values."""
    try:
        kind, bounds, named = parse_call(text)
    except ValueError:
        kind, bounds, named = "", [], {}
    points = named.pop("points", bounds.pop(2) if len(bounds) == 3 else None)
    is_complete = len(bounds) == 2 and all(map(is_number, bounds)) and not named
    if kind not in RANGES or not is_complete:
        hint = f" {suggest_name(kind, RANGES)}." if kind and kind not in RANGES else ""
        raise InputError(f"search {key}={text!r}: write {FORMS}.{hint}")
    low, high = bounds
    if not low < high or not math.isfinite(high - low):
        raise InputError(f"search {key}={text!r}: the first bound must be smaller than the second")
    if kind == "log" and low <= 0:
        raise InputError(f"search {key}={text!r}: bounds of log must be above 0. Use uniform({low:g}, …)")
    if kind == "int" and not all(isinstance(bound, int) for bound in bounds):
        raise InputError(f"search {key}={text!r}: bounds of int must be whole numbers")
    if points is None:
        return Range(kind, low, high)  # type: ignore[arg-type]
    if not isinstance(points, int) or points < 2:
        raise InputError(f"search {key}={text!r}: points must be a whole number of at least 2, got {points}")
    shares = [number / (points - 1) for number in range(points)]
    if kind == "log":
        found = [round_value(low * (high / low) ** share) for share in shares]
    else:
        found = [low + share * (high - low) for share in shares]
        found = [round(value) if kind == "int" else round_value(value) for value in found]
    return Choices(tuple(dict.fromkeys(found)))


def parse_search(pairs: Sequence[str]) -> dict[str, Values]:
    """Parse texts such as `lr=log(1e-4, 1)` of the command line."""
    space: dict[str, Values] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise InputError(f"--search {pair!r} must have the form KEY=VALUES, such as 'lr=log(1e-4, 1)'")
        if key in space:
            raise InputError(f"--search {key} appears twice. Pass it once")
        try:
            space[key] = parse_values(key, text)
        except InputError as error:
            raise InputError(f"--{error}") from None
        except ValueError as error:
            raise InputError(f"--search {pair!r}: {error}") from None
    return space


def count_combinations(space: Space) -> int | None:
    """Return the number of combinations; None if a range makes it infinite."""
    if any(isinstance(values, Range) for values in space.values()):
        return None
    return math.prod(len(values.examples) for values in space.values())


def list_combinations(space: Space) -> list[dict[str, Any]]:
    """Return every combination of the listed values."""
    listed = [values.examples for values in space.values()]
    return [dict(zip(space, combination, strict=True)) for combination in itertools.product(*listed)]
