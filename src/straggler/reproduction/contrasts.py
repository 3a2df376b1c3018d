"""Contrasts: short expressions over a study's cells, by which its claims are measured.

A contrast such as `mean(value(table="II", split="dataset")) - mean(value(table="II", split="labels"))` gives
one number per seed:

- `FACT(label=…, …)` selects cells by their labels and reads a fact of their runs: `value`, which the table
  shows, or a column of the summaries such as `test_loss` or `seconds`. A list of values selects several.
- `+ - * /` and `>=` combine cells whose other labels agree, so that `value(split="dataset") -
  value(split="labels")` is one difference for each number of workers, delay, and so on.
- `mean`, `min`, `max`, `best` (largest known value), `mean_positive` (mean of the positive values, or 0) and
  `share` (percent of comparisons that hold) reduce the cells to one number. `min` and `max` of several
  arguments and `abs` work cell by cell.
- `share_lost(label=…)` is the percentage of runs that did not converge. `source(…)` evaluates its argument on
  the source's numbers.

A seed counts only if it has all selected cells. With `apart`, runs that did not converge are left out of the
reductions, and cells that rest on one drop out together with their partners. Text is parsed, never executed.
"""

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

import polars as pl

from straggler.config.registry import InputError

COMPUTED = -1  # takes the place of the seed in a number that needs no run
SHARE = "share_lost"
OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda this, that: this / that if that else math.nan,
    ast.GtE: operator.ge,
}


class Number(NamedTuple):
    """A number, and whether it rests on a run that did not converge."""

    value: float
    lost: bool = False


@dataclass(frozen=True)
class Quantity:
    """Numbers by seed, and within a seed by the values of the labels that vary."""

    labels: tuple[str, ...]
    numbers: Mapping[int, Mapping[tuple[Any, ...], Number]]


