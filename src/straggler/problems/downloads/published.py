"""The published data sets as they must be: shapes and checksums of their arrays."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from straggler.problems.downloads.sources import DataError

Array = NDArray[Any]
ARRAYS = ("train-images", "train-labels", "test-images", "test-labels")


@dataclass(frozen=True)
class ArrayPart:
    """A run of consecutive samples of an array, and the file that it was read from."""

    array: Array
    file: Path


@dataclass(frozen=True)
class PublishedData:
    """A data set as published: each array is pinned by the SHA-256 of its equal runs of samples."""

    name: str
    classes: tuple[str, ...]
    image: tuple[int, int, int]
    train: int
    test: int
    layouts: tuple[str, ...]
    folders: tuple[str, ...]
    sha256: Mapping[str, tuple[str, ...]]

    def shape(self, array: str) -> tuple[int, ...]:
        """The shape of one of the four arrays."""
        count = self.train if array.startswith("train") else self.test
        return (count, *self.image) if array.endswith("images") else (count,)

    def size(self) -> int:
        """All four arrays, in bytes."""
        return sum(int(np.prod(self.shape(array))) for array in ARRAYS)


def cut(array: Array, file: Path, runs: int) -> list[ArrayPart]:
    """An array that one file holds, in the runs that its checksums are of."""
    return [ArrayPart(part, file) for part in np.array_split(array, runs)]


def check(published: PublishedData, name: str, pieces: Sequence[ArrayPart]) -> None:
    """Raise a `DataError` that names the file unless the pieces are the published array."""
    pins = published.sha256[name]
    count, *rest = published.shape(name)
    expected = (count // len(pins), *rest)
    for piece, pin in zip(pieces, pins, strict=True):
        if piece.array.shape != expected or piece.array.dtype != np.uint8:
            found = f"{piece.array.dtype} of shape {piece.array.shape}"
            raise DataError(f"{piece.file} holds {found} where {published.name} has uint8 of {expected}")
        digest = hashlib.sha256(np.ascontiguousarray(piece.array).data).hexdigest()
        if digest != pin:
            rule = f"the {name} of {published.name} have SHA-256 {pin[:16]}…, these have {digest[:16]}…"
            raise DataError(f"{piece.file} is damaged or something else: {rule}")


FASHION_MNIST = PublishedData(
    name="fashion-mnist",
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    image=(1, 28, 28),
    train=60_000,
    test=10_000,
    layouts=("npy", "idx"),
    folders=("fashion-mnist", "FashionMNIST/raw", "."),
    sha256={
        "train-images": ("2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",),
        "train-labels": ("657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",),
        "test-images": ("c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",),
        "test-labels": ("3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",),
    },
)

MNIST = PublishedData(
    name="mnist",
    classes=tuple("0123456789"),
    image=(1, 28, 28),
    train=60_000,
    test=10_000,
    layouts=("npy", "idx"),
    folders=("mnist", "MNIST/raw", "."),
    sha256={
        "train-images": ("741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",),
        "train-labels": ("1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",),
        "test-images": ("6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",),
        "test-labels": ("ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",),
    },
)

CIFAR10 = PublishedData(
    name="cifar10",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    image=(3, 32, 32),
    train=50_000,
    test=10_000,
    layouts=("npy", "cifar-binary", "cifar-png"),
    folders=("cifar10", "cifar-10-batches-bin", "."),
    # one checksum per batch of 10,000, so that a damaged file can be named
    sha256={
        "train-images": (
            "a50e8b48728e1667d682a807155c375279d5ae321fb12242c02e3104a6bc8b21",
            "0b825e5592c3b72ea18d6ec2ff5f5b19d33e41a75f5039054a9bb87be3cf69a0",
            "c6ee1dd4601a69ec085d8ebf53ee6441775491a6839a0a9ae8fa198e88a3a429",
            "1f6b6c799cff375a9f8fae2fac909d51ee09f38a6a60eebb9e8fec6f47ddc48f",
            "58e3bbf713e28357476a351d3a05d056372f94c681d04ca9d62a076fdf2a643b",
        ),
        "train-labels": (
            "d829dbdf32167c9d7b3687cee66d92d80d46c441308b5aca0d11e8b69e27dac9",
            "5d18f7371ed35ea9ade77952fe958b0660a45cd6c8b8a8970030f21612cfd7e3",
            "32cf77b0ee2e790b1c4384d2d82e42dc1571b87e67f6da8f444b2725b2973f65",
            "d2815e3f8f656272864920fc0edde56b04ec9cf81bf397c0dd3069f4aea51aeb",
            "2ddf3ab27d5d04409c94ce7b56849c243129c10de1058ae0bfe14c77e934800c",
        ),
        "test-images": ("177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",),
        "test-labels": ("cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",),
    },
)
