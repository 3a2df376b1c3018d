"""Samples of a training set, for laws that make a batch slow because of what is in it."""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_READ = 1000  # samples that are read to find the mean length


class TrainingSamples:
    """Labels and lengths of the samples that a problem trains on."""

    def __init__(self, problem: Any) -> None:
        if not hasattr(problem, "batch") or "train" not in getattr(problem, "splits", {}):
            raise ValueError(
                f"{type(problem).__name__} has no samples. Use a data set with samples, "
                f"or a delay that does not depend on them."
            )
        self.problem, self.examples = problem, problem.splits["train"]
        self._lengths = np.full(len(self.examples), np.nan)

    def batch(self, worker: int, number: int) -> NDArray[np.int64]:
        """Return the numbers of the samples in a worker's batch."""
        chosen: NDArray[np.int64] = self.problem.batch(worker, number)
        return chosen

    @cached_property
    def labels(self) -> NDArray[Any]:
        """The label of every sample, if they are known without reading the data set."""
        labels = self.examples.known_labels
        if labels is None:
            raise ValueError(
                "the labels are not known without reading all samples. "
                "Give the Dataset a `targets` attribute with a class number per sample."
            )
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise ValueError(
                f"the targets have shape {labels.shape} and type {labels.dtype}, "
                f"but this needs one class number per sample. Use a data set for classification."
            )
        return np.asarray(labels)

    def lengths(self, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the number of tokens, or of non-zero elements, of each of these samples.

        A sample whose length is not known is read once.
        """
        if (known := find_token_counts(self.examples, chosen)) is not None:
            return known.astype(np.float64)
        for number in np.unique(chosen[np.isnan(self._lengths[chosen])]):
            self._lengths[number] = np.count_nonzero(read_inputs(self.examples, int(number)))
        return self._lengths[chosen]

    @cached_property
    def mean_length(self) -> float:
        """The mean length over the training set, or over evenly spaced samples of a large one."""
        count = len(self.examples)
        mean = float(self.lengths(np.linspace(0, count - 1, min(count, MAX_READ)).astype(np.int64)).mean())
        if not mean > 0:
            raise ValueError(
                "all samples have length 0: every element is zero. Use a data set with other elements."
            )
        return mean


def find_token_counts(examples: Any, chosen: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the lengths of sequences of tokens; None if the samples are something else."""
    if hasattr(examples, "chosen"):  # some of other examples
        return find_token_counts(examples.examples, examples.chosen[chosen])
    lengths: NDArray[np.int64] | None = (
        examples.count_tokens(chosen) if hasattr(examples, "count_tokens") else None
    )
    return lengths


def read_inputs(examples: Any, number: int) -> NDArray[Any]:
    """Return the inputs of one sample; arrays before they are normalised, so that padding is still zero."""
    if hasattr(examples, "chosen"):  # some of other examples
        return read_inputs(examples.examples, int(examples.chosen[number]))
    if hasattr(examples, "inputs"):
        return np.asarray(examples.inputs[number])
    inputs, _ = examples.fetch(np.array([number]))
    if not hasattr(inputs, "shape"):
        raise ValueError(
            f"a sample's inputs are a {type(inputs).__name__}, whose length is not defined. "
            f"Return the inputs of a sample as one tensor."
        )
    return np.asarray(inputs)
