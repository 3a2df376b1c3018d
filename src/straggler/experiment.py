"""Experiment: everything that determines a run; its hash is the run's id."""

import hashlib
import json
import math
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomlkit
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from straggler.algorithms.corrections import correction_of
from straggler.algorithms.methods import METHODS
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.algorithms.policies import POLICIES
from straggler.algorithms.schedules import LearningRate
from straggler.config.custom import (
    CUSTOM_LOSS_REMARK,
    CustomModel,
    component_identity,
    custom_keys,
)
from straggler.config.fingerprints import fingerprint
from straggler.config.registry import CatalogueEntry, InputError, explain_validation_error, suggest_name
from straggler.config.settings import (
    BUDGETS,
    SHARED_SETTINGS,
    Text,
    check_formula,
    check_memory,
    check_real_time,
    choice,
    dataset_of,
    fewest_and_most,
    laws_of,
    model_of,
    overridden,
    with_shared_settings,
)
from straggler.core import Correction, Optimizer, Policy, Problem, Server
from straggler.core.loop import Budget
from straggler.problems.construction import build_problem
from straggler.problems.partitions import PARTITIONS, Partition
from straggler.problems.quadratic import QuadraticData
from straggler.problems.supervised import LossFunction
from straggler.record import Record
from straggler.running.observer import RunProgress
from straggler.timing import DELAYS, Durations, Law


