"""Examples that are fetched by number: arrays that are normalised per batch, or any map-style Dataset."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from straggler.core.randomness import preserve_global_generators, seed_global_generators
from straggler.problems.downloads.sources import ReportFunction

PADDING = 4  # pixels around an image before it is cropped

Labels = NDArray[Any]
MakeGenerator = Callable[[], np.random.Generator]  # called only if the examples need random numbers


class Examples(Protocol):
    """Samples that can be fetched by number."""

    @property
    def known_labels(self) -> Labels | None:
        """The labels, if they are known without fetching the samples."""

    def __len__(self) -> int: ...

    def fetch(self, chosen: NDArray[np.int64], generator: MakeGenerator | None = None) -> tuple[Tensor, Any]:
        """Return inputs and targets; with a generator, augmented as in training."""


def read_labels(examples: Examples, reason: str, report: ReportFunction) -> Labels:
    """Return all labels. If they are not known, fetch every sample and tell the user why that takes time."""
    if examples.known_labels is not None:
        return examples.known_labels
    remedy = "Give the Dataset a `targets` attribute to avoid this."
    report(f"Reading the targets of all {len(examples):,} samples because {reason}. {remedy}")
    return np.asarray([np.asarray(examples.fetch(np.array([i]))[1][0]) for i in range(len(examples))])


@dataclass(frozen=True)
class ArrayExamples:
    """Arrays: uint8 images are scaled to [0, 1] and normalised per channel; other inputs are used as is."""

    inputs: NDArray[Any]
    known_labels: Labels
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: bool = False

    def __len__(self) -> int:
        return len(self.inputs)

    def fetch(
        self, chosen: NDArray[np.int64], generator: MakeGenerator | None = None
    ) -> tuple[Tensor, Tensor]:
        inputs = self.inputs[chosen]
        if self.augment and generator is not None:
            inputs = crop_and_flip(inputs, generator())
        targets = torch.from_numpy(np.asarray(self.known_labels[chosen]))
        return self._normalise(torch.from_numpy(inputs)), targets

    def _normalise(self, inputs: Tensor) -> Tensor:
        if inputs.dtype != torch.uint8:
            return inputs
        shape = (1, -1) + (1,) * (inputs.dim() - 2)
        mean, std = torch.tensor(self.mean or (0.0,)), torch.tensor(self.std or (1.0,))
        return (inputs.float() - 255 * mean.view(shape)) / (255 * std.view(shape))


def crop_and_flip(images: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Shift each image by up to four pixels and mirror half of them (He et al. 2016)."""
    count, _, height, width = images.shape
    padded = np.pad(images, ((0, 0), (0, 0), (PADDING, PADDING), (PADDING, PADDING)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    down, right = rng.integers(0, 2 * PADDING + 1, size=(2, count))
    cropped = windows[np.arange(count), :, down, right]
    mirrored = rng.random((count, 1, 1, 1)) < 0.5
    return np.where(mirrored, cropped[..., ::-1], cropped)


class DatasetExamples:
    """A map-style torch Dataset of (input, target) pairs. Its random transforms are seeded per batch."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise ValueError(
                f"{type(dataset).__name__} is not a map-style Dataset: it must have __len__ and __getitem__. "
                "Pass the Dataset itself (not a DataLoader), or tensors."
            )
        self.dataset = dataset

    @property
    def known_labels(self) -> Labels | None:
        return find_labels(self.dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def fetch(self, chosen: NDArray[np.int64], generator: MakeGenerator | None = None) -> tuple[Tensor, Any]:
        seed = 0 if generator is None else int(generator().integers(2**32))
        with preserve_global_generators():  # random transforms draw from the global generators
            seed_global_generators(seed)
            inputs, targets = default_collate([self.dataset[int(number)] for number in chosen])
        return inputs, targets

    def check_first_item(self) -> None:
        """Raise unless the first item is a pair (input, target)."""
        rule = f"{type(self.dataset).__name__}[0] must return (input, target)"
        try:
            with preserve_global_generators():
                item = self.dataset[0]
        except Exception as error:
            raise ValueError(f"{rule}, but it raised {type(error).__name__}: {error}") from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(f"{rule}, got {type(item).__name__}")


def find_labels(dataset: Any) -> Labels | None:
    """Return the labels that a Dataset has as an attribute.

    It is `documents` (for sequences: the number of the document), or `targets` or `labels` as in torchvision.
    """
    if type(dataset) is TensorDataset:
        return np.asarray(dataset.tensors[-1])
    if type(dataset) is Subset:
        labels = find_labels(dataset.dataset)
        return None if labels is None else labels[np.asarray(dataset.indices)]
    for name in ("documents", "targets", "labels"):
        labels = getattr(dataset, name, None)
        if isinstance(labels, Sequence | np.ndarray | Tensor) and len(labels) == len(dataset):
            return np.asarray(labels)
    return None


def find_class_names(dataset: Any) -> tuple[str, ...] | None:
    """Return the class names that a Dataset has as an attribute (`classes` or `num_classes`)."""
    names = getattr(dataset, "classes", getattr(dataset, "num_classes", None))
    if isinstance(names, list | tuple):
        return tuple(map(str, names))
    if isinstance(names, int):
        return tuple(map(str, range(names)))
    return find_class_names(dataset.dataset) if type(dataset) is Subset else None


class ExampleSubset:
    """Some of the examples, renumbered from 0 (a validation split)."""

    def __init__(self, examples: Examples, chosen: Sequence[int] | NDArray[np.int64]) -> None:
        self.examples, self.chosen = examples, np.asarray(chosen)

    @property
    def known_labels(self) -> Labels | None:
        labels = self.examples.known_labels
        return None if labels is None else labels[self.chosen]

    def __len__(self) -> int:
        return len(self.chosen)

    def fetch(self, chosen: NDArray[np.int64], generator: MakeGenerator | None = None) -> tuple[Tensor, Any]:
        return self.examples.fetch(self.chosen[chosen], generator)