def average(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def reduce_all(combine: Callable[[list[float]], float]) -> Callable[[list[Number]], Number | None]:
    """Return a reduction of all numbers, which is unknown if one of them is."""

    def reduction(numbers: list[Number]) -> Number:
        values = [number.value for number in numbers]
        unknown = any(map(math.isnan, values))
        return Number(math.nan if unknown else combine(values), any(number.lost for number in numbers))

    return reduction


def reduce_positive(numbers: list[Number]) -> Number:
    positive = [number.value for number in numbers if number.value > 0]
    return Number(average(positive) if positive else 0.0, any(number.lost for number in numbers))


def reduce_best(numbers: list[Number]) -> Number | None:
    return max((number for number in numbers if math.isfinite(number.value)), default=None)


REDUCTIONS: dict[str, Callable[[list[Number]], Number | None]] = {
    "mean": reduce_all(average),
    "min": reduce_all(min),
    "max": reduce_all(max),
    "share": reduce_all(lambda values: 100 * average(values)),
    "best": reduce_best,
    "mean_positive": reduce_positive,
}


@dataclass(frozen=True)
class Contrasts:
    """Evaluates the contrasts of one study."""

    cells: pl.DataFrame  # the labels of every cell of the study
    source: pl.DataFrame  # the source's numbers in the form of summaries
    names: Mapping[str, str] = field(default_factory=dict)  # contrasts that others use by name
    defaults: Mapping[str, Any] = field(default_factory=dict)  # labels of selections that leave them out
    functions: Mapping[str, Callable[..., float]] = field(default_factory=dict)  # of numbers

    def evaluate(self, text: str, summaries: pl.DataFrame, apart: bool = False) -> "EvaluatedContrast":
        """Evaluate a contrast for each seed that has all it needs."""
        evaluation = EvaluatedContrast(self, summaries, apart)
        try:
            evaluation.run(text)
        except (SyntaxError, ValueError, TypeError) as error:
            raise InputError(f"Contrast {text!r}: {error}") from None
        return evaluation


@dataclass
class EvaluatedContrast:
    """A contrast on some summaries: its numbers by seed, and the runs that it rests on."""

    contrasts: Contrasts
    rows: pl.DataFrame
    apart: bool  # whether runs that did not converge are left out
    numbers: dict[int, Number] = field(default_factory=dict)  # by seed; COMPUTED if it needs no run
    runs: dict[tuple[Any, ...], bool] = field(default_factory=dict)  # by seed and id: whether it was lost
    seeds: set[int] | None = None  # that have all selected cells
    is_share: bool = False  # whether the contrast is the share of runs that did not converge

    def run(self, text: str) -> None:
        node = ast.parse(text.strip(), mode="eval").body
        found = self._visit(node)
        if found.labels:
            varying = ", ".join(found.labels)
            raise ValueError(f"it has several values ({varying} vary); reduce them, for example by mean(…)")
        self.is_share = isinstance(node, ast.Call) and ast.unparse(node.func) == SHARE
        self.numbers = {
            seed: cells[()] for seed, cells in found.numbers.items() if not (self.apart and cells[()].lost)
        }
        self.runs = {run: lost for run, lost in self.runs.items() if run[0] in (self.seeds or ())}

    def _visit(self, node: ast.expr) -> Quantity:
        names = self.contrasts.names
        match node:
            case ast.Constant(value=int() | float() as value):
                return make_constant(value)
            case ast.Name(id=name) if name in names:
                return self._visit(ast.parse(names[name].strip(), mode="eval").body)
            case ast.Name(id=name):
                raise ValueError(f"unknown name {name!r}")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return combine_quantities(operator.sub, make_constant(0), self._visit(operand))
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
                return combine_quantities(OPERATORS[type(sign)], self._visit(left), self._visit(right))
            case ast.Compare(left=left, ops=[ast.GtE()], comparators=[right]):
                return combine_quantities(operator.ge, self._visit(left), self._visit(right))
            case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
                return self._select(name, {str(each.arg): ast.literal_eval(each.value) for each in keywords})
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self._call(name, arguments)
        raise ValueError(f"{ast.unparse(node)!r} is not part of the contrast language")

    def _call(self, name: str, arguments: list[ast.expr]) -> Quantity:
        functions = self.contrasts.functions
        if name == "source":
            found = EvaluatedContrast(self.contrasts, self.contrasts.source, self.apart)._visit(arguments[0])
            return Quantity(found.labels, dict(zip([COMPUTED], found.numbers.values(), strict=False)))
        if name in functions:
            return make_constant(functions[name](*map(ast.literal_eval, arguments)))
        values = [self._visit(argument) for argument in arguments]
        if name == "abs":
            return combine_quantities(lambda value, _: abs(value), values[0], make_constant(0))
        if name in ("min", "max") and len(values) > 1:
            choose = min if name == "min" else max
            return reduce(lambda this, that: combine_quantities(choose, this, that), values)
        if name not in REDUCTIONS or len(values) != 1:
            known = ", ".join(["abs", "source", SHARE, *REDUCTIONS, *functions])
            raise ValueError(f"{name}(…) with {len(values)} arguments is unknown; there are {known}")
        kept = {
            seed: [number for number in cells.values() if not (self.apart and number.lost)]
            for seed, cells in values[0].numbers.items()
        }
        reduced = {seed: REDUCTIONS[name](numbers) for seed, numbers in kept.items() if numbers}
        return Quantity((), {seed: {(): number} for seed, number in reduced.items() if number is not None})

    def _select(self, fact: str, wanted: Mapping[str, Any]) -> Quantity:
        """Read a fact of the cells with these labels, for each seed that has them all."""
        rows, labels, where = self.rows, self.contrasts.cells, {**self.contrasts.defaults, **wanted}
        if missing := [label for label in where if label not in labels.columns]:
            raise ValueError(f"unknown label {missing[0]!r}; the labels are {', '.join(labels.columns)}")
        chosen = [
            pl.col(label).is_in(value) if isinstance(value, list) else pl.col(label) == value
            for label, value in where.items()
        ]
        cells = labels.filter(chosen)
        if cells.is_empty():
            raise ValueError(f"no cell of the study has the labels {where}")
        share = fact == SHARE
        fact = "converged" if share else fact
        varying = tuple(label for label in cells.columns if cells[label].n_unique() > 1)
        found: dict[int, dict[tuple[Any, ...], Number]] = {}
        runs: dict[tuple[Any, ...], bool] = {}
        if {fact, *where} <= set(rows.columns):
            may_be_lost = "converged" in rows.columns and (share or rows.schema[fact].is_float())
            for row in rows.filter(chosen).iter_rows(named=True):
                value = math.nan if row[fact] is None else float(row[fact])
                lost = may_be_lost and not row["converged"]
                number = Number(value, lost and not share)
                found.setdefault(row["seed"], {})[tuple(row[label] for label in varying)] = number
                place = tuple(row.get(label) for label in labels.columns)
                runs[row["seed"], row.get("id") or place] = lost  # cells may share a run
        complete = {seed: numbers for seed, numbers in found.items() if len(numbers) == len(cells)}
        self.seeds = set(complete) if self.seeds is None else self.seeds & set(complete)
        self.runs |= runs
        if not share:
            return Quantity(varying, complete)
        lost_ = {seed: 100 * (1 - average(n.value for n in all_.values())) for seed, all_ in complete.items()}
        return Quantity((), {seed: {(): Number(value)} for seed, value in lost_.items()})


def make_constant(value: float) -> Quantity:
    return Quantity((), {COMPUTED: {(): Number(float(value))}})


def combine_quantities(
    operation: Callable[[float, float], float], left: Quantity, right: Quantity
) -> Quantity:
    """Combine two quantities cell by cell within each seed; labels that one of them lacks are repeated."""
    if COMPUTED in left.numbers and COMPUTED not in right.numbers:
        left = Quantity(left.labels, dict.fromkeys(right.numbers, left.numbers[COMPUTED]))
    elif COMPUTED in right.numbers and COMPUTED not in left.numbers:
        right = Quantity(right.labels, dict.fromkeys(left.numbers, right.numbers[COMPUTED]))
    if len(left.labels) < len(right.labels):
        return combine_quantities(lambda this, that: operation(that, this), right, left)
    places = [left.labels.index(label) for label in right.labels if label in left.labels]
    found: dict[int, dict[tuple[Any, ...], Number]] = {}
    for seed in left.numbers.keys() & right.numbers.keys():
        partners = right.numbers[seed]
        keys = {key: tuple(key[place] for place in places) for key in left.numbers[seed]}
        if set(keys.values()) != set(partners):
            raise ValueError(
                "the cells of its two sides have different labels, so they cannot be paired; select the same "
                "labels on both sides, or reduce them, for example by mean(…)"
            )
        pairs = {key: (number, partners[keys[key]]) for key, number in left.numbers[seed].items()}
        found[seed] = {key: combine_numbers(operation, *pair) for key, pair in pairs.items()}
    return Quantity(left.labels, dict(sorted(found.items())))


def combine_numbers(operation: Callable[[float, float], float], this: Number, that: Number) -> Number:
    unknown = math.isnan(this.value) or math.isnan(that.value)
    return Number(math.nan if unknown else float(operation(this.value, that.value)), this.lost or that.lost)