class Experiment(BaseModel):
    """What is trained, how, by whom, how fast they are, and for how long."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False)

    dataset: Annotated[Any, BeforeValidator(dataset_of), *Text] = Field(
        "fashion-mnist", validate_default=True
    )
    model: Annotated[Any, BeforeValidator(model_of), *Text] = Field("lenet5", validate_default=True)
    loss: LossFunction | None = Field(None, exclude=True)  # Python only; cross entropy

    method: str = Field("asgd", exclude=True)  # a name for the three that follow
    policy: Annotated[Policy, *choice(POLICIES)]
    correction: Annotated[Correction, BeforeValidator(correction_of), *Text]
    optimizer: Annotated[Optimizer, *choice(OPTIMIZERS)]
    lr: float = Field(0.01, gt=0, lt=1e30)
    momentum: float | None = None  # None: the optimizer's own default
    nesterov: bool | None = None
    weight_decay: float | None = None
    schedule: str = "constant"  # any torch.optim.lr_scheduler, per epoch
    warmup: float = Field(0.0, ge=0)  # epochs of linear warm-up from lr/workers

    workers: int = Field(4, ge=1)  # (min, max) or "min-max": in real time they may come and go
    min_workers: int | None = Field(None, ge=1)  # fewer are waited for; None: all
    batch_size: int = Field(32, ge=1)  # per worker
    partition: Annotated[Partition, *choice(PARTITIONS)] = Field("iid", validate_default=True)
    validation: float = Field(0.0, ge=0, lt=1)  # part of the training set kept apart
    compute: Annotated[Law, *choice(DELAYS)] = Field("constant(seconds=1)", validate_default=True)
    delay: Annotated[list[Annotated[Law, *choice(DELAYS)]], BeforeValidator(laws_of)] = []

    epochs: float | None = Field(None, gt=0)
    updates: int | None = Field(None, gt=0)
    gradients: int | None = Field(None, gt=0)
    seconds: float | None = Field(None, gt=0)
    stop: Literal["all", "each"] = "all"  # each: every worker stops after its own share

    engine: Literal["simulator", "processes", "ray"] = "simulator"  # virtual time, or real workers
    seed: int = Field(0, ge=0)
    eval_every: float = Field(1.0, ge=0)  # epochs; 0: only at the end
    train_metrics: bool = False  # also the training set at every evaluation, not only at the end
    snapshots: int = Field(0, ge=0)  # weights kept along the run, for landscapes

    @classmethod
    def from_toml(cls, path: Path | str, **changes: Any) -> Self:
        """Read a TOML file; keyword arguments win."""
        with Path(path).open("rb") as file:
            return cls(**overridden(tomllib.load(file), changes))

    @classmethod
    def recorded(cls, record: Record, but: Collection[str] = ()) -> Self:
        """The experiment of a record, if text can hold it; what it cannot hold of `but` is the default."""
        given = custom_keys(record.settings, record.text)
        settings = {key: value for key, value in record.settings.items() if key not in given}
        if missing := [f"{'an' if key[0] == 'o' else 'a'} {key}" for key in given if key not in but]:
            raise InputError(
                f"{record.path} has {' and '.join(missing)} given in Python, which its text cannot hold; "
                f"in Python its run() resumes it, and replay(record, experiment) replays it"
            )
        return cls(**settings)

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise InputError(explain_validation_error(error, type(self).model_fields)) from error

    @model_validator(mode="before")
    @classmethod
    def _name_the_pieces(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """A method stands for its pieces; a piece that is given wins."""
        settings = settings | fewest_and_most(settings.get("workers"))
        name = settings.get("method", "asgd")
        if not isinstance(name, str) or name not in METHODS:
            raise ValueError(f"unknown method {name!r}; {suggest_name(str(name), METHODS)}")
        method = METHODS[name]
        pieces = {"policy": method.policy, "correction": method.correction, "optimizer": method.optimizer}
        given = {key: value for key, value in settings.items() if value is not None}
        wrong = given.get("policy")
        if isinstance(wrong, str) and wrong in METHODS.keys() - POLICIES.keys():
            raise ValueError(
                f"policy={wrong}: that is a method, which has a policy; give it as method={wrong}"
            )
        settings = pieces | given
        settings["optimizer"] = with_shared_settings(settings, own="optimizer" in given)
        for key in SHARED_SETTINGS:  # an optimizer that has them says what they are
            settings[key] = getattr(settings["optimizer"], key, None)
        if not any(budget in settings for budget in BUDGETS):
            settings["epochs"] = 1
        return settings

    @model_validator(mode="after")
    def _check(self) -> Self:
        budgets = [budget for budget in BUDGETS if getattr(self, budget) is not None]
        if len(budgets) > 1:
            raise ValueError(f"{' and '.join(budgets)} are given; a run has one budget, choose one")
        if self.stop == "each" and budgets[0] not in ("epochs", "gradients"):
            raise ValueError(
                f"stop=each counts each worker's share, which {budgets[0]} have not; give epochs or gradients"
            )
        if self.min_workers is not None:
            pair = f"workers=({self.min_workers}, {self.workers})"
            if self.min_workers > self.workers:
                raise ValueError(f"{pair}: the least comes first; swap them")
            if self.stop == "each":
                raise ValueError(f"{pair}: with stop=each everybody has a share to do; use stop=all")
        if METHODS[self.method].single and self.workers != 1:
            raise ValueError(
                f"{self.method} has one worker, not {self.workers}; use workers=1, or asgd or ssgd"
            )
        if self.optimizer.per_worker and self.policy.merges(self.workers):
            raise ValueError(
                f"{self.optimizer} keeps a velocity per worker, but {self.policy} merges several in a step; "
                f"use the asynchronous policy, or sgd(momentum=…)"
            )
        self.policy.check(self.workers)
        self.correction.check(self.policy, self.optimizer)
        check_real_time(self.engine, self.delay)
        if isinstance(self.dataset, QuadraticData):
            check_formula(self.dataset, self.model, self.partition, self.validation, self.loss)
        self.check_schedule(self.epochs or 1.0)
        Durations(self.compute, self.delay, self.workers, self.seed).try_some()
        return self

    def check_schedule(self, epochs: float) -> None:
        """Raise if the schedule fails within this many epochs, or within the first thousand."""
        LearningRate(self.lr, self.schedule)(min(epochs, 1000.0))

    @property
    def id(self) -> str:
        """A short hash of everything that determines the run and what is recorded of it."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:12]

    def identity(self) -> dict[str, Any]:
        """Every setting of every piece, with fingerprints of what text cannot hold."""
        keys = self.resolved()
        for key in keys:
            if isinstance(value := getattr(self, key), CatalogueEntry):
                keys[key] = component_identity(value)
        keys["delay"] = [component_identity(law) for law in self.delay]
        return keys if self.loss is None else keys | {"loss": fingerprint(self.loss)}

    def resolved(self) -> dict[str, Any]:
        """Every key as text and numbers, defaults included."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_toml(self) -> str:
        """As `from_toml` reads it; what was given in Python is named."""
        remark = "" if self.loss is None else f"{CUSTOM_LOSS_REMARK}{self.loss!r} (given in Python)\n"
        return remark + tomlkit.dumps(self.resolved())

    def problem(
        self, folder: Path | None = None, report: Callable[[str], None] = lambda line: None
    ) -> Problem:
        """Load the data, deal it to the workers, build the model."""
        return build_problem(
            self.dataset,
            self.model.source if isinstance(self.model, CustomModel) else self.model,
            self.partition,
            workers=self.workers,
            batch_size=self.batch_size,
            seed=self.seed,
            validation=self.validation,
            loss=self.loss,
            folder=folder,
            report=report,
        )

    def server(self, problem: Problem) -> Server:
        x, buffers = problem.initial_model()
        rate = LearningRate(self.lr, self.schedule, self.warmup, self.workers)
        pieces = self.policy, self.correction, self.optimizer
        server = Server(x, buffers, self.workers, *pieces, rate, problem.samples)
        check_memory(server)
        return server

    def budget(self, problem: Problem) -> Budget:
        limits = {key: getattr(self, key) for key in BUDGETS if getattr(self, key) is not None}
        if self.stop == "all":
            return Budget(**limits)
        if self.gradients is not None:
            return Budget(shares=[-(-self.gradients // self.workers)] * self.workers)
        assert self.epochs is not None
        batches = map(problem.count_batches, range(self.workers))
        return Budget(shares=[math.ceil(round(self.epochs * each, 9)) for each in batches])

    def run(
        self,
        out: Path | str = "runs",
        jobs: int | None = None,
        force: bool = False,
        data: Path | None = None,
        progress: Callable[[RunProgress], None] | None = None,
        report: Callable[[str], None] = lambda line: None,
        checkpoint_every: str = "60s",
        worker_timeout: float = 60.0,
        address: str | None = None,
        worker_resources: Mapping[str, float] | None = None,
    ) -> Record:
        """Train, resume an interrupted run, or return the cached record. The record is in `out`/id."""
        from straggler.running.runner import run_experiment  # running imports this module

        return run_experiment(
            self,
            out=out,
            jobs=jobs,
            force=force,
            data=data,
            progress=progress,
            report=report,
            checkpoint_every=checkpoint_every,
            worker_timeout=worker_timeout,
            address=address,
            worker_resources=worker_resources,
        )
