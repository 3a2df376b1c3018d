"""The settings of an experiment: type, default, description and rule of each field."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from straggler.algorithms.aggregations import AGGREGATIONS
from straggler.algorithms.corrections import parse_correction
from straggler.algorithms.policies import POLICIES
from straggler.algorithms.schedules import coerce_schedule
from straggler.algorithms.work import WORK
from straggler.config.custom import CustomLoss, parse_loss, parse_metrics, parse_model
from straggler.config.settings import (
    as_text,
    component,
    parse_batch_size,
    parse_channel,
    parse_cores,
    parse_dataset,
    parse_laws,
    parse_server_link,
    parse_train_metrics,
)
from straggler.config.targets import parse_until
from straggler.core import Aggregation, Channel, Correction, Optimizer, Policy, Work
from straggler.engines import parse_engine
from straggler.problems.computation import Precision
from straggler.problems.metrics import Metric
from straggler.problems.partitions import PARTITIONS, Partition
from straggler.record import MAX_WORKERS
from straggler.timing import DELAYS, Law
from straggler.timing.churn import CHURN, ChurnLaw
from straggler.timing.cores import Cores
from straggler.timing.links import LINKS, Link

DATA, METHOD, WORKERS, BUDGET, RECORD = "Data and model", "Method", "Workers", "Budget", "Recording"


def setting(default: Any, panel: str, description: str, **rules: Any) -> Any:
    """Return a field with the description that `--help`, the JSON schema and docs/settings.md share."""
    return Field(default, description=description, json_schema_extra={"panel": panel}, **rules)


class ExperimentFields(BaseModel):
    """The fields of Experiment. Their descriptions are shared by `--help`, docs and JSON schema."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False)

    dataset: Annotated[Any, BeforeValidator(parse_dataset), *as_text("A data set")] = setting(
        "fashion-mnist",
        DATA,
        "Data: `straggler list datasets`, a (train, test) pair of Datasets, tensors, or an import string.",
        validate_default=True,
    )
    model: Annotated[Any, BeforeValidator(parse_model), *as_text("A model")] = setting(
        "lenet5",
        DATA,
        "Model: `straggler list models`, an nn.Module, a function that returns one, or an import string.",
        validate_default=True,
    )
    loss: Annotated[CustomLoss | None, BeforeValidator(parse_loss), *as_text("A loss")] = setting(
        None, DATA, "Loss of (output, target): a name in torch.nn.functional, such as mse_loss, or an "
        "import string. Default: cross entropy."
    )  # fmt: skip
    validation: float = setting(
        0.0, DATA, "Share of the training set that is held out as a validation set.", ge=0, lt=1
    )

    precision: Precision = setting(
        "float32", DATA, "Precision of the forward and backward pass: float32, bf16 or fp16 (autocast). "
        "Weights and the server stay in float32."
    )  # fmt: skip
    channels_last: bool = setting(False, DATA, "Store images with their channels last, for convolutions.")
    compile: bool = setting(False, DATA, "Compute gradients with torch.compile; requires a C++ compiler.")

    method: str | None = setting(
        None,
        METHOD,
        "Policy, correction and optimizer by a method's name: `straggler list methods`. Default: asgd.",
    )
    work: Annotated[Work, *component(WORK)] = setting(
        None, METHOD, "What a job computes at the worker: `straggler list work`. Default: gradient."
    )
    channel: Annotated[Channel, BeforeValidator(parse_channel), *as_text("A channel")] = setting(
        None, METHOD, "How messages and models are encoded: `straggler list channels`. Default: exact."
    )
    policy: Annotated[Policy, *component(POLICIES)] = setting(
        None, METHOD, "When the server steps, and which workers start again: `straggler list policies`."
    )
    correction: Annotated[Correction, BeforeValidator(parse_correction), *as_text("Corrections")] = setting(
        None, METHOD, "How a stale gradient is changed before it is used: `straggler list corrections`."
    )
    aggregation: Annotated[Aggregation, *component(AGGREGATIONS)] = setting(
        None,
        METHOD,
        "How the messages of a step become one direction: `straggler list aggregations`. Default: mean.",
    )
    optimizer: Annotated[Optimizer, *as_text("An optimizer")] = setting(
        None, METHOD, "How the model moves: any torch.optim class, such as 'adam(betas=[0.9, 0.99])', or "
        "`straggler list optimizers`."
    )  # fmt: skip
    lr: float = setting(0.01, METHOD, "Learning rate.", gt=0, lt=1e30)
    momentum: float | None = setting(None, METHOD, "Momentum of the optimizer (a shortcut).", exclude=True)
    nesterov: bool | None = setting(
        None, METHOD, "Whether the optimizer's momentum is Nesterov's (a shortcut).", exclude=True
    )
    weight_decay: float | None = setting(
        None, METHOD, "Weight decay of the optimizer (a shortcut).", exclude=True
    )
    schedule: Annotated[str, BeforeValidator(coerce_schedule)] = setting(
        "constant", METHOD, "Learning-rate schedule per epoch: any torch.optim.lr_scheduler, such as "
        "'multistep(milestones=[40, 60])'."
    )  # fmt: skip
    warmup: float = setting(0.0, METHOD, "Epochs of linear warm-up from lr/workers.", ge=0)
    ema: float = setting(
        0.0,
        METHOD,
        "Decay per update of a moving average of the model, which is evaluated instead of the model.",
        ge=0,
        lt=1,
    )
    seed: int = setting(0, METHOD, "Seed of everything that is random: weights, batches, durations.", ge=0)

    engine: Annotated[str, BeforeValidator(parse_engine)] = setting(
        "simulator",
        WORKERS,
        "simulator (virtual time), processes (real time, this machine), ray (real time, a cluster), or the "
        "import string of an engine.",
    )
    workers: int = setting(
        4, WORKERS, "Number of workers. `2-8`: workers may come and go in real time.", ge=1, le=MAX_WORKERS
    )
    min_workers: int | None = setting(
        None, WORKERS, "Fewest workers with which a run in real time continues. Default: all.", ge=1
    )
    batch_size: Annotated[int | list[int] | str, BeforeValidator(parse_batch_size)] = setting(
        32,
        WORKERS,
        "Samples per gradient. `[16, 64]`: of each worker. `balanced(32)`: in proportion to the workers' "
        "speeds, with this mean.",
    )
    partition: Annotated[Partition, *component(PARTITIONS)] = setting(
        "iid",
        WORKERS,
        "How the training set is divided among workers: `straggler list partitions`.",
        validate_default=True,
    )
    compute: Annotated[Law, *component(DELAYS)] = setting(
        "constant(seconds=1)",
        WORKERS,
        "Seconds per gradient in virtual time: `straggler list delays`.",
        validate_default=True,
    )
    delay: Annotated[list[Annotated[Law, *component(DELAYS)]], BeforeValidator(parse_laws)] = setting(
        [], WORKERS, "Additional seconds per job, one law or several: `straggler list delays`."
    )

    link: Annotated[list[Annotated[Link, *component(LINKS)]], BeforeValidator(parse_laws)] = setting(
        [],
        WORKERS,
        "Connections of workers in virtual time, as in 'link(latency=0.05, up=1e6, down=4e6)' (bytes per "
        "second), for all workers or some.",
    )
    server_link: Annotated[Link | None, BeforeValidator(parse_server_link), *as_text("A link")] = setting(
        None, WORKERS, "Connection of the server in virtual time, which all workers share."
    )
    churn: Annotated[list[Annotated[ChurnLaw, *component(CHURN)]], BeforeValidator(parse_laws)] = setting(
        [], WORKERS, "When workers come and go in virtual time: `straggler list churn`."
    )
    cores: Annotated[Cores | None, BeforeValidator(parse_cores), *as_text("Shared cores")] = setting(
        None,
        WORKERS,
        "Cores that workers and server share in virtual time, as in 'cores(2, slice=0.001, server=0.0004)'. "
        "Compute times are then CPU times. Default: a core for each.",
    )

    epochs: float | None = setting(
        None, BUDGET, "Passes over the training set by all workers together. Default: 1.", gt=0
    )
    updates: int | None = setting(None, BUDGET, "Server steps.", gt=0)
    gradients: int | None = setting(None, BUDGET, "Gradients of all workers together.", gt=0)
    seconds: float | None = setting(None, BUDGET, "Virtual seconds; wall-clock seconds in real time.", gt=0)
    until: Annotated[str | None, BeforeValidator(parse_until)] = setting(
        None,
        BUDGET,
        "A target that ends the run at the first evaluation that reaches it, such as 'test_accuracy >= 80': "
        "a column of the curve, >= or <=, and a number. It requires one of the limits above too.",
    )
    stop: Literal["all", "each"] = setting(
        "all",
        BUDGET,
        "all: all workers stop together. each: every worker stops after its share of the budget.",
    )

    eval_every: float = setting(1.0, RECORD, "Epochs between evaluations; 0 evaluates only at the end.", ge=0)
    train_metrics: Annotated[
        Literal["never", "end", "always"] | None, BeforeValidator(parse_train_metrics)
    ] = setting(
        None, RECORD, "When the training set is evaluated: never, end (of the run), or always (at every "
        "evaluation). Default: end, but never for a lazy Dataset."
    )  # fmt: skip
    metrics: Annotated[list[Annotated[Metric, *as_text("A metric")]], BeforeValidator(parse_metrics)] = (
        setting(
            [],
            RECORD,
            "Metrics besides loss and accuracy: `straggler list metrics`, functions of (outputs, targets), "
            "or import strings.",
        )
    )
    snapshots: int = setting(0, RECORD, "Number of copies of the weights to keep, for landscapes.", ge=0)
