"""Custom data: tensors, arrays or Datasets that a user passes in Python."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from straggler.config.fingerprints import fingerprint
from straggler.core.randomness import addressed_rng
from straggler.problems.examples import ArrayExamples, DatasetExamples, Examples

PROBES = 64  # items of a Dataset that are looked at to tell it from another


class CustomData:
    """(inputs, labels, test inputs, test labels) as tensors or arrays, in pairs or not; or two Datasets."""

    mark: ClassVar[str] = "given("  # in its text, and in no other's

    def __init__(self, parts: tuple[Any, ...] | list[Any]) -> None:
        if len(parts) == 2 and all(isinstance(part, tuple) and len(part) == 2 for part in parts):
            parts = (*parts[0], *parts[1])  # (inputs, labels), (test inputs, test labels)
        if len(parts) == 4:
            arrays = [as_array(part) for part in parts]
            if len(arrays[0]) != len(arrays[1]) or len(arrays[2]) != len(arrays[3]):
                raise ValueError(f"inputs and labels differ in number: {[len(array) for array in arrays]}")
            self.train: Examples = ArrayExamples(arrays[0], arrays[1])
            self.test: Examples = ArrayExamples(arrays[2], arrays[3])
            self.fingerprint = fingerprint(*arrays)
        elif len(parts) == 2:
            self.train, self.test = DatasetExamples(parts[0]), DatasetExamples(parts[1])
            self.fingerprint = fingerprint(*(probe(examples) for examples in (self.train, self.test)))
        else:
            raise ValueError(
                f"the data have {len(parts)} of the parts that they need: give (train, test) "
                f"or (inputs, labels, test_inputs, test_labels)"
            )
        if not len(self.train) or not len(self.test):
            raise ValueError("the training set and the test set must not be empty")

    def __str__(self) -> str:
        return f"{self.mark}{self.fingerprint})"

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of an input; none if it has several parts."""
        inputs, _ = self.train.fetch(np.array([0]))
        return tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else None

    @property
    def classes(self) -> tuple[str, ...]:
        """Integer labels are classes; anything else is a regression."""
        labels = self.train.labels
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            return ()
        return tuple(str(number) for number in range(int(max(labels.max(), self.test.labels.max())) + 1))


def as_array(part: Any) -> NDArray[Any]:
    try:
        array = part.detach().cpu().numpy() if isinstance(part, Tensor) else np.asarray(part)
    except TypeError:
        raise ValueError(f"the data are {part.dtype}, which numpy has not; give them as float32") from None
    if not array.ndim:
        raise ValueError(f"{part!r} is no set of examples; give tensors or arrays with an item for each")
    whole = array.ndim == 1 and np.issubdtype(array.dtype, np.integer)
    return array.astype(np.int64) if whole else array  # labels, as torch wants them


def probe(examples: DatasetExamples) -> tuple[Any, ...]:
    """Its length and items spread over it: enough to tell most Datasets apart, and never the whole of one."""
    chosen = np.unique(np.linspace(0, len(examples) - 1, PROBES).astype(int))
    inputs, _ = examples.fetch(chosen, lambda: addressed_rng(0, "probe"))
    return len(examples), examples.labels, inputs
