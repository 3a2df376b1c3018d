"""Data and networks that a user brings: tensors, arrays, Datasets, modules; told apart by fingerprints."""

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from straggler.data.examples import ArrayExamples, DatasetExamples, Examples
from straggler.randomness import rng

__all__ = ["GivenData", "GivenModel", "fingerprint"]

PROBES = 64  # items of a Dataset that are looked at to tell it from another


class GivenData:
    """(inputs, labels, test inputs, test labels) as tensors or arrays, or (train, test) as Datasets."""

    def __init__(self, parts: tuple[Any, ...] | list[Any]) -> None:
        if len(parts) == 4:
            arrays = [as_array(part) for part in parts]
            if len(arrays[0]) != len(arrays[1]) or len(arrays[2]) != len(arrays[3]):
                raise ValueError(f"inputs and labels differ in number: {[len(array) for array in arrays]}")
            self.train: Examples = ArrayExamples(arrays[0], arrays[1])
            self.test: Examples = ArrayExamples(arrays[2], arrays[3])
            self.fingerprint = digest(*(np.ascontiguousarray(array).tobytes() for array in arrays))
        elif len(parts) == 2:
            self.train, self.test = DatasetExamples(parts[0]), DatasetExamples(parts[1])
            self.fingerprint = digest(*(probe(examples) for examples in (self.train, self.test)))
        else:
            raise ValueError(
                f"{len(parts)} parts: give (inputs, labels, test_inputs, test_labels) or (train, test)"
            )
        if not len(self.train) or not len(self.test):
            raise ValueError("the training set and the test set must not be empty")

    def __str__(self) -> str:
        return f"given({self.fingerprint})"

    @property
    def classes(self) -> tuple[str, ...]:
        """Integer labels are classes; anything else is a regression."""
        labels = self.train.labels
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            return ()
        return tuple(str(number) for number in range(int(max(labels.max(), self.test.labels.max())) + 1))


class GivenModel:
    """An nn.Module, or a function or class that makes one."""

    def __init__(self, source: nn.Module | Callable[[], nn.Module]) -> None:
        self.source = source

    def __str__(self) -> str:
        """Its name and a fingerprint of its structure and first weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = self.source if isinstance(self.source, nn.Module) else self.source()
        name = getattr(self.source, "__qualname__", type(module).__name__)
        weights = (parameter.detach().numpy().tobytes() for parameter in module.parameters())
        code = (source(kind) for kind in dict.fromkeys(map(type, module.modules())))
        return f"{name}[{digest(repr(module).encode(), *weights, *code)}]"


def fingerprint(thing: Any) -> str:
    """Its content and its code: two functions of the same name are two things."""
    return digest(cloudpickle.dumps(thing), source(thing))


def source(thing: Any) -> bytes:
    """The text of a class or function; nothing where there is none, as for torch's own kernels."""
    try:
        return inspect.getsource(thing).encode()
    except (OSError, TypeError):
        return b""


def as_array(part: Any) -> NDArray[Any]:
    array = part.detach().cpu().numpy() if isinstance(part, Tensor) else np.asarray(part)
    whole = array.ndim == 1 and np.issubdtype(array.dtype, np.integer)
    return array.astype(np.int64) if whole else array  # labels, as torch wants them


def probe(examples: DatasetExamples) -> bytes:
    """Its length and items spread over it: enough to tell most Datasets apart, and never the whole of one."""
    chosen = np.unique(np.linspace(0, len(examples) - 1, PROBES).astype(int))
    inputs, _ = examples.fetch(chosen, lambda: rng(0, "probe"))
    return str(len(examples)).encode() + examples.labels.tobytes() + inputs.numpy().tobytes()


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:12]
