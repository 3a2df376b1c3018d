"""Objectives of tuning: a validation metric, a run's time, or its time to a target. Never the test set."""

import math
from dataclasses import dataclass
from typing import Any, Self

from straggler.config.registry import InputError
from straggler.config.targets import Target
from straggler.experiment import Experiment
from straggler.record import Record

TIME_TO = "time to "
FORMS = (
    "validation_accuracy, validation_loss, seconds, 'time to validation_accuracy >= 90', or a metric with "
    "its direction ('min validation_perplexity')"
)


@dataclass(frozen=True)
class Objective:
    """A number of a finished run that tuning makes as large or as small as possible."""

    column: str  # of the summary and the curve
    is_maximized: bool
    target: Target | None = None  # the objective is the time until it is reached

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `validation_accuracy`, `min validation_perplexity`, `seconds` or `time to … >= …`."""
        text = text.strip()
        if text.startswith(TIME_TO):
            try:
                target = Target.parse(text.removeprefix(TIME_TO))
            except ValueError:
                form = "'time to validation_accuracy >= 90'"
                raise InputError(f"objective={text!r} must have the form {form}") from None
            return cls("seconds", False, target).refuse_test(target.column)
        direction, _, column = text.rpartition(" ")
        if direction not in ("", "min", "max"):
            raise InputError(f"objective={text!r}: write {FORMS}")
        known = {"accuracy": True, "loss": False, "perplexity": False, "seconds": False}
        largest = known.get(column.partition("_")[2] or column)
        if not direction and largest is None and not column.startswith("test_"):
            if not column.startswith(("validation_", "train_")):
                raise InputError(f"objective={text!r}: write {FORMS}")
            directions = f"'max {column}' or 'min {column}'"
            raise InputError(f"objective={text!r}: say whether it should be large or small: {directions}")
        return cls(column, direction == "max" if direction else bool(largest)).refuse_test(column)

    def refuse_test(self, column: str) -> Self:
        """Return the objective; raise InputError if its column is measured on the test set."""
        if column.startswith("test_"):
            other = column.replace("test_", "validation_", 1)
            raise InputError(
                f"objective={column}: a choice by the test set makes the test result too good. Use {other}"
            )
        return self

    def __str__(self) -> str:
        if self.target is not None:
            return f"{TIME_TO}{self.target}"
        return f"{'max' if self.is_maximized else 'min'} {self.column}"

    @property
    def label(self) -> str:
        """The name and unit for tables and figures."""
        if self.target is not None:
            column, unit = self.target.column, " %" if self.target.column.endswith("_accuracy") else ""
            return f"time to {column.replace('_', ' ')} {self.target.sign} {self.target.value:g}{unit} (s)"
        unit = {"accuracy": " (%)", "seconds": " (s)"}.get(self.column.rpartition("_")[2], "")
        return f"{'time' if self.column == 'seconds' else self.column.replace('_', ' ')}{unit}"

    @property
    def worst(self) -> float:
        """The value of a run that did not converge or never reached the target."""
        if self.column.endswith("_accuracy"):
            return 0.0
        return -math.inf if self.is_maximized else math.inf

    def check(self, experiment: Experiment, is_pruned: bool = False) -> None:
        """Raise InputError if a run of this experiment does not measure the objective."""
        if is_pruned and self.column == "seconds":
            raise InputError(
                f"prune needs an objective that every evaluation measures, and {self.label} is not one. "
                "Use validation_accuracy, or let until end the runs"
            )
        if is_pruned and not experiment.eval_every:
            raise InputError("prune compares evaluations, so it requires eval_every above 0, got 0")
        column = self.target.column if self.target else self.column
        if column.startswith("validation_") and not experiment.validation:
            raise InputError(
                f"objective={column} requires validation data, so that the test set does not decide. "
                f"Set validation=0.1 (a tenth of the training set), or use another objective: {FORMS}"
            )
        if column == "seconds":
            return
        settings = dict(experiment) | {"eval_every": 1, "epochs": experiment.epochs or 1}
        if self.target is not None:
            settings["eval_every"] = experiment.eval_every
        if experiment.train_metrics != "never" and self.target is None:
            settings["train_metrics"] = "always"  # the summary has them
        try:
            Target(column, ">=", 0.0).check(settings)
        except ValueError as error:
            raise InputError(f"objective={self}: {str(error).partition(': ')[2] or error}") from None

    def read_curve(self, record: Record) -> dict[int, float]:
        """Return the objective at every evaluation after the start, by the evaluation's number."""
        curve = record.curve
        if self.column not in curve.columns or self.column == "seconds":
            return {}
        values = curve[self.column].to_list()[1:]  # the first evaluation is that of the initial model
        return {number: math.nan if value is None else value for number, value in enumerate(values, start=1)}

    def score(self, record: Record) -> float:
        """Return the objective of a finished run."""
        if self.target is not None:
            rows = record.curve.iter_rows(named=True)
            return next((float(row["seconds"]) for row in rows if self.target.is_reached(row)), self.worst)
        summary: dict[str, Any] = record.summary
        value = summary.get(self.column)
        if value is None or not summary.get("converged") or math.isnan(value):
            return self.worst
        return float(value)
