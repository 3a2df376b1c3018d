"""A record as plain values for pages and reports. Unreadable files become problems, not exceptions."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from straggler.analysis.labels import name_method
from straggler.config.custom import list_custom_objects
from straggler.config.imports import has_import_strings, refuse_import_strings
from straggler.config.workers import skip_timing_checks
from straggler.experiment import Experiment
from straggler.record import ARRIVALS, Record, RecordError
from straggler.running.untrusted_files import MAX_TABLE_BYTES

T = TypeVar("T")
MAX_SHOWN_WORKERS = 100_000  # a record can claim any number, and each takes memory
# polars panics at some damaged files, with an exception that is not an Exception.
READ_ERRORS = (Exception, pl.exceptions.PanicException)
MAX_FIGURE_BYTES = MAX_TABLE_BYTES // 2  # of all runs that are shown together, in memory
CUSTOM_REMARK = "This run used custom Python objects; run it again from the program that defines them."


class RunFacts:
    """One run as pages show it. Each file is read on first use; `problems` lists unreadable files."""

    def __init__(self, path: Path) -> None:
        self.record, self.id, self.path = Record(path), path.name, path
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
    def jobs(self) -> pl.DataFrame:
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
        if not self.settings:
            return None
        if isinstance(workers, int) and workers > MAX_SHOWN_WORKERS:
            self.problems.append(f"workers = {workers:,}: pages show at most {MAX_SHOWN_WORKERS:,}")
            return None
        if self.is_custom or has_import_strings(self.settings):
            return None
        # a record must never execute code, read files elsewhere, or draw as many numbers as it claims
        with refuse_import_strings(str(self.record.path)), skip_timing_checks():
            return self._read(lambda: Experiment.from_record(self.record), None)

    @property
    def status(self) -> str:
        status = str(self.summary.get("status", "damaged"))
        return self.record.status if status == "running" else status

    @property
    def method(self) -> str:
        return name_method(self.settings)

    @property
    def is_virtual(self) -> bool:
        return self.settings.get("engine") == "simulator"

    def rerun_command(self) -> list[str]:
        """Return the command that runs the same experiment, or an empty list if there is none."""
        with skip_timing_checks():
            return build_command(find_changed_settings(self.experiment)) if self.experiment else []

    def _read(self, read: Callable[[], T], default: T) -> T:
        try:
            return read()
        except READ_ERRORS as error:
            problem = describe_problem(error)
            if problem not in self.problems:
                self.problems.append(problem)
            return default


def describe_problem(error: BaseException) -> str:
    """Return one line on an error at reading a file that anybody may have written."""
    line = (str(error).splitlines() or [""])[0][:300]
    return line if isinstance(error, RecordError | ValueError) else f"{type(error).__name__}: {line}"


def limit_memory(runs: Sequence[RunFacts]) -> tuple[list[RunFacts], list[str]]:
    """Return the first runs that fit into memory together, and a sentence on each run that is left out."""
    kept, notes, used = list[RunFacts](), list[str](), 0
    for run in runs:
        needed = run.record.estimate_memory()
        if used + needed <= MAX_FIGURE_BYTES:
            kept, used = [*kept, run], used + needed
        else:
            size, limit = needed / 1e9, MAX_FIGURE_BYTES / 1e9
            notes.append(f"{run.id} needs {size:.3g} GB; the limit of all runs together is {limit:.3g} GB.")
    return kept, notes


def find_changed_settings(experiment: Experiment) -> dict[str, Any]:
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
