"""Custom data: tensors, arrays or Datasets that a user passes in Python."""

from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

from straggler.config.fingerprints import fingerprint
from straggler.config.registry import CUSTOM_MARK
from straggler.problems.downloads.sources import ReportFunction
from straggler.problems.examples import ArrayExamples, DatasetExamples, Examples, find_class_names

INTEGERS = {torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64}


class CustomData:
    """A training set and a test set, as two Datasets or as arrays; no item of a Dataset is read here.

    Arrays come as (inputs, labels, test_inputs, test_labels) or in two pairs.
    """

    def __init__(self, parts: tuple[Any, ...] | list[Any], text: str | None = None) -> None:
        self._text = text  # the import string that names the data
        if len(parts) == 2 and all(isinstance(part, tuple) and len(part) == 2 for part in parts):
            parts = (*parts[0], *parts[1])  # (inputs, labels), (test inputs, test labels)
        self.train: Examples
        self.test: Examples
        if len(parts) == 4:
            arrays = [convert_to_array(part) for part in parts]
            lengths = [len(array) for array in arrays]
            if lengths[0] != lengths[1] or lengths[2] != lengths[3]:
                raise ValueError(f"Inputs and labels must have the same lengths, got {lengths}")
            self.train = ArrayExamples(arrays[0], arrays[1])
            self.test = ArrayExamples(arrays[2], arrays[3])
            self.fingerprint = fingerprint(*arrays)
        elif len(parts) == 2:
            self.train, self.test = DatasetExamples(parts[0]), DatasetExamples(parts[1])
            self.fingerprint = fingerprint(*parts, [len(part) for part in parts])
        else:
            raise ValueError(
                f"Custom data must be (train, test) or (inputs, labels, test_inputs, test_labels), "
                f"got {len(parts)} part{'s' * (len(parts) != 1)}"
            )
        if not len(self.train) or not len(self.test):
            raise ValueError("The training set and the test set must not be empty")

    def __str__(self) -> str:
        return self._text or self.identity()

    def identity(self) -> str:
        """Return the name of the data and a fingerprint of their contents or code."""
        name = type(self.train.dataset).__name__ if isinstance(self.train, DatasetExamples) else "arrays"
        return f"{name}{CUSTOM_MARK}{self.fingerprint}]"

    @property
    def is_lazy(self) -> bool:
        """Whether reading the training set runs custom code, which may be slow."""
        return isinstance(self.train, DatasetExamples) and type(self.train.dataset) is not TensorDataset

    def load(self, folder: Path | None, report: ReportFunction) -> Self:
        """Return itself: custom data need no download."""
        return self

    @cached_property
    def first_example(self) -> tuple[Any, Any]:
        """A batch of one training example."""
        if isinstance(self.train, DatasetExamples):
            self.train.check_first_item()
        return self.train.fetch(np.array([0]))

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one input, or None if inputs are not single tensors."""
        inputs, _ = self.first_example
        return tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else None

    @property
    def sequence(self) -> int | None:
        """The number of tokens in an input that is a sequence of tokens with a target for each, else None."""
        inputs, targets = self.first_example
        if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
            return None
        is_sequence = inputs.dim() == 2 and inputs.shape == targets.shape
        return inputs.shape[1] if is_sequence and {inputs.dtype, targets.dtype} <= INTEGERS else None

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names: empty if targets are not integers, None if only all items or outputs tell them."""
        _, targets = self.first_example
        if not isinstance(targets, Tensor) or targets.dtype not in INTEGERS:
            return ()
        if targets.dim() != 1:
            return None if targets.dim() == 2 else ()
        if isinstance(self.train, DatasetExamples) and (names := find_class_names(self.train.dataset)):
            return names
        known = [examples.known_labels for examples in (self.train, self.test)]
        labels = [found for found in known if found is not None]
        if len(labels) < 2:
            return None
        return tuple(str(number) for number in range(1 + max(int(found.max()) for found in labels)))


def convert_to_array(part: Any) -> NDArray[Any]:
    """Return an array of examples; integer labels become int64, which torch's losses require."""
    try:
        array = part.detach().cpu().numpy() if isinstance(part, Tensor) else np.asarray(part)
    except TypeError:
        raise ValueError(f"Unsupported dtype {part.dtype}. Convert the data to float32.") from None
    if not array.ndim:
        raise ValueError(f"Data must be tensors or arrays with one item per example, got {part!r}")
    is_label = array.ndim == 1 and np.issubdtype(array.dtype, np.integer)
    return array.astype(np.int64) if is_label else array
