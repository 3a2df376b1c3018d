"""Experiment: the specification of a run. Its hash is the run's id."""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import tomlkit
from pydantic import ValidationError, model_validator

from straggler.algorithms.methods import METHODS
from straggler.algorithms.policies import POLICIES
from straggler.algorithms.schedules import LearningRate
from straggler.config.custom import CustomModel, component_identity, list_custom_objects
from straggler.config.imports import UntrustedImportError, has_import_strings, refuse_import_strings
from straggler.config.registry import InputError, explain_validation_error, suggest_name
from straggler.config.settings import (
    BUDGETS,
    OPTIMIZER_SHORTCUTS,
    apply_shortcuts,
    check_aggregation,
    check_engine_delays,
    check_quadratic,
    check_virtual_keys,
    choose_aggregation,
    find_method,
    override_settings,
    parse_method,
    parse_workers,
)
from straggler.config.targets import Target
from straggler.config.workers import WorkerSettings
from straggler.core import Aggregation, Channel, Correction, Optimizer, Policy, Problem, Server, Work
from straggler.engines import identify_engine
from straggler.problems.computation import Computation, Precision
from straggler.problems.construction import build_problem
from straggler.problems.custom_data import CustomData
from straggler.problems.metrics import Metric
from straggler.problems.partitions import Partition
from straggler.problems.quadratic import QuadraticData
from straggler.record import Record
from straggler.running.untrusted_files import read_toml
from straggler.timing import ChurnLaw, Law, Link
from straggler.timing.cores import Cores

if TYPE_CHECKING:
    from torch import Tensor, nn

    from straggler.core.devices import DeviceChoice
    from straggler.running.callbacks import Callback
    from straggler.running.observer import RunProgress

    LossFunction = Callable[[Tensor, Tensor], Tensor]

# The keys that ids of version 0.1 are made of. A later key enters the id only if it differs from its default.
ORIGINAL_KEYS = (
    *("dataset", "model", "policy", "correction", "optimizer", "lr", "momentum", "nesterov", "weight_decay"),
    *("schedule", "warmup", "workers", "min_workers", "batch_size", "partition", "validation", "compute"),
    *("delay", "epochs", "updates", "gradients", "seconds", "stop", "engine", "seed", "eval_every"),
    *("train_metrics", "snapshots"),
)

NEW_STAGES = {"work": "gradient", "channel": "exact", "aggregation": "mean"}


