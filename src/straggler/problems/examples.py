"""Examples fetched by number: arrays normalised per batch, or any map-style Dataset."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from straggler.core.randomness import preserve_global_generators, seed_global_generators

PADDING = 4  # pixels around an image before it is cropped again

Address = Callable[[], np.random.Generator]  # asked only where something is random


class Examples(Protocol):
    """Samples that can be fetched by number."""

    @property
    def labels(self) -> NDArray[Any]: ...

    def __len__(self) -> int: ...

    def fetch(self, chosen: NDArray[np.int64], address: Address | None = None) -> tuple[Tensor, Any]:
        """Inputs and targets; with an address, as seen in training (augmented)."""


@dataclass(frozen=True)
class ArrayExamples:
    """Arrays: uint8 images are scaled to [0, 1] and normalised per channel, the rest is used as it is."""

    inputs: NDArray[Any]
    labels: NDArray[Any]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: bool = False

    def __len__(self) -> int:
        return len(self.inputs)

    def fetch(self, chosen: NDArray[np.int64], address: Address | None = None) -> tuple[Tensor, Tensor]:
        inputs = self.inputs[chosen]
        if self.augment and address is not None:
            inputs = crop_and_flip(inputs, address())
        targets = torch.from_numpy(np.asarray(self.labels[chosen]))
        return self._normalised(torch.from_numpy(inputs)), targets

    def _normalised(self, inputs: Tensor) -> Tensor:
        if inputs.dtype != torch.uint8:
            return inputs
        shape = (1, -1) + (1,) * (inputs.dim() - 2)
        mean, std = torch.tensor(self.mean or (0.0,)), torch.tensor(self.std or (1.0,))
        return (inputs.float() - 255 * mean.view(shape)) / (255 * std.view(shape))


def crop_and_flip(images: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Each image moved by up to four pixels, and mirrored or not. He et al. 2016."""
    count, _, height, width = images.shape
    padded = np.pad(images, ((0, 0), (0, 0), (PADDING, PADDING), (PADDING, PADDING)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    down, right = rng.integers(0, 2 * PADDING + 1, size=(2, count))
    cropped = windows[np.arange(count), :, down, right]
    mirrored = rng.random((count, 1, 1, 1)) < 0.5
    return np.where(mirrored, cropped[..., ::-1], cropped)


class DatasetExamples:
    """A map-style torch Dataset of (input, target) pairs; its random transforms are seeded by address."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset
        check_pairs(dataset)
        targets = getattr(dataset, "targets", None)
        if targets is None:
            targets = [dataset[number][1] for number in range(len(self))]
        self.labels = np.asarray(targets)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def fetch(self, chosen: NDArray[np.int64], address: Address | None = None) -> tuple[Tensor, Any]:
        seed = 0 if address is None else int(address().integers(2**32))
        with preserve_global_generators():  # random transforms draw from them
            seed_global_generators(seed)
            inputs, targets = default_collate([self.dataset[int(number)] for number in chosen])
        return inputs, targets


def check_pairs(dataset: Any) -> None:
    """Its first item, so that what is no map-style Dataset of pairs is refused before it is used."""
    kind = type(dataset).__name__
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        rule = "a Dataset must have a length and items by number (map-style)"
        raise ValueError(f"{kind}: {rule}; give what a DataLoader is made of, or tensors")
    if not len(dataset):
        return  # said of all data that are empty
    try:
        with preserve_global_generators():
            _, _ = dataset[0]
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"{kind}: its first item is no pair (input, target) ({said}); mend it") from error


class ExampleSubset:
    """Some of the examples, numbered anew (a validation split)."""

    def __init__(self, examples: Examples, chosen: Sequence[int] | NDArray[np.int64]) -> None:
        self.examples, self.chosen = examples, np.asarray(chosen)
        self.labels = np.asarray(examples.labels)[self.chosen]

    def __len__(self) -> int:
        return len(self.chosen)

    def fetch(self, chosen: NDArray[np.int64], address: Address | None = None) -> tuple[Tensor, Any]:
        return self.examples.fetch(self.chosen[chosen], address)
