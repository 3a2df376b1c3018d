"""A record as plain values for pages and reports. Unreadable files become problems, not exceptions."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from straggler.algorithms.corrections import parse_correction
from straggler.algorithms.methods import METHODS
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.algorithms.policies import POLICIES
from straggler.config.custom import list_custom_objects
from straggler.config.imports import is_import_string, refuse_import_strings
from straggler.config.registry import parse_entry
from straggler.config.settings import COMPONENTS, OPTIMIZER_SHORTCUTS
from straggler.experiment import Experiment
from straggler.record import ARRIVALS, Record, RecordError

T = TypeVar("T")
MAX_WORKERS = 100_000  # a record can claim any number, and building the experiment takes memory for each
READ_ERRORS = (RecordError, ValueError, TypeError, OSError, pl.exceptions.PolarsError)
CUSTOM_REMARK = "This run used custom Python objects; run it again from the program that defines them."
UNLABELLED = (*COMPONENTS, *OPTIMIZER_SHORTCUTS, "method", "seed", "eval_every", "train_metrics", "snapshots")


class RunFacts:
    """What pages show of one run. Each file is read on first use; `problems` lists what cannot be read."""

    def __init__(self, path: Path) -> None:
        self.record, self.id = Record(path), path.name
        self.problems: list[str] = []

    @cached_property
    def settings(self) -> dict[str, Any]:
        return self._read(lambda: self.record.settings, {})

    @cached_property
    def text(self) -> str:
        """The content of experiment.toml."""
        return self._read(lambda: self.record.text, "")

    @cached_property
    def summary(self) -> dict[str, Any]:
        return self._read(lambda: self.record.summary, {})

    @cached_property
    def environment(self) -> dict[str, Any]:
        return self._read(lambda: self.record.environment, {})

    @cached_property
    def curve(self) -> pl.DataFrame:
        return self._read(lambda: self.record.curve, pl.DataFrame())

    @cached_property
    def arrivals(self) -> pl.DataFrame:
        return self._read(lambda: self.record.jobs.select(*ARRIVALS), pl.DataFrame(schema=ARRIVALS))

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        wanted = {"time", "worker", "what"}
        return self._read(lambda: [event for event in self.record.events if wanted <= set(event)], [])

    @cached_property
    def is_custom(self) -> bool:
        """Whether the run used Python objects that its settings only name."""
        return bool(list_custom_objects(self.settings))

    @cached_property
    def experiment(self) -> Experiment | None:
        """The experiment, or None if its settings are invalid or name custom objects."""
        workers = self.settings.get("workers")
        if isinstance(workers, int) and workers > MAX_WORKERS:
            self.problems.append(f"workers = {workers:,}: pages show at most {MAX_WORKERS:,}")
            return None
        items = [
            item
            for value in self.settings.values()
            for item in (value if isinstance(value, list) else [value])
        ]
        if self.is_custom or any(map(is_import_string, items)):
            return None
        with refuse_import_strings(str(self.record.path)):  # a record must never execute code
            return self._read(lambda: Experiment.from_record(self.record), None)

    @property
    def status(self) -> str:
        status = str(self.summary.get("status", "damaged"))
        return self.record.status if status == "running" else status

    @property
    def method(self) -> str:
        return format_method(self.settings)

    @property
    def is_virtual(self) -> bool:
        return self.settings.get("engine") == "simulator"

    @property
    def clock(self) -> str:
        """The label of a time axis."""
        return "virtual time (s)" if self.is_virtual else "wall-clock time (s)"

    def rerun_command(self) -> list[str]:
        """Return the command that runs the same experiment, or an empty list if there is none."""
        return build_command(minimal_settings(self.experiment)) if self.experiment else []

    def _read(self, read: Callable[[], T], default: T) -> T:
        try:
            return read()
        except READ_ERRORS as error:
            problem = (str(error).splitlines() or [type(error).__name__])[0]
            if problem not in self.problems:
                self.problems.append(problem)
            return default


@cache
def methods_by_components() -> dict[tuple[str, ...], str]:
    """Return the name of each method by its components as records write them."""
    names: dict[tuple[str, ...], str] = {}
    for name, method in METHODS.items():
        policy = parse_entry(method.policy, POLICIES)
        optimizer = parse_entry(method.optimizer, OPTIMIZERS)
        if not method.single:
            names.setdefault((str(policy), str(parse_correction(method.correction)), str(optimizer)), name)
    return names


def format_method(settings: Mapping[str, Any]) -> str:
    """Return the name of a run's method, or else of its components that are not the plain ones."""
    components = tuple(str(settings.get(key, "")) for key in COMPONENTS)
    if components in methods_by_components():
        return methods_by_components()[components]
    names = [shorten_custom_name(text) for text in components if text not in ("none", "sgd", "")]
    return " × ".join(names) or "?"


def shorten_custom_name(text: str) -> str:
    """Return `Name(setting=1)` for a custom component recorded as `module:Name(setting=1)` or with a hash."""
    return re.sub(r" ?\[given \w+\]", "", re.sub(r"(?<![\w'\"])[\w./\\-]+:(?=[A-Za-z_])", "", text))


def minimal_settings(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that differ from the defaults; a method stands for its components."""
    defaults = Experiment(method=experiment.method, workers=experiment.workers).to_dict()
    defaults |= {"method": "asgd", "workers": Experiment().workers}
    changed = {key: value for key, value in experiment.to_dict().items() if value != defaults.get(key)}
    if (fewest := changed.pop("min_workers", None)) is not None:
        changed["workers"] = f"{fewest}-{experiment.workers}"
    return changed


def build_command(settings: Mapping[str, Any]) -> list[str]:
    """Return `straggler run` with these settings as a list of arguments."""
    words = ["straggler", "run"]
    for key, value in settings.items():
        flag = f"--{key.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{key.replace('_', '-')}")
        else:
            for item in value if isinstance(value, list | tuple) else [value]:
                words += [flag, str(int(item) if isinstance(item, float) and item.is_integer() else item)]
    return words


def format_command(words: Sequence[str]) -> str:
    """Return a command quoted for the shell."""
    return shlex.join(words)


def label_runs(runs: Sequence[RunFacts]) -> list[str]:
    """Label each run by its method and the settings that differ; runs that differ in the seed share one."""
    known = dict.fromkeys(key for run in runs for key in run.settings if key not in UNLABELLED)
    keys = [key for key in known if len({str(run.settings.get(key)) for run in runs}) > 1]
    return [
        ", ".join([run.method, *(format_setting(key, run.settings.get(key)) for key in keys)]) for run in runs
    ]


def format_setting(key: str, value: Any) -> str:
    text = " + ".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"{key.replace('_', ' ')} {shorten_custom_name(text) or 'none'}"