class Experiment(WorkerSettings):
    """The specification of a run: data, model, method, workers, budget.

    Every argument is optional. Components are written as text, `name(key=value)`, or passed as Python
    objects; custom classes may also be named by import strings such as `./file.py:Name(key=value)`.
    """

    if TYPE_CHECKING:  # the types of the arguments; those of the fields are the types of the stored values

        def __init__(
            self,
            *,
            dataset: str | CustomData | Sequence[Any] | Any = ...,
            model: str | nn.Module | Callable[[], nn.Module] = ...,
            loss: str | LossFunction | None = ...,
            validation: float = ...,
            precision: Precision = ...,
            channels_last: bool = ...,
            compile: bool = ...,
            method: str | None = ...,
            work: str | Work | type[Work] | None = ...,
            channel: str | Channel | type[Channel] | None = ...,
            policy: str | Policy | type[Policy] | None = ...,
            correction: str | Correction | type[Correction] | Sequence[str | Correction] | None = ...,
            aggregation: str | Aggregation | type[Aggregation] | None = ...,
            optimizer: str | Optimizer | Any = ...,
            lr: float = ...,
            momentum: float | None = ...,
            nesterov: bool | None = ...,
            weight_decay: float | None = ...,
            schedule: str | Any = ...,
            warmup: float = ...,
            ema: float = ...,
            seed: int = ...,
            engine: str | Any = ...,
            workers: int | str | tuple[int, int] = ...,
            min_workers: int | None = ...,
            batch_size: int | str | Sequence[int] = ...,
            partition: str | Partition | type[Partition] = ...,
            compute: str | Law = ...,
            delay: str | Law | Sequence[str | Law] = ...,
            link: str | Link | Sequence[str | Link] = ...,
            server_link: str | Link | None = ...,
            churn: str | ChurnLaw | Sequence[str | ChurnLaw] = ...,
            cores: int | str | Cores | None = ...,
            epochs: float | None = ...,
            updates: int | None = ...,
            gradients: int | None = ...,
            seconds: float | None = ...,
            until: str | None = ...,
            stop: Literal["all", "each"] = ...,
            eval_every: float = ...,
            train_metrics: Literal["never", "end", "always"] | None = ...,
            metrics: str | Metric | Callable[[Any, Any], Any] | Sequence[Any] = ...,
            snapshots: int = ...,
        ) -> None: ...

    else:

        def __init__(self, **settings: Any) -> None:
            try:
                super().__init__(**settings)
            except ValidationError as error:
                raise InputError(explain_validation_error(error, type(self).model_fields)) from error
            except UntrustedImportError as error:
                raise InputError(str(error)) from None

    def __init_subclass__(cls, **settings: Any) -> None:
        raise TypeError(
            "Experiment cannot be subclassed, because its id would not cover the changed code. "
            "Pass a custom model, dataset, loss or component instead."
        )

    @classmethod
    def from_toml(cls, path: Path | str, *, trust: bool = False, **changes: Any) -> Self:
        """Read a TOML file; keyword arguments replace its settings.

        The file's import strings are followed only with `trust=True`, because importing runs code.
        """
        try:
            settings = read_toml(path)
        except ValueError as error:
            raise InputError(f"{path} is not a TOML file: {error}") from None
        return cls.from_settings(override_settings(settings, changes), None if trust else str(path))

    @classmethod
    def from_record(cls, record: Record, *, trust: bool = False, defaults_for: Collection[str] = ()) -> Self:
        """Return the experiment of a record.

        Import strings are followed only with `trust=True`. Python objects cannot be recreated from text, so
        they raise InputError. Custom values of the keys in `defaults_for` are replaced by the defaults.
        """
        settings = dict(record.settings)
        for key in defaults_for:
            if has_import_strings({key: settings.get(key)}):
                del settings[key]
        for key in list_custom_objects(settings):
            if key not in defaults_for:
                raise InputError(
                    f"{record.path}: {key} was a Python object ({settings[key]}), which the record cannot "
                    f"recreate. In Python, build the same Experiment and pass it, or resume with its run()."
                )
            del settings[key]
        return cls.from_settings(settings, None if trust else str(record.path))

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], untrusted_source: str | None = None) -> Self:
        """Return an experiment from settings; if their source is untrusted, import strings are refused."""
        with refuse_import_strings(untrusted_source):
            return cls(**settings)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_method(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Add the components of the method where none were passed, and the default budget."""
        settings = {key: value for key, value in settings.items() if value is not None}
        settings |= parse_workers(settings.get("workers"))
        name = settings.get("method", "asgd")
        if not isinstance(name, str) or name not in METHODS:
            raise ValueError(f"Unknown method {name!r}. {suggest_name(str(name), METHODS)}")
        policy = settings.get("policy")
        if isinstance(policy, str) and policy in METHODS and policy not in POLICIES:
            raise ValueError(f"{policy!r} is a method, not a policy. Use method={policy!r}.")
        is_explicit = "optimizer" in settings
        if (lr := METHODS[name].lr) is not None:
            settings.setdefault("lr", lr)
        settings = parse_method(name) | settings
        settings["optimizer"] = apply_shortcuts(settings, is_explicit)
        for key in OPTIMIZER_SHORTCUTS:  # the fields show the values of the optimizer
            settings[key] = getattr(settings["optimizer"], key, None)
        if not any(key in settings for key in (*BUDGETS, "until")):
            settings["epochs"] = 1
        return settings

    @model_validator(mode="after")
    def _check(self) -> Self:
        budgets = [budget for budget in BUDGETS if getattr(self, budget) is not None]
        if len(budgets) > 1:
            raise ValueError(
                f"A run has one budget, but {' and '.join(budgets)} are set. Remove all but one."
            )
        if self.train_metrics is None:
            lazy = isinstance(self.dataset, CustomData) and self.dataset.is_lazy
            object.__setattr__(self, "train_metrics", "never" if lazy else "end")
        if self.until is not None:
            Target.parse(self.until).check(dict(self))
        if self.stop == "each" and budgets[0] not in ("epochs", "gradients"):
            raise ValueError("stop='each' requires a budget in epochs or gradients")
        if self.method is not None and METHODS[self.method].single and self.workers != 1:
            raise ValueError(
                f"method={self.method} requires workers=1, got workers={self.workers}. "
                f"For several workers use method=asgd or method=ssgd."
            )
        if self.optimizer.per_worker and self.policy.merges(self.workers):
            raise ValueError(
                f"{self.optimizer} requires steps with one worker's message, but {self.policy} merges "
                f"several. Use policy='asynchronous', or optimizer='sgd(momentum=…)'."
            )
        self.policy.check(self.workers)
        aggregation = choose_aggregation(self.policy, self.aggregation)
        self.correction.check(self.policy, aggregation, self.optimizer)
        check_aggregation(self.policy, self.aggregation, self.optimizer, self.workers)
        check_engine_delays(self.engine, self.delay)
        check_virtual_keys(self.engine, dict(self))
        if isinstance(self.dataset, QuadraticData):
            check_quadratic(self.dataset, dict(self), type(self).model_fields)
        self.check_schedule(self.epochs or 1.0)
        self.check_timing()
        if self.method is None:
            object.__setattr__(self, "method", find_method(dict(self)))
        return self

    def check_schedule(self, epochs: float) -> None:
        """Raise InputError if the schedule fails within this many epochs (at most the first thousand)."""
        LearningRate(self.lr, self.schedule)(min(epochs, 1000.0))

    @property
    def id(self) -> str:
        """A short hash of all settings that determine the run and its record."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:12]

    def identity(self) -> dict[str, Any]:
        """Return the content of the id: every setting of every component, and fingerprints of custom code."""
        keys = self.to_dict() | {key: getattr(self, key) for key in OPTIMIZER_SHORTCUTS}
        for key in ("dataset", "model", "policy", "correction", "optimizer", "partition", "compute"):
            keys[key] = component_identity(getattr(self, key))
        for key, default in NEW_STAGES.items():  # a default does not change the ids of version 0.2
            keys[key] = None if str(getattr(self, key)) == default else component_identity(getattr(self, key))
        for key in ("delay", "link", "churn", "metrics"):
            keys[key] = [component_identity(law) for law in getattr(self, key)]
        for key in ("server_link", "cores"):
            keys[key] = None if (value := getattr(self, key)) is None else component_identity(value)
        keys["engine"] = identify_engine(self.engine)
        keys["train_metrics"] = {"end": False, "always": True}.get(keys["train_metrics"], "never")
        if self.loss is not None:
            keys["loss"] = self.loss.identity()
        defaults = {key: field.get_default() for key, field in type(self).model_fields.items()}
        return {
            key: value
            for key, value in keys.items()
            if key != "method" and value is not None and (key in ORIGINAL_KEYS or value != defaults[key])
        }

    def to_dict(self) -> dict[str, Any]:
        """Return every setting as text and numbers, defaults included."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_toml(self) -> str:
        """Return the experiment as TOML. Custom Python objects appear by name."""
        return tomlkit.dumps(self.to_dict())

    def problem(
        self, folder: Path | None = None, report: Callable[[str], None] = lambda line: None
    ) -> Problem:
        """Load the data, divide it among the workers and build the model."""
        return build_problem(
            self.dataset,
            self.model.source if isinstance(self.model, CustomModel) else self.model,
            self.partition,
            workers=self.workers,
            batch_size=self.batch_sizes(),
            seed=self.seed,
            validation=self.validation,
            loss=None if self.loss is None else self.loss.function,
            metrics=self.metrics,
            computation=Computation(self.precision, self.channels_last, self.compile),
            folder=folder,
            report=report,
        )

    def server(self, problem: Problem) -> Server:
        """Return a server with the problem's initial model and this experiment's components."""
        x, buffers = problem.initial_model()
        rate = LearningRate(self.lr, self.schedule, self.warmup, self.workers)
        aggregation = choose_aggregation(self.policy, self.aggregation)
        components = self.policy, self.correction, aggregation, self.optimizer
        return Server(x, buffers, self.workers, *components, rate, self.program(problem), self.ema)

    def run(
        self,
        out: Path | str = "runs",
        jobs: int | None = None,
        force: bool = False,
        data: Path | None = None,
        progress: "Callable[[RunProgress], None] | None" = None,
        report: Callable[[str], None] = lambda line: None,
        checkpoint_every: str = "60s",
        worker_timeout: float = 60.0,
        address: str | None = None,
        worker_resources: Mapping[str, float] | None = None,
        device: "DeviceChoice" = "cpu",
        deterministic: bool = False,
        loader_workers: int = 0,
        callbacks: "Sequence[Callback]" = (),
        max_failures: int | None = None,
    ) -> Record:
        """Train, resume an interrupted run, or return the cached record. The record is in `out`/id."""
        from straggler.running.runner import RunOptions, run_experiment  # running imports this module

        where = worker_timeout, address, worker_resources, device, deterministic, loader_workers, callbacks
        options = RunOptions(out, jobs, force, data, progress, report, checkpoint_every, *where, max_failures)
        return run_experiment(self, options)


# Pydantic's own signature shows validators and serializers; users need names and defaults.
Experiment.__signature__ = Signature(
    [
        Parameter(name, Parameter.KEYWORD_ONLY, default=field.get_default())
        for name, field in Experiment.model_fields.items()
    ]
)
