"""How the settings of an experiment are read: from texts, tables, tensors or modules."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from straggler.algorithms.methods import METHODS
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.config.custom import CustomModel, format_component
from straggler.config.registry import Catalogue, CatalogueEntry, InputError, build_entry, parse_entry
from straggler.core import Optimizer, Problem, Server
from straggler.problems.custom_data import CustomData
from straggler.problems.datasets import DATASETS, Mixture
from straggler.problems.models import MODELS
from straggler.problems.quadratic import QuadraticData
from straggler.running.checkpoints import encode_value
from straggler.timing import Law

BUDGETS = ("epochs", "updates", "gradients", "seconds")
PIECES = ("policy", "correction", "optimizer")
SHARED_SETTINGS = ("momentum", "nesterov", "weight_decay")  # of optimizers that are also keys of their own
Text = (PlainSerializer(format_component), WithJsonSchema({"type": "string"}))


PROBLEM_DATA: Catalogue[CatalogueEntry] = Catalogue(
    "data set",
    "datasets",
    CatalogueEntry,
    [*DATASETS.built_in.values(), QuadraticData],
    {"synthetic": Mixture},
)


def choice(catalogue: Catalogue[Any]) -> tuple[BeforeValidator, PlainSerializer, WithJsonSchema]:
    """An entry of a catalogue, or one of the user's own: checked when read, written as its text."""
    return (
        BeforeValidator(lambda value: parse_entry(value, catalogue)),
        PlainSerializer(format_component),
        WithJsonSchema(
            {"type": "string", "description": f"{catalogue.what}: {', '.join(catalogue.built_in)}"}
        ),
    )


def dataset_of(value: Any) -> Any:
    if isinstance(value, str | dict | CatalogueEntry):
        return parse_entry(value, PROBLEM_DATA)
    if isinstance(value, CustomData):
        return value
    return CustomData(value if isinstance(value, tuple | list) else (value,))


def model_of(value: Any) -> Any:
    if isinstance(value, str | dict) or type(value) in MODELS.values():
        return parse_entry(value, MODELS)
    return value if isinstance(value, CustomModel) else CustomModel(value)


def fewest_and_most(workers: Any) -> dict[str, Any]:
    """`(2, 8)` or `2-8` workers as the two settings it stands for."""
    if isinstance(workers, str) and (numbers := re.fullmatch(r"(-?\d+)(?:-(\d+))?", workers.strip())):
        workers = [int(number) for number in numbers.groups() if number is not None]
    if isinstance(workers, list | tuple) and 1 <= len(workers) <= 2:
        pair = {"workers": workers[-1]}
        return pair | {"min_workers": workers[0]} if len(workers) == 2 else pair
    return {}


def check_real_time(engine: str, delays: Sequence[Law]) -> None:
    """There a gradient takes what it takes: nothing is drawn that could be multiplied."""
    for law in delays:
        if law.multiplies and engine != "simulator":
            raise ValueError(
                f"delay={law}: it multiplies a compute time that is drawn, and engine={engine} measures it; "
                f"use a law in seconds, or the simulator"
            )


def check_memory(server: Server) -> None:
    """A piece of one's own may remember only what a checkpoint can hold."""
    for piece in (server.policy, server.correction, server.optimizer):
        try:
            encode_value(piece.state(), {})
        except TypeError as error:
            remedy = "let it remember numbers, texts, tensors, and lists, tuples and dicts of these"
            raise ValueError(f"{piece}: {error}; {remedy}") from None


def check_formula(dataset: QuadraticData, model: Any, partition: Any, validation: float, loss: Any) -> None:
    """What would change nothing is refused, unless it is as it would be anyway."""
    said = {"model": str(model), "partition": str(partition), "validation": validation, "loss": loss}
    for key, default in {"model": "lenet5", "partition": "iid", "validation": 0.0, "loss": None}.items():
        if said[key] != default:
            raise ValueError(f"{key}={said[key]}: {dataset.name} is a formula, without a {key}; leave it out")


def remarks(
    engine: str, compute: Law, workers: int, fewest: int | None, batch_size: int, problem: Problem
) -> Iterator[str]:
    """What a user may not expect of these settings."""
    if engine == "simulator" and fewest not in (None, workers):
        yield f"in virtual time all {workers} workers are there from the start to the end"
    if engine != "simulator" and str(compute) != "constant(seconds=1.0)":
        yield f"compute={compute} is for virtual time; here a gradient takes what it takes"
    sizes = {problem.batch_samples(worker, 0): worker for worker in reversed(range(workers))}
    if (smallest := min(sizes)) < batch_size:
        who = f"worker {sizes[smallest]}"
        yield f"batch_size={batch_size} is more than {who} has, whose batches have {smallest}"


def with_shared_settings(settings: Mapping[str, Any], own: bool) -> Optimizer:
    """The optimizer with momentum, nesterov and weight decay from the keys of those names.

    What a method sets by default gives way; what the user wrote into the optimizer must agree.
    """
    optimizer = parse_entry(settings["optimizer"], OPTIMIZERS)
    changes = {}
    for key in SHARED_SETTINGS:
        if key not in settings:
            continue
        if not hasattr(optimizer, key):
            if settings[key]:
                raise ValueError(
                    f"{key}={settings[key]}: {optimizer.name} takes no {key}; leave it out, or use sgd"
                )
            continue
        if own and key in optimizer.model_fields_set and getattr(optimizer, key) != settings[key]:
            raise ValueError(f"{key} is given twice: {settings[key]}, and in {optimizer}; give one")
        changes[key] = settings[key]
    if all(getattr(optimizer, key) == value for key, value in changes.items()):
        return optimizer
    given = {key: getattr(optimizer, key) for key in optimizer.model_fields_set}
    return build_entry(type(optimizer), [], given | changes)


def overridden(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with changes, which win over all that they stand for.

    A method wins over the pieces (momentum and weight decay stay, if its optimizer has them), an optimizer
    over all that was set of the last one, one setting over the same in the optimizer's text, a budget over
    any other.
    """
    settings = dict(settings)
    replaced: set[str] = {"min_workers"} if "workers" in changes else set()
    if str(changes.get("method")) in METHODS and any(piece in settings for piece in PIECES):
        new = parse_entry(METHODS[changes["method"]].optimizer, OPTIMIZERS)
        replaced |= {*PIECES} | {key for key in SHARED_SETTINGS if not hasattr(new, key)}
        replaced |= {"nesterov"} & new.model_fields_set
    if "optimizer" in changes:
        replaced |= {"optimizer", *SHARED_SETTINGS}
    if any(budget in changes for budget in BUDGETS):
        replaced |= {*BUDGETS}
    if "optimizer" in settings and (set_anew := changes.keys() & {*SHARED_SETTINGS}):
        try:
            last = parse_entry(settings["optimizer"], OPTIMIZERS)
        except ValueError as error:
            raise InputError(str(error)) from None
        settings["optimizer"] = without(last, set_anew)
    return {key: value for key, value in settings.items() if key not in replaced} | dict(changes)


def without(entry: Any, keys: set[str]) -> dict[str, Any]:
    """An entry of a catalogue as a table, some of its settings left open."""
    return {"name": entry.name} | {key: getattr(entry, key) for key in entry.model_fields_set - keys}


def laws_of(value: Any) -> Any:
    return [value] if isinstance(value, str | dict | Law) else value
