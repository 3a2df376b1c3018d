"""Parse, combine and check the settings of an experiment."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic.fields import FieldInfo

from straggler.algorithms.corrections import parse_correction
from straggler.algorithms.methods import METHODS
from straggler.algorithms.optimizers import OPTIMIZERS, coerce_optimizer, optimizer_from_torch
from straggler.algorithms.policies import POLICIES
from straggler.config.custom import format_component, parse_custom_data
from straggler.config.imports import IMPORTED, import_object, is_import_string
from straggler.config.registry import (
    Catalogue,
    CatalogueEntry,
    InputError,
    build_entry,
    parse_call,
    parse_entry,
)
from straggler.core import Optimizer
from straggler.engines import is_virtual_engine
from straggler.problems.custom_data import CustomData
from straggler.problems.datasets import DATASETS, DataSet
from straggler.problems.quadratic import QuadraticData
from straggler.timing import Law

BUDGETS = ("epochs", "updates", "gradients", "seconds")
COMPONENTS = ("policy", "correction", "optimizer")
OPTIMIZER_SHORTCUTS = ("momentum", "nesterov", "weight_decay")  # settings that have keys of their own
MAX_WORKERS = 1_000_000
PROBLEM_DATA: Catalogue[Any] = Catalogue(
    "data set",
    "datasets",
    CatalogueEntry,
    [*DATASETS.built_in.values(), QuadraticData],
    aliases={"synthetic": DATASETS["synthetic"]},
)


def as_text(description: str) -> tuple[PlainSerializer, WithJsonSchema]:
    """Return the annotations of a field whose value is written as text."""
    return PlainSerializer(format_component), WithJsonSchema({"type": "string", "description": description})


def component(catalogue: Catalogue[Any]) -> tuple[BeforeValidator, PlainSerializer, WithJsonSchema]:
    """Return the annotations of a field for an entry of a catalogue or a custom component."""
    description = f"A {catalogue.what}: {', '.join(catalogue.built_in)}, or an import string"
    return (BeforeValidator(lambda value: parse_entry(value, catalogue)), *as_text(description))


def parse_dataset(value: Any) -> Any:
    """Return the data set that a text, a table, a tuple of tensors or a pair of Datasets stands for."""
    if isinstance(value, CustomData | DataSet | QuadraticData):
        return value
    if isinstance(value, str) and is_import_string(value):
        return parse_custom_data(value)
    if isinstance(value, str | dict | CatalogueEntry):
        return parse_entry(value, PROBLEM_DATA)
    return CustomData(value if isinstance(value, tuple | list) else (value,))


def parse_workers(workers: Any) -> dict[str, Any]:
    """Return the two settings that `(2, 8)` or `2-8` workers stand for."""
    if isinstance(workers, str) and (numbers := re.fullmatch(r"(-?\d+)(?:-(\d+))?", workers.strip())):
        workers = [int(number) for number in numbers.groups() if number is not None]
    if isinstance(workers, list | tuple) and 1 <= len(workers) <= 2:
        pair = {"workers": workers[-1]}
        return pair | {"min_workers": workers[0]} if len(workers) == 2 else pair
    return {}


def parse_laws(value: Any) -> Any:
    """Return a list of delay laws from one law or a list."""
    return value if isinstance(value, list | tuple) else [value]


def parse_train_metrics(value: Any) -> Any:
    """Return `always` or `end` for the true and false of version 0.1."""
    return {True: "always", False: "end"}.get(value, value) if isinstance(value, bool) else value


def parse_optimizer(value: Any) -> Optimizer:
    """Return the optimizer that text, an object, or a torch class (also by import string) stands for."""
    if isinstance(value, str) and is_import_string(value):
        name, _, settings = parse_call(value)
        target = import_object(name)
        if isinstance(target, type) and issubclass(target, torch.optim.Optimizer):
            optimizer = optimizer_from_torch(target, settings)
            IMPORTED[type(optimizer)] = IMPORTED[target]
            return optimizer
    return coerce_optimizer(value)


def apply_shortcuts(settings: Mapping[str, Any], is_explicit: bool) -> Optimizer:
    """Return the optimizer with the experiment's momentum, nesterov and weight decay.

    These keys replace the defaults of a method. If the optimizer was passed explicitly, they must not
    contradict it.
    """
    optimizer = parse_optimizer(settings["optimizer"])
    changes = {}
    for key in OPTIMIZER_SHORTCUTS:
        value = settings.get(key)
        if value is None:
            continue
        if not hasattr(optimizer, key):
            if value:
                raise ValueError(f"{key}={value}: {optimizer.name} has no {key}. Remove it, or use sgd.")
            continue
        if is_explicit and key in optimizer.model_fields_set and getattr(optimizer, key) != value:
            raise ValueError(f"{key} is set twice, to {value} and in {optimizer}. Set it once.")
        changes[key] = value
    if all(getattr(optimizer, key) == value for key, value in changes.items()):
        return optimizer
    explicit = {key: getattr(optimizer, key) for key in optimizer.model_fields_set}
    return build_entry(type(optimizer), [], explicit | changes)


def override_settings(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with changes, which replace all settings that they imply.

    A method replaces policy, correction and optimizer, but keeps the momentum and weight decay that were
    set, if its optimizer has them. An optimizer replaces all settings of the last one. A budget replaces any
    other.
    """
    settings = dict(settings)
    if "workers" in changes:
        settings.pop("min_workers", None)
    if any(budget in changes for budget in BUDGETS):
        remove_keys(settings, BUDGETS)
    if "optimizer" in changes:
        remove_keys(settings, ("optimizer", *OPTIMIZER_SHORTCUTS))
    if str(changes.get("method")) in METHODS:
        new = parse_entry(METHODS[changes["method"]].optimizer, OPTIMIZERS)
        set_before = list_optimizer_settings(settings)
        remove_keys(settings, (*COMPONENTS, *OPTIMIZER_SHORTCUTS))
        for key, value in set_before.items():
            if hasattr(new, key) and not (key == "nesterov" and key in new.model_fields_set):
                settings[key] = value
    elif "optimizer" in settings and (replaced := changes.keys() & {*OPTIMIZER_SHORTCUTS}):
        last = parse_recorded_optimizer(settings["optimizer"])
        explicit = {key: getattr(last, key) for key in last.model_fields_set - replaced}
        settings["optimizer"] = {"name": last.name} | explicit
    return settings | dict(changes)


