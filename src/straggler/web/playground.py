"""The playground: what the page offers, generated from the catalogues, and the settings that it may send."""

import json
import math
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import polars as pl
import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo
from pydantic.fields import FieldInfo

from straggler.algorithms.aggregations import AGGREGATIONS
from straggler.algorithms.corrections import CORRECTIONS
from straggler.algorithms.methods import METHODS, Method
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.algorithms.policies import POLICIES
from straggler.algorithms.work import WORK
from straggler.config.imports import UntrustedImportError, refuse_import_strings
from straggler.config.registry import (
    Catalogue,
    CatalogueEntry,
    InputError,
    explain_validation_error,
    parse_entry,
    suggest_name,
)
from straggler.experiment import Experiment
from straggler.problems.models import MODELS
from straggler.timing import DELAYS
from straggler.timing.churn import CHURN
from straggler.timing.links import LINKS
from straggler.web.report import read_static
from straggler.web.ziggurat import read_ziggurat_widths

MAX_LOCAL_STEPS = 1000
STAGES: dict[str, Catalogue[Any]] = {
    "policy": POLICIES,
    "work": WORK,
    "correction": CORRECTIONS,
    "aggregation": AGGREGATIONS,
    "optimizer": OPTIMIZERS,
}
CLUSTER: dict[str, Catalogue[Any]] = {"compute": DELAYS, "delay": DELAYS, "link": LINKS, "churn": CHURN}
# Not offered: laws that need files or the samples of a data set, which a page does not have. A policy, law
# or aggregation that static/play_*.js do not simulate belongs here too.
LEFT_OUT = {"trace", "churn-trace", "by-label", "by-length"}
LIMITS = {"ge": "min", "gt": "above", "le": "max", "lt": "below"}


@cache
def list_choices() -> dict[str, Any]:
    """Return everything the playground offers."""
    choices: dict[str, Any] = json.loads(read_static("playground.json"))
    cluster = {
        key: {
            name: describe_class(entry)
            for name, entry in catalogue.built_in.items()
            if name not in LEFT_OUT and not (key == "compute" and getattr(entry, "multiplies", False))
        }
        for key, catalogue in CLUSTER.items()
    }
    return choices | {
        "methods": {name: describe_method(method) for name, method in METHODS.items() if is_offered(method)},
        "cluster": cluster,
        "bytes": count_model_bytes(choices["shapes"], choices["models"]),
        "ziggurat": read_ziggurat_widths(),
        "races": json.loads(read_static("races.json")),
    }


def is_offered(method: Method) -> bool:
    """Return whether the page can simulate a method on several workers."""
    used = {parse_entry(getattr(method, key), STAGES[key]).name for key in ("policy", "work", "aggregation")}
    return not method.single and not used & LEFT_OUT


def describe_method(method: Method) -> dict[str, Any]:
    """Return a method's summary, citation and learning rate, and the settings of its stages."""
    stages = {}
    for key, catalogue in STAGES.items():
        parts = [parse_entry(text, catalogue) for text in getattr(method, key).split(" + ")]
        stages[key] = [describe_class(type(part)) | describe_values(part) for part in parts]
    return {"text": method.summary, "paper": method.citation, "lr": method.lr, "stages": stages}


def describe_class(entry: type[CatalogueEntry]) -> dict[str, Any]:
    """Return the name and summary of a catalogue's entry, and its fields with types and limits."""
    fields = {key: describe_field(field) for key, field in entry.model_fields.items()}
    return {"name": entry.name, "text": (entry.__doc__ or "").split("\n")[0], "fields": fields}


def describe_values(entry: CatalogueEntry) -> dict[str, Any]:
    """Return the values of an entry's settings, as JSON has them."""
    return {"values": {key: encode_value(getattr(entry, key)) for key in type(entry).model_fields}}


def describe_field(field: FieldInfo) -> dict[str, Any]:
    """Return the type of a field, its limits, and its default if it has one."""
    types_of_field = [each for each in list_types(field.annotation) if each is not type(None)]
    first, described = types_of_field[0], dict[str, Any]()
    if get_origin(first) is Literal:
        described |= {"type": "choice", "choices": list(get_args(first))}
    elif first in (bool, int, float):
        described["type"] = {bool: "boolean", int: "integer", float: "number"}[first]
    else:
        described["type"] = "list" if get_origin(first) is tuple else "text"
    for rule in field.metadata:
        described |= {name: getattr(rule, key) for key, name in LIMITS.items() if hasattr(rule, key)}
    if not field.is_required():
        described["default"] = encode_value(field.get_default(call_default_factory=True))
    return described


