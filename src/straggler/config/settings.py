"""Parse, combine and check the settings of an experiment."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic.fields import FieldInfo

from straggler.algorithms.aggregations import AGGREGATIONS, Sum
from straggler.algorithms.channels import CHANNELS
from straggler.algorithms.corrections import parse_correction
from straggler.algorithms.methods import METHODS
from straggler.algorithms.optimizers import OPTIMIZERS, coerce_optimizer, optimizer_from_torch
from straggler.algorithms.policies import POLICIES
from straggler.algorithms.work import WORK
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
from straggler.core import Aggregation, Optimizer, Policy
from straggler.engines import is_virtual_engine
from straggler.problems.custom_data import CustomData
from straggler.problems.datasets import DATASETS, DataSet
from straggler.problems.quadratic import QuadraticData
from straggler.timing import Law
from straggler.timing.cores import CORES
from straggler.timing.links import LINKS

BUDGETS = ("epochs", "updates", "gradients", "seconds")
COMPONENTS = ("work", "channel", "policy", "correction", "aggregation", "optimizer")
OPTIMIZER_SHORTCUTS = ("momentum", "nesterov", "weight_decay")  # settings that have keys of their own
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


def parse_server_link(value: Any) -> Any:
    """Return the server's link."""
    return None if value is None else parse_entry(value, LINKS)


def parse_cores(value: Any) -> Any:
    """Return the shared cores that a value stands for; a number is their count."""
    if isinstance(value, int) or (isinstance(value, str) and value.strip().isdigit()):
        value = f"cores({value})"
    return None if value is None else parse_entry(value, CORES)


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
    """Return the components of a method."""
    method = METHODS[name]
    return {
        "policy": parse_entry(method.policy, POLICIES),
        "correction": parse_correction(method.correction),
        "optimizer": parse_entry(method.optimizer, OPTIMIZERS),
        "work": parse_entry(method.work, WORK),
        "channel": parse_entry(method.channel, CHANNELS),
        "aggregation": parse_entry(method.aggregation, AGGREGATIONS),
    }


def find_method(components: Mapping[str, Any]) -> str | None:
    """Return the method that has these components, whatever its momentum and weight decay, or None."""
    optimizer = components["optimizer"]
    for name in METHODS:
        row = parse_method(name)
        same = all(str(row[key]) == str(components[key]) for key in COMPONENTS if key != "optimizer")
        same_optimizer = type(row["optimizer"]) is type(optimizer)
        same_variant = all(
            getattr(row["optimizer"], key, None) == getattr(optimizer, key, None)
            for key in ("nesterov", "rule")
        )
        if same and same_optimizer and same_variant and not METHODS[name].single:
            return name
    return None


def parse_channel(value: Any) -> Any:
    """Return the channel that a value stands for; explain why a channel without loss has no feedback."""
    if isinstance(value, str) and re.match(r"\s*(exact|bf16|fp16)\b.*feedback", value):
        raise ValueError(
            f"{value}: feedback returns what a lossy encoding left out. "
            f"Remove it, or use top-k, random-k, qsgd, sign or powersgd."
        )
    return parse_entry(value, CHANNELS)


BALANCED = re.compile(r"\s*balanced\(\s*(\d+)\s*\)\s*")


def parse_batch_size(value: Any) -> Any:
    """Return a batch size, a list of batch sizes, or the text `balanced(64)`."""
    if isinstance(value, str) and BALANCED.fullmatch(value) is None:
        numbers = [int(number) for number in re.findall(r"\d+", value)]
        if not numbers or re.fullmatch(r"[\d\s,\[\]]+", value) is None:
            raise ValueError(
                f"{value!r} must be a number, a list with one number per worker, or balanced(mean)."
            )
        value = numbers if len(numbers) > 1 else numbers[0]
    sizes = value if isinstance(value, list | tuple) else [value]
    if isinstance(value, str) and (match := BALANCED.fullmatch(value)):
        sizes = [int(match[1])]
    if any(isinstance(size, int) and size < 1 for size in sizes):
        raise ValueError(f"must be at least 1, got {value}")
    return value


def check_engine_delays(engine: str, delays: Sequence[Law]) -> None:
    """Raise ValueError if a delay scales simulated compute times but the engine runs in real time."""
    for law in delays:
        if law.multiplies and not is_virtual_engine(engine):
            raise ValueError(
                f"delay={law} scales a simulated compute time, so it requires engine='simulator'. "
                f"Use a delay in seconds instead."
            )


def check_virtual_keys(engine: str, settings: Mapping[str, Any]) -> None:
    """Raise ValueError if links, churn or cores are simulated but the engine runs in real time."""
    for key in ("link", "server_link", "churn", "cores"):
        if settings[key] and not is_virtual_engine(engine):
            value = settings[key]
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            raise ValueError(
                f"{key}={text} is simulated, so it requires engine='simulator'. "
                f"Real connections and machines have their own."
            )


def choose_aggregation(policy: Policy, aggregation: Aggregation) -> Aggregation:
    """Return the aggregation that a server uses: that of the policy (`aggregate=sum`), or the setting."""
    return Sum() if getattr(policy, "aggregate", "mean") == "sum" else aggregation


def check_aggregation(policy: Policy, aggregation: Aggregation, optimizer: Optimizer, workers: int) -> None:
    """Raise ValueError if the aggregation does not fit to the policy or the optimizer."""
    if getattr(policy, "aggregate", "mean") == "sum" and aggregation.name not in ("mean", "sum"):
        raise ValueError(f"{policy} adds messages up, but aggregation={aggregation} is set too. Remove one.")
    wanted = getattr(policy, "aggregation_name", aggregation.name)
    if wanted != aggregation.name:
        raise ValueError(f"policy={policy} requires aggregation={wanted!r}, got aggregation={aggregation}.")
    aggregation.check(policy, optimizer, workers)


def check_quadratic(
    dataset: QuadraticData, settings: Mapping[str, Any], fields: Mapping[str, FieldInfo]
) -> None:
    """Raise ValueError if a setting that the quadratic problem does not use differs from its default."""
    for law in settings["delay"]:
        if law.needs_samples:
            raise ValueError(f"delay={law} depends on the samples, and {dataset.name} has none. Remove it.")
    unused = ("model", "partition", "validation", "loss", "metrics", "precision", "channels_last", "compile")
    for key in unused:
        if str(settings[key]) != str(fields[key].get_default()):
            value = settings[key]
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            raise ValueError(f"{key}={text}: {dataset.name} is a formula and has no {key}. Remove it.")
