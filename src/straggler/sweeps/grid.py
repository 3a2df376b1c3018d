"""The cells of a sweep: experiments with labels, from a dictionary, a list of dictionaries or a TOML file."""

import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from straggler.config.imports import has_import_strings
from straggler.config.registry import CatalogueEntry, InputError, suggest_name
from straggler.experiment import Experiment
from straggler.running.callbacks import Callback
from straggler.running.untrusted_files import read_toml
from straggler.sweeps.tuning import Tuning, check_per, parse_seeds, parse_tuning
from straggler.timing.clusters import Repetition

MAX_RUNS = 100_000
PLAIN = (str, int, float, list, tuple, type(None))
Label = str | int | float | None
Grid = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Cell:
    """One experiment without its seed, and the labels that place it in a table."""

    labels: Mapping[str, Label]
    settings: Mapping[str, Any]
    measurements: tuple[str, ...] = ()  # besides the summary: names in sweeps.measurements.MEASUREMENTS
    seeds: int | None = None  # overrides the sweep's number of seeds
    metric: str = "test_accuracy"  # the column of the summary that tables show
    tuning: Tuning | None = None  # finds values of more settings before the cell is run

    @property
    def name(self) -> str:
        """The cell's labels in one line, such as `workers=2, policy=synchronous`, for messages."""
        return ", ".join(f"{key}={value}" for key, value in self.labels.items())

    def experiment(self, seed: int) -> Experiment | Repetition:
        """Return the experiment of this cell with a seed."""
        return Experiment(**self.settings, seed=seed)

    def check(self, seed: int) -> None:
        """Raise InputError if the cell, or a value that its tuning may try, is impossible."""
        if self.tuning is None:
            self.experiment(seed)
        else:
            self.tuning.check(self.settings, seed)

    def with_values(self, values: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> "Cell":
        """Return the cell with values of the searched settings, which become labels, and more settings."""
        labels = {**self.labels, **{key: format_label(value) for key, value in values.items()}}
        for key, searched in self.tuning.space.items() if self.tuning else ():
            labels[key] = labels[key] if searched.is_numeric else str(labels[key])  # columns have one type
        return replace(self, labels=labels, settings={**self.settings, **values, **(more or {})}, tuning=None)


class ThroughputCell(Cell):
    """A cluster whose gradients are counted, not computed."""

    def experiment(self, seed: int) -> Repetition:
        """Return the simulation without gradients of this cell with a seed."""
        return Repetition(**self.settings, seed=seed)


@dataclass
class PlannedRun:
    """One run, and every cell that needs it."""

    experiment: Experiment | Repetition
    seed: int
    measurements: tuple[str, ...] = ()
    cells: list[Cell] = field(default_factory=list)
    is_cached: bool = False  # its record exists
    seconds: float = 0.0  # estimated; 0 if it is cached or cannot start
    is_trial: bool = False  # of a tuning; its summary is not a result of the sweep
    callbacks: tuple[Callback, ...] = ()

    @property
    def id(self) -> str:
        """The id of the experiment, which is also the name of its record's folder."""
        return self.experiment.id

    @property
    def name(self) -> str:
        """The first cell's name and the seed, for messages."""
        return ", ".join(filter(None, [self.cells[0].name if self.cells else "", f"seed {self.seed}"]))

    @property
    def is_real_time(self) -> bool:
        """Whether the run measures wall-clock time, so that no other run may share the machine with it."""
        return isinstance(self.experiment, Experiment) and self.experiment.engine != "simulator"

    @property
    def order(self) -> Repetition | dict[str, Any]:
        """The settings for another process to construct it: some optimizers cannot be pickled."""
        if isinstance(self.experiment, Repetition):
            return self.experiment
        return {**self.cells[0].settings, "seed": self.seed}

    @property
    def is_custom(self) -> bool:
        """Whether the experiment has custom objects or import strings."""
        settings = self.cells[0].settings
        return has_import_strings(settings) or not all(isinstance(v, PLAIN) for v in settings.values())

    @property
    def portable_order(self) -> dict[str, Any]:
        """The settings for a machine without the user's files: objects replace import strings."""
        settings = {**self.cells[0].settings, "seed": self.seed}
        for key, value in settings.items():
            if has_import_strings({key: value}):
                settings[key] = getattr(self.experiment, key)
        return settings


def plan_runs(cells: Iterable[Cell], seeds: Sequence[int]) -> list[PlannedRun]:
    """Return a run for every cell and seed, the same seeds for all; identical experiments are one run."""
    runs: dict[str, PlannedRun] = {}
    for cell in cells:
        for seed in seeds if cell.seeds is None else range(cell.seeds):
            experiment = cell.experiment(seed)
            run = runs.setdefault(experiment.id, PlannedRun(experiment, seed))
            run.cells.append(cell)
            run.measurements = tuple(dict.fromkeys((*run.measurements, *cell.measurements)))
    return list(runs.values())


def read_grid_file(path: Path | str) -> dict[str, Any]:
    """Read a grid from a TOML file."""
    try:
        return read_toml(path)
    except (OSError, ValueError) as error:
        raise InputError(f"Cannot read {path}: {error}. Pass a TOML file of experiment settings") from None


def expand_grid(grid: Grid, seeds: int | Sequence[int] | None = None) -> tuple[list[Cell], Sequence[int]]:
    """Return the cells and seeds of a grid.

    A list means alternatives: there is a cell for every combination. The tables `[[grid]]` of a TOML file,
    or a list of dictionaries, are several grids; settings outside of `[[grid]]` apply to all of them. `seeds`
    is a number (3 means the seeds 0, 1 and 2) or a list. `[methods.NAME]` has settings of one method, and
    `tune` the settings that are searched for each cell.
    """
    shared: dict[str, Any] = dict(grid) if isinstance(grid, Mapping) else {"grid": list(grid)}
    parts, methods = shared.pop("grid", [{}]), shared.pop("methods", {})
    chosen_seeds = parse_seeds(shared.pop("seeds", 1) if seeds is None else seeds)
    if not isinstance(parts, list) or not parts or not all(isinstance(part, Mapping) for part in parts):
        raise InputError("grid must be a list of tables: [[grid]] in TOML, a list of dictionaries in Python")
    grids = [join_metrics(shared | dict(part)) for part in parts]
    grids = apply_method_settings(grids, methods)
    tunings = [parse_tuning(part.pop("tune")) if "tune" in part else None for part in grids]
    for settings in grids:
        check_grid(settings)
    runs = len(chosen_seeds) * sum(
        math.prod(len(values) for values in settings.values() if isinstance(values, list))
        for settings in grids
    )
    if runs > MAX_RUNS:
        raise InputError(
            f"The grid has {runs:,} runs, the limit is {MAX_RUNS:,}. Shorten its lists or split the sweep"
        )
    varying = [key for key in dict.fromkeys(itertools.chain(*grids)) if does_vary(key, grids)]
    cells = list[Cell]()
    for settings, tuning in zip(grids, tunings, strict=True):
        labels = [key for key in varying if tuning is None or key not in tuning.space]
        check_per((tuning and tuning.per) or (), labels)
        cells += [replace(cell, tuning=tuning) for cell in expand_combinations(settings, labels)]
    as_text = {key for key in varying if any(isinstance(cell.labels.get(key), str) for cell in cells)}
    return [unify_labels(cell, as_text) for cell in cells], chosen_seeds


def apply_method_settings(grids: Sequence[dict[str, Any]], methods: Any) -> list[dict[str, Any]]:
    """Return the grids with the settings of `[methods.NAME]` tables: such a method has a grid of its own."""
    if not isinstance(methods, Mapping) or not all(isinstance(each, Mapping) for each in methods.values()):
        raise InputError("methods must be tables such as [methods.dana-ga], with settings of this method")
    listed = [
        part["method"] if isinstance(part.get("method"), list) else [part.get("method")] for part in grids
    ]
    known = [str(name) for names in listed for name in names if name is not None]
    for name in methods:
        if name not in known:
            raise InputError(f"[methods.{name}]: the sweep has no such method. {suggest_name(name, known)}")
    found = []
    for part, names in zip(grids, listed, strict=True):
        if methods.keys().isdisjoint(map(str, names)):
            found.append(part)
            continue
        for name in names:
            own = dict(methods.get(name, {}))
            if wrong := {"method", "grid", "methods", "seeds", "tune"} & own.keys():
                raise InputError(f"[methods.{name}]: {min(wrong)} applies to all methods. Move it to the top")
            found.append(part | {"method": name} | own)
    return found


def join_metrics(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with a list of metrics as one value: every run measures all of them."""
    metrics = settings.get("metrics")
    nested = isinstance(metrics, list) and any(isinstance(each, list) for each in metrics)
    return settings | {"metrics": tuple(metrics)} if isinstance(metrics, list) and not nested else settings


def unify_labels(cell: Cell, as_text: set[str]) -> Cell:
    """Return the cell with these labels as text, so that a column has one type."""
    labels = {
        key: str(label) if key in as_text and label is not None else label
        for key, label in cell.labels.items()
    }
    return replace(cell, labels=labels)


def check_grid(settings: Mapping[str, Any]) -> None:
    """Raise for unknown keys, empty lists and values that appear twice."""
    known = [key for key in Experiment.model_fields if key != "seed"]
    for key, values in settings.items():
        if key not in known:
            hint = "Use seeds = 3 or seeds = [0, 7]" if key == "seed" else suggest_name(key, known)
            raise InputError(f"Unknown key {key!r} in a sweep. {hint}")
        if isinstance(values, list):
            if not values:
                raise InputError(f"{key} = [] has no values. List at least one")
            for number, value in enumerate(values):
                if any(are_same(value, other) for other in values[:number]):
                    raise InputError(f"{key} lists {value!r} twice. Use seeds = 2 to run everything twice")


def expand_combinations(settings: Mapping[str, Any], varying: Sequence[str]) -> Iterator[Cell]:
    """Yield a cell for every combination of the listed values."""
    alternatives = [
        label_values(value if isinstance(value, list) else [value]) for value in settings.values()
    ]
    defaults = {key: format_label(Experiment.model_fields[key].default) for key in varying}
    for combination in itertools.product(*alternatives):
        chosen = dict(zip(settings, combination, strict=True))
        labels = {key: chosen[key][0] if key in chosen else defaults[key] for key in varying}
        yield Cell(labels, {key: value for key, (_, value) in chosen.items()})


def label_values(values: Sequence[Any]) -> list[tuple[Label, Any]]:
    """Return the values with their labels; custom objects of the same name are numbered."""
    labels = [format_label(value) for value in values]
    counts = [labels[:index].count(label) for index, label in enumerate(labels)]
    numbered = [
        f"{label} #{count + 1}" if count else label for label, count in zip(labels, counts, strict=True)
    ]
    return list(zip(numbered, values, strict=True))


def does_vary(key: str, grids: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the cells of these grids differ in a setting."""
    if any(isinstance(settings.get(key), list) for settings in grids):
        return True
    return any(key not in settings or not are_same(settings[key], grids[0].get(key)) for settings in grids)


def format_label(value: Any) -> Label:
    """Return a setting as a table shows it: numbers as they are, custom objects by their name."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str):
        prefix = re.match(r"[^(]*:", value)  # `./file.py:Name(width=64)` is shown as `Name(width=64)`
        return value[prefix.end() :] if prefix else value
    if isinstance(value, list):  # delays are added
        return " + ".join(str(format_label(each)) for each in value)
    if isinstance(value, tuple):
        return f"({', '.join(str(format_label(each)) for each in value)})"
    if isinstance(value, functools.partial):
        arguments = [*map(str, value.args), *(f"{key}={each}" for key, each in value.keywords.items())]
        return f"{format_label(value.func)}({', '.join(arguments)})"
    if isinstance(value, CatalogueEntry):
        return str(value)
    return str(getattr(value, "__name__", type(value).__name__))


def are_same(one: Any, other: Any) -> bool:
    """Return whether two values are one object, or plain values that are equal."""
    return one is other or (isinstance(one, PLAIN) and isinstance(other, PLAIN) and one == other)


def find_runnable_cells(cells: Sequence[Cell], seed: int) -> tuple[list[Cell], dict[str, str]]:
    """Construct every cell's experiment. Return the valid cells, and the errors of the others by name.

    Some combinations of a grid may be impossible. But a value with which no cell is possible is an error.
    """
    valid, errors = list[Cell](), list[tuple[Cell, str]]()
    for cell in cells:
        try:
            cell.check(seed)
            valid.append(cell)
        except InputError as error:
            errors.append((cell, str(error)))
    for cell, reason in errors:
        for key, value in cell.labels.items():
            if not any(other.labels.get(key) == value for other in valid):
                raise InputError(f"{key} = {value}: {reason}" if valid else f"{cell.name}: {reason}")
        if not valid:
            raise InputError(reason)
    return valid, {cell.name: reason for cell, reason in errors}