def list_types(annotation: Any) -> list[Any]:
    """Return the types of a union, without the rules that are attached to them."""
    if get_origin(annotation) is Annotated:
        return list_types(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [each for part in get_args(annotation) for each in list_types(part)]
    return [annotation]


def encode_value(value: Any) -> Any:
    """Return a setting as JSON has it; infinity and components become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple):
        return [encode_value(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def count_model_bytes(shapes: Mapping[str, list[int]], models: Mapping[str, str]) -> dict[str, Any]:
    """Return the bytes of each model on each data set where it fits: four per parameter."""
    found: dict[str, Any] = {}
    with torch.device("meta"):  # no memory is allocated
        for dataset, shape in shapes.items():
            fitting = {name: MODELS[name] for name in models if MODELS[name].fits(tuple(shape))}
            networks = {name: model().network(tuple(shape), 10) for name, model in fitting.items()}
            found[dataset] = {
                name: 4 * sum(each.numel() for each in network.parameters())
                for name, network in networks.items()
            }
    return found


def check_offered(value: str, info: ValidationInfo) -> str:
    """Check a setting that decides how much memory and time a run takes against the offered values."""
    offered = list_choices()[f"{info.field_name}s"]
    if value not in offered:
        raise ValueError(f"{value[:80]!r} is not offered on this page. {suggest_name(value, offered)}")
    return value


def refuse_traces(value: str) -> str:
    if "trace" in value:
        raise ValueError("a page may not read trace files. Use the command line.")
    return value


def limit_local_steps(value: str) -> str:
    """Check the number of local steps, which decides how much memory the durations take."""
    with refuse_import_strings("This page"):
        steps = parse_entry(value, WORK).count_batches(1.0)
    if steps > MAX_LOCAL_STEPS:
        raise ValueError(f"a job may have at most {MAX_LOCAL_STEPS} batches on this page, got {steps}.")
    return value


Offered = Annotated[str, AfterValidator(check_offered)]
PageText = Annotated[str, Field(max_length=500), AfterValidator(refuse_traces)]
PageTexts = Annotated[list[PageText], Field(max_length=10)]


class PlaygroundSettings(BaseModel):
    """The settings that a page may send."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    dataset: Offered = "digits"
    model: Offered = "mlp"
    partition: Offered = "iid"
    method: PageText = "asgd"
    policy: PageText | None = None
    work: Annotated[PageText, AfterValidator(limit_local_steps)] | None = None
    correction: PageText | None = None
    aggregation: PageText | None = None
    optimizer: PageText | None = None
    workers: int = Field(8, le=256)
    compute: PageText = "constant(1)"
    delay: PageTexts = []
    link: PageTexts = []
    churn: PageTexts = []
    lr: float = 0.02
    momentum: float = 0.9
    epochs: float = Field(10, le=200)
    eval_every: float = 1
    seed: int = 0
    snapshots: int = Field(0, le=100)


def parse_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check the settings that a page sent."""
    try:
        return PlaygroundSettings(**values).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise InputError(explain_validation_error(error, PlaygroundSettings.model_fields)) from None
    except UntrustedImportError as error:
        raise InputError(str(error)) from None


def build_experiment(settings: Mapping[str, Any]) -> Experiment:
    with refuse_import_strings("This page"):  # a request must never execute code
        return Experiment(**settings)


def describe_simulation(experiment: Experiment, bytes_up: int, bytes_down: int) -> dict[str, Any]:
    """Return an experiment as the page's simulation takes it."""
    encode: Callable[[CatalogueEntry], dict[str, Any]] = lambda entry: {  # noqa: E731
        "name": entry.name,
        **describe_values(entry)["values"],
    }
    server_link = experiment.server_link
    return {
        **{key: encode(getattr(experiment, key)) for key in ("policy", "work", "aggregation", "compute")},
        **{key: [encode(law) for law in getattr(experiment, key)] for key in ("delay", "link", "churn")},
        "server_link": None if server_link is None else encode(server_link),
        "workers": experiment.workers,
        "seed": experiment.seed,
        "bytes_up": bytes_up,
        "bytes_down": bytes_down,
    }


def read_curve(table: pl.DataFrame) -> list[list[float]]:
    """Return seconds and test accuracy of each evaluation of a run, given its curve."""
    if "test_accuracy" not in table.columns:
        return []
    points = table.select("seconds", "test_accuracy").drop_nulls()
    return [[round(seconds, 4), round(accuracy, 3)] for seconds, accuracy in points.iter_rows()]


def build_race_settings(state: Mapping[str, Any], lane: str) -> dict[str, Any]:
    """Return the settings of one method of a race, exactly as the page sends them.

    The state has the keys of the page's address; those of a method begin with `a` or `b`.
    """
    epochs, slow = state["epochs"], min(state["slow"], state["workers"])
    settings = {key: state[key] for key in ("dataset", "model", "workers")}
    settings |= {"method": state[lane], "compute": state["compute"]}
    if state["partition"] != "iid":
        settings["partition"] = state["partition"]
    delay = [f"constant(seconds={state['slowness'] - 1}, workers={[*range(slow)]})"] if slow else []
    delay += [state["delay"]] if state["delay"] else []
    settings |= {"delay": delay} if delay else {}
    settings |= {key: [state[key]] for key in ("link", "churn") if state[key]}
    settings |= {key: state[f"{lane}.{key}"] for key in STAGES if f"{lane}.{key}" in state}
    settings |= {"lr": state[f"{lane}.lr"], "epochs": epochs, "eval_every": epochs / 40}
    return settings | ({"seed": state["seed"]} if state["seed"] else {})
