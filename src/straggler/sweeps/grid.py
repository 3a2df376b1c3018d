"""A sweep's cells: experiments with labels, each once per seed; written in Python or as a TOML file."""

import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from straggler.config.registry import InputError, suggest_name
from straggler.experiment import Experiment
from straggler.timing.clusters import Repetition

Label = str | int | float | None


@dataclass(frozen=True)
class Cell:
    """One experiment without its seed: where it stands in a table, and what the source found there."""

    labels: Mapping[str, Label]
    settings: Mapping[str, Any]
    source: float | None = None
    measurements: tuple[str, ...] = ()  # beside the summary: names in sweeps.results.MEASUREMENTS
    seeds: int | None = None  # so many instead, where a run is dear or cheap
    metric: str = "test_accuracy"  # what the source's number is one of
    source_metrics: Mapping[str, float] = field(
        default_factory=dict
    )  # what else the source says of it, by fact

    @property
    def name(self) -> str:
        """Where it stands, or which of a sweep's settings it has."""
        settings = all(label in Experiment.model_fields for label in self.labels)
        words = (f"{key}={value}" if settings else str(value) for key, value in self.labels.items())
        return ", ".join(words)

    def experiment(self, seed: int) -> Experiment | Repetition:
        return Experiment(**self.settings, seed=seed)


class ThroughputCell(Cell):
    """A cluster whose gradients are counted, not computed."""

    def experiment(self, seed: int) -> Repetition:
        return Repetition(**self.settings, seed=seed)


@dataclass
class PlannedRun:
    """One run to be had, for every cell and seed that asks for it."""

    experiment: Experiment | Repetition
    seed: int
    measurements: tuple[str, ...] = ()
    cells: list[Cell] = field(default_factory=list)
    seconds: float = 0.0  # an estimate

    @property
    def id(self) -> str:
        return self.experiment.id

    @property
    def name(self) -> str:
        return ", ".join(filter(None, [self.cells[0].name if self.cells else "", f"seed {self.seed}"]))

    @property
    def in_real_time(self) -> bool:
        """Its seconds are measured, so that nothing else may run beside it."""
        return isinstance(self.experiment, Experiment) and self.experiment.engine != "simulator"

    @property
    def order(self) -> dict[str, Any] | Repetition:
        """What the process that runs it is told; an experiment as text: some optimizers cannot be pickled."""
        return self.experiment if isinstance(self.experiment, Repetition) else self.experiment.resolved()


def plan_runs(cells: Iterable[Cell], seeds: Sequence[int]) -> list[PlannedRun]:
    """Every cell with every seed, the same seeds for all; identical experiments are one task."""
    found: dict[str, PlannedRun] = {}
    for cell in cells:
        for seed in seeds if cell.seeds is None else range(cell.seeds):
            experiment = cell.experiment(seed)
            task = found.setdefault(experiment.id, PlannedRun(experiment, seed))
            task.cells.append(cell)
            task.measurements = tuple(dict.fromkeys((*task.measurements, *cell.measurements)))
    return list(found.values())


def expand_grid(settings: Mapping[str, Any]) -> list[Cell]:
    """Every combination of the keys that hold a list; those keys are the labels."""
    lists = {key: value for key, value in settings.items() if isinstance(value, list)}
    for key, values in lists.items():
        if not values:
            raise InputError(f"{key} = []: there is nothing to choose from; give at least one value")
        if twice := [value for value in values if values.count(value) > 1]:
            raise InputError(f"{key}: {twice[0]!r} is given twice; seeds = 2 runs everything twice")
    fixed = {key: value for key, value in settings.items() if key not in lists}
    combinations = itertools.product(*lists.values())
    chosen = [dict(zip(lists, values, strict=True)) for values in combinations]
    return [Cell({key: label(value) for key, value in one.items()}, fixed | one) for one in chosen]


def possible(cells: Iterable[Cell], seeds: Sequence[int]) -> tuple[list[Cell], dict[str, str]]:
    """The cells that can be run, and the reasons of the others by name: not all that a grid combines fits."""
    good, refused = list[Cell](), dict[str, str]()
    for cell in cells:
        try:
            cell.experiment(seeds[0])
            good.append(cell)
        except InputError as error:
            refused[cell.name] = str(error)
    if not good:
        name, reason = next(iter(refused.items()))
        raise InputError(f"{name}: {reason}" if name else reason)
    return good, refused


def label(value: Any) -> Label:
    return value if isinstance(value, str | int | float) else str(value)


def read_grid_file(path: Path) -> tuple[list[Cell], list[int]]:
    """A TOML file of experiment keys, of which any may be a list, and `seeds`: how many, or which."""
    try:
        settings = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}; give a TOML file that can be read") from None
    seeds = parse_seeds(settings.pop("seeds", 1))
    known = [key for key in Experiment.model_fields if key not in ("seed", "loss")]
    for key in settings:
        if key not in known:
            hint = "write seeds = 3, or seeds = [0, 7]" if key == "seed" else suggest_name(key, known)
            raise InputError(f"{path}: unknown key {key!r}; {hint}")
    return expand_grid(settings), seeds


def parse_seeds(value: Any) -> list[int]:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return list(range(value))
    good = isinstance(value, list) and value and all(isinstance(one, int) and one >= 0 for one in value)
    if not good or len(set(value)) < len(value):
        raise InputError(f"seeds = {value!r}: give how many (3), or different whole numbers ([0, 7])")
    return list(value)
