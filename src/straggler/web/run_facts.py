"""A record in plain values: settings, method, command; what is damaged is said and does not stop the rest."""

import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
from pydantic import ValidationError

from straggler.algorithms.corrections import correction_of
from straggler.algorithms.methods import METHODS
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.algorithms.policies import POLICIES
from straggler.config.registry import InputError, explain_validation_error, parse_entry
from straggler.config.settings import PIECES, SHARED_SETTINGS
from straggler.experiment import Experiment
from straggler.record import ARRIVALS, Record, RecordError

T = TypeVar("T")
MOST_WORKERS = 100_000  # of whom an experiment is made again; a record may say any number
GIVEN = "Something of it was given in Python; the program that gave it runs it again."
NO_DIFFERENCE = (*PIECES, *SHARED_SETTINGS, "seed", "eval_every", "train_metrics", "snapshots")


class RunFacts:
    """What can be read of one run; each thing is read when it is asked for, and once."""

    def __init__(self, path: Path) -> None:
        self.record, self.id = Record(path), path.name
        self.trouble: list[str] = []
        self._given = False

    @cached_property
    def settings(self) -> dict[str, Any]:
        try:
            return self.record.settings
        except RecordError as error:
            return self._troubled(str(error), {})

    @cached_property
    def text(self) -> str:
        """Its experiment.toml as it stands there."""
        try:
            return self.record.text
        except RecordError as error:
            return self._troubled(str(error), "")

    @cached_property
    def summary(self) -> dict[str, Any]:
        try:
            return self.record.summary
        except RecordError as error:
            return self._troubled(str(error), {})

    @cached_property
    def environment(self) -> dict[str, Any]:
        try:
            return self.record.environment
        except RecordError as error:
            return self._troubled(str(error), {})

    @cached_property
    def curve(self) -> pl.DataFrame:
        try:
            return self.record.curve
        except RecordError as error:
            return self._troubled(str(error), pl.DataFrame())

    @cached_property
    def arrivals(self) -> pl.DataFrame:
        try:
            return self.record.arrivals.select(*ARRIVALS)
        except (RecordError, pl.exceptions.PolarsError) as error:
            return self._troubled(str(error).splitlines()[0], pl.DataFrame(schema=ARRIVALS))

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        try:
            return [event for event in self.record.events if {"time", "worker", "what"} <= set(event)]
        except (RecordError, TypeError) as error:
            return self._troubled(str(error), [])

    @cached_property
    def experiment(self) -> Experiment | None:
        """None where text cannot hold it: data, a model or a class that were given in Python."""
        workers = self.settings.get("workers")
        if isinstance(workers, int) and workers > MOST_WORKERS:  # even to make it would take all memory
            return self._troubled(f"workers = {workers:,}: at most {MOST_WORKERS:,} are shown", None)
        try:
            return Experiment.recorded(self.record)
        except InputError:  # the one thing that text cannot hold, and no trouble
            self._given = True
            return None
        except ValidationError as error:
            return self._troubled(explain_validation_error(error, Experiment.model_fields), None)
        except (RecordError, ValueError, OSError, TypeError) as error:
            return self._troubled(str(error), None)

    @property
    def remark(self) -> str:
        """Why there is no command that does the same, where there cannot be one."""
        return GIVEN if self.experiment is None and self._given else ""

    @property
    def status(self) -> str:
        said = str(self.summary.get("status", "damaged"))
        return self.record.status if said == "running" else said

    @property
    def method(self) -> str:
        return method_name(self.settings)

    @property
    def clock(self) -> str:
        """What the seconds of the record are."""
        return "virtual time (s)" if self.settings.get("engine") == "simulator" else "time (s)"

    def rerun_command(self) -> list[str]:
        """The command that does the same."""
        return build_command(minimal_settings(self.experiment)) if self.experiment else []

    def _troubled(self, line: str, instead: T) -> T:
        if line not in self.trouble:
            self.trouble.append(line)
        return instead


@lru_cache(maxsize=1)
def methods_by_pieces() -> dict[tuple[str, ...], str]:
    """The names of METHODS by their pieces as a record writes them."""
    named: dict[tuple[str, ...], str] = {}
    for name, method in METHODS.items():
        policy = parse_entry(method.policy, POLICIES)
        optimizer = parse_entry(method.optimizer, OPTIMIZERS)
        pieces = (str(policy), str(correction_of(method.correction)), str(optimizer))
        if not method.single:
            named.setdefault(pieces, name)
    return named


def method_name(settings: Mapping[str, Any]) -> str:
    """The name of a paper's method, or the pieces that are not the plain ones."""
    pieces = tuple(str(settings.get(piece, "")) for piece in PIECES)
    if pieces in methods_by_pieces():
        return methods_by_pieces()[pieces]
    return " × ".join(piece for piece in pieces if piece not in ("none", "sgd", "")) or "?"


def minimal_settings(experiment: Experiment) -> dict[str, Any]:
    """The fewest settings that say the same: those that differ from the defaults."""
    mine, default = experiment.resolved(), Experiment().resolved()
    chosen = {key: value for key, value in mine.items() if value != default.get(key)}
    if any(key in mine for key in ("updates", "gradients", "seconds")):
        chosen.pop("epochs", None)
    if (least := chosen.pop("min_workers", None)) is not None:
        chosen["workers"] = f"{least}-{experiment.workers}"
    name = methods_by_pieces().get(tuple(mine[piece] for piece in PIECES))
    if name is not None:
        chosen = {key: value for key, value in chosen.items() if key not in PIECES}
        chosen = ({"method": name} if name != "asgd" else {}) | chosen
    return {key: value for key, value in chosen.items() if key not in SHARED_SETTINGS}


def build_command(settings: Mapping[str, Any]) -> list[str]:
    """`straggler run` with these settings, as a list of words."""
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
    """Words as one types them."""
    return shlex.join(words)


def label_runs(runs: Sequence[RunFacts]) -> list[str]:
    """Short names that tell runs apart: the method, and the settings that differ."""
    if not runs:
        return []
    known = dict.fromkeys(key for run in runs for key in run.settings if key not in NO_DIFFERENCE)
    keys = [key for key in known if len({str(run.settings.get(key)) for run in runs}) > 1]
    return [", ".join([run.method, *(described(key, run.settings.get(key)) for key in keys)]) for run in runs]


def described(key: str, value: Any) -> str:
    text = " + ".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"{key.replace('_', ' ')} {text or 'none'}"
