"""How the settings of an experiment are read: from texts, tables, tensors or modules."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from straggler.catalogue import parse
from straggler.data.datasets import DATASETS
from straggler.data.given import GivenData, GivenModel
from straggler.data.models import MODELS
from straggler.delays import Law
from straggler.problem import Quadratics

__all__ = ["Text", "choice", "dataset_of", "fewest_and_most", "laws_of", "model_of"]

Text = (PlainSerializer(str), WithJsonSchema({"type": "string"}))


def choice(
    catalogue: Mapping[str, Any], what: str
) -> tuple[BeforeValidator, PlainSerializer, WithJsonSchema]:
    """An entry of a catalogue: checked when read, written as its text."""
    return (
        BeforeValidator(lambda value: parse(value, catalogue, what)),
        PlainSerializer(str),
        WithJsonSchema({"type": "string", "description": f"{what}: {', '.join(catalogue)}"}),
    )


def dataset_of(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return GivenData(value)
    return (
        value
        if isinstance(value, GivenData)
        else parse(value, DATASETS | {Quadratics.name: Quadratics}, "data set")
    )


def model_of(value: Any) -> Any:
    if isinstance(value, str | dict) or type(value) in MODELS.values():
        return parse(value, MODELS, "model")
    return value if isinstance(value, GivenModel) else GivenModel(value)


def fewest_and_most(workers: Any) -> dict[str, Any]:
    """`(2, 8)` or `2-8` workers as the two settings it stands for."""
    if isinstance(workers, str) and (numbers := re.fullmatch(r"(-?\d+)(?:-(\d+))?", workers.strip())):
        workers = [int(number) for number in numbers.groups() if number is not None]
    if isinstance(workers, list | tuple) and 1 <= len(workers) <= 2:
        pair = {"workers": workers[-1]}
        return pair | {"min_workers": workers[0]} if len(workers) == 2 else pair
    return {}


def laws_of(value: Any) -> Any:
    return [value] if isinstance(value, str | dict | Law) else value