def list_optimizer_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the momentum, nesterov and weight decay that were set, as keys or in the optimizer's text."""
    set_before = {key: settings[key] for key in OPTIMIZER_SHORTCUTS if settings.get(key) is not None}
    if "optimizer" in settings:
        last = parse_recorded_optimizer(settings["optimizer"])
        explicit = last.model_fields_set & {*OPTIMIZER_SHORTCUTS}
        set_before = {key: getattr(last, key) for key in explicit} | set_before
    return set_before


def parse_recorded_optimizer(value: Any) -> Optimizer:
    """Return the optimizer in settings; raise InputError if it is invalid."""
    try:
        return parse_optimizer(value)
    except ValueError as error:
        raise InputError(str(error)) from None


def remove_keys(settings: dict[str, Any], keys: Iterable[str]) -> None:
    """Delete these keys from settings, if present."""
    for key in keys:
        settings.pop(key, None)


@cache
def parse_method(name: str) -> dict[str, Any]:
    """Return the policy, correction and optimizer of a method."""
    method = METHODS[name]
    return {
        "policy": parse_entry(method.policy, POLICIES),
        "correction": parse_correction(method.correction),
        "optimizer": parse_entry(method.optimizer, OPTIMIZERS),
    }


def find_method(components: Mapping[str, Any]) -> str | None:
    """Return the method that has these components, whatever its momentum and weight decay, or None."""
    optimizer = components["optimizer"]
    for name in METHODS:
        row = parse_method(name)
        same = all(str(row[key]) == str(components[key]) for key in ("policy", "correction"))
        same_optimizer = type(row["optimizer"]) is type(optimizer)
        same_nesterov = getattr(row["optimizer"], "nesterov", None) == getattr(optimizer, "nesterov", None)
        if same and same_optimizer and same_nesterov and not METHODS[name].single:
            return name
    return None


def check_engine_delays(engine: str, delays: Sequence[Law]) -> None:
    """Raise ValueError if a delay scales simulated compute times but the engine runs in real time."""
    for law in delays:
        if law.multiplies and not is_virtual_engine(engine):
            raise ValueError(
                f"delay={law} scales a simulated compute time, so it requires engine='simulator'. "
                f"Use a delay in seconds instead."
            )


def check_quadratic(
    dataset: QuadraticData, settings: Mapping[str, Any], fields: Mapping[str, FieldInfo]
) -> None:
    """Raise ValueError if a setting that the quadratic problem does not use differs from its default."""
    for key in ("model", "partition", "validation", "loss"):
        if str(settings[key]) != str(fields[key].get_default()):
            raise ValueError(
                f"{key}={settings[key]}: {dataset.name} is a formula and has no {key}. Remove it."
            )
