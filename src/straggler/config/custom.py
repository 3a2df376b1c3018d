"""Custom models, losses and components: how they are parsed, named in text and identified."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from straggler.config.fingerprints import fingerprint
from straggler.config.imports import IMPORTED, import_object, is_import_string
from straggler.config.registry import (
    CUSTOM_MARK,
    OLD_MARK,
    CatalogueEntry,
    InputError,
    build_entry,
    format_value,
    is_custom,
    parse_call,
    parse_entry,
    suggest_name,
)
from straggler.core.randomness import preserve_global_generators, seed_global_generators
from straggler.problems.custom_data import CustomData
from straggler.problems.datasets import DataSet
from straggler.problems.losses import LOSSES
from straggler.problems.metrics import METRICS, Metric
from straggler.problems.models import MODELS, Model


class CustomModel:
    """An nn.Module, or a class or function without arguments that returns one."""

    def __init__(self, source: nn.Module | Callable[[], nn.Module], text: str | None = None) -> None:
        self.source, self._text = source, text
        # A module object may be trained before the run starts, so its fingerprint is taken when it is needed.
        self._identity = "" if isinstance(source, nn.Module) else self._identify(build_module(source))

    def __str__(self) -> str:
        return self._text or self.identity()

    def identity(self) -> str:
        """Return the name and a fingerprint of code, structure and initial weights."""
        return self._identity or self._identify(self.source)

    def _identify(self, module: Any) -> str:
        function = self.source.func if isinstance(self.source, partial) else self.source
        name = getattr(function, "__qualname__", type(module).__name__)
        return mark_as_custom(name, module)


class CustomLoss:
    """A function of (output, target) that returns a scalar tensor."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], text: str | None = None) -> None:
        self.function, self._text = function, text

    def __str__(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return self._text or mark_as_custom(name, self.function)

    def identity(self) -> str:
        """Return a fingerprint of the function's code and values."""
        return fingerprint(self.function)


class CustomMetric(Metric):
    """A function of (outputs, targets) as a metric."""

    function: Callable[[Any, Any], Any]
    text: str = ""  # the import string; empty for a Python object

    def __str__(self) -> str:
        return self.text or mark_as_custom(self.label, self.function)

    @property
    def label(self) -> str:
        function, arguments = self.function, ""
        if isinstance(function, partial):
            values = [*map(format_value, function.args)]
            values += [f"{key}={format_value(value)}" for key, value in function.keywords.items()]
            function, arguments = function.func, f"({', '.join(values)})"
        return getattr(function, "__qualname__", type(function).__qualname__).split(".")[-1] + arguments

    def identity(self) -> str:
        """Return the name and a fingerprint of the function's code and values."""
        return mark_as_custom(self.label, self.function)

    def compute(self, outputs: Any, targets: Any) -> Any:
        return self.function(outputs, targets)


def parse_metrics(value: Any) -> list[Metric]:
    """Return the metrics that one value or a list of values stands for."""
    metrics = [parse_metric(each) for each in (value if isinstance(value, list | tuple) else [value])]
    names = [metric.label for metric in metrics]
    for name in names:
        if names.count(name) > 1 or name in ("loss", "accuracy"):
            raise ValueError(f"the name {name!r} is in use. Every metric needs a name of its own; rename it")
    return metrics


def parse_metric(value: Any) -> Metric:
    """Return the metric that a text, a function, or an entry of METRICS stands for."""
    if isinstance(value, str) and is_import_string(value):
        name, positional, settings = parse_call(value)
        target = import_object(name)
        if isinstance(target, type) and issubclass(target, Metric):
            return build_entry(target, positional, settings)
        if not callable(target):
            raise ValueError(f"{value} must be a function of (outputs, targets)")
        if isinstance(target, type):
            return CustomMetric(function=target(*positional, **settings), text=value)
        bound = partial(target, *positional, **settings) if positional or settings else target
        return CustomMetric(function=bound, text=value)
    is_entry = isinstance(value, str | dict | Metric) or (
        isinstance(value, type) and issubclass(value, Metric)
    )
    return CustomMetric(function=value) if callable(value) and not is_entry else parse_entry(value, METRICS)


def parse_model(value: Any) -> Model | CustomModel:
    """Return the model that a text, a table, a module or a function that returns a module stands for."""
    if isinstance(value, CustomModel):
        return value
    if isinstance(value, str) and is_import_string(value):
        name, positional, settings = parse_call(value)
        target = import_object(name)
        if isinstance(target, type) and issubclass(target, Model):
            return build_entry(target, positional, settings)
        if isinstance(target, nn.Module):
            return CustomModel(target, value)
        if not callable(target):
            raise ValueError(f"{value} must be an nn.Module class or a function that returns an nn.Module")
        return CustomModel(partial(target, *positional, **settings), value)
    is_entry = isinstance(value, Model) or (isinstance(value, type) and issubclass(value, Model))
    if isinstance(value, str | dict) or is_entry:
        return parse_entry(value, MODELS)
    if not isinstance(value, nn.Module) and not callable(value):
        raise ValueError(
            f"{value!r} is not a model. Pass a name, an nn.Module, or a function that returns one."
        )
    return CustomModel(value)


def parse_loss(value: Any) -> CustomLoss | None:
    """Return the loss that a function, an import string or a name in torch.nn.functional stands for."""
    if value is None or isinstance(value, CustomLoss):
        return value
    if not isinstance(value, str):
        if not callable(value):
            raise ValueError(f"{value!r} is not a loss. Pass a function of (output, target).")
        return CustomLoss(value)
    if CUSTOM_MARK in value:
        raise ValueError(f"loss {value!r} was a Python object, which text cannot recreate. Pass the object.")
    name, positional, settings = parse_call(value)
    if is_import_string(name):
        target = import_object(name)
    elif not callable(target := LOSSES.get(name) or getattr(F, name, None)):
        names = [*LOSSES, *(known for known in vars(F) if "loss" in known and not known.startswith("_"))]
        raise ValueError(f"torch.nn.functional has no loss {name!r}. {suggest_name(name, names)}")
    if isinstance(target, type):
        return CustomLoss(target(*positional, **settings), value)
    return CustomLoss(partial(target, *positional, **settings) if positional or settings else target, value)


def parse_custom_data(text: str) -> CustomData | DataSet:
    """Return the data that an import string names.

    It may name a DataSet class, a function or class that returns (train, test) or (inputs, labels,
    test_inputs, test_labels), a Dataset class with a `train` argument as in torchvision, or such a tuple.
    """
    name, positional, settings = parse_call(text)
    parts = import_object(name)
    if isinstance(parts, type) and issubclass(parts, DataSet):
        return build_entry(parts, positional, settings)
    try:
        if isinstance(parts, type) and "train" in inspect.signature(parts).parameters:
            parts = tuple(parts(*positional, train=train, **settings) for train in (True, False))
        elif callable(parts):
            parts = parts(*positional, **settings)
    except Exception as error:
        raise ValueError(f"{text} failed: {type(error).__name__}: {error}") from error
    if not isinstance(parts, tuple | list):
        raise ValueError(f"{text} must return (train_set, test_set), got {type(parts).__name__}")
    return CustomData(parts, text)


def list_custom_objects(settings: dict[str, Any]) -> list[str]:
    """Return the recorded settings that were Python objects, which text cannot recreate."""
    return [key for key, value in settings.items() if CUSTOM_MARK in str(value) or OLD_MARK in str(value)]


def mark_as_custom(name: str, content: Any) -> str:
    """Return `Name [custom 1a2b3c]`: how text shows a Python object that it cannot recreate."""
    return f"{name}{CUSTOM_MARK}{fingerprint(content)}]"


def format_component(component: Any) -> str:
    """Return a component as text. Text recreates built-in components and those named by import strings."""
    return " + ".join(
        mark_as_custom(str(link), component_contents(link)) if is_python_object(link) else str(link)
        for link in chain_links(component)
    )


def component_identity(component: Any) -> str:
    """Return the component's contribution to an id: every setting, and for a custom class its code."""
    return " + ".join(
        mark_as_custom(link.name, component_contents(link))
        if isinstance(link, CatalogueEntry) and is_custom(type(link))
        else link.identity()
        for link in chain_links(component)
    )


def is_python_object(component: Any) -> bool:
    """Return whether a component's class is custom and not named by an import string or an entry point."""
    kind = type(component)
    return isinstance(component, CatalogueEntry) and is_custom(kind) and kind not in IMPORTED


def chain_links(component: Any) -> Sequence[Any]:
    """Return the corrections of a chain, or the component alone."""
    return getattr(component, "links", (component,))


def component_contents(entry: CatalogueEntry) -> tuple[Any, ...]:
    """Return a custom component's class, settings, and private attributes that its constructor set."""
    kind, private = type(entry), entry.__pydantic_private__ or {}
    known = [each for each in kind.__mro__ if issubclass(each, CatalogueEntry) and not is_custom(each)]
    inherited = {name for each in known for name in each.__private_attributes__}
    settings = {name: getattr(entry, name) for name in kind.model_fields}
    return kind, settings, {name: value for name, value in private.items() if name not in inherited}


def build_module(source: Callable[[], nn.Module]) -> nn.Module:
    """Call a model function with fixed random seeds and return its module."""
    try:
        with preserve_global_generators():
            seed_global_generators(0)
            module = source()
    except InputError:
        raise
    except Exception as error:
        raise ValueError(f"Building the model failed: {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ValueError(f"The model function must return an nn.Module, got {type(module).__name__}")
    return module
