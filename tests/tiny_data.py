"""A tiny published data set for tests of downloads, and sources that deliver or damage it."""

import gzip
import hashlib
import struct
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from straggler.problems.downloads.formats import ARRAYS, PublishedData

IDX = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]
RANDOM = np.random.default_rng(0)
TINY_ARRAYS = {
    "train-images": RANDOM.integers(0, 256, (30, 1, 5, 4), dtype=np.uint8),
    "train-labels": RANDOM.integers(0, 3, 30, dtype=np.uint8),
    "test-images": RANDOM.integers(0, 256, (10, 1, 5, 4), dtype=np.uint8),
    "test-labels": RANDOM.integers(0, 3, 10, dtype=np.uint8),
}
TINY = PublishedData(
    name="tiny",
    classes=("a", "b", "c"),
    image=(1, 5, 4),
    train=30,
    test=10,
    layouts=("npy", "idx"),
    folders=("tiny", "."),
    sha256={name: (hashlib.sha256(array.tobytes()).hexdigest(),) for name, array in TINY_ARRAYS.items()},
)


def idx_bytes(array):
    lengths = [len(array), *(n for n in array.shape[1:] if n > 1)]
    return struct.pack(f">4B{len(lengths)}I", 0, 0, 8, len(lengths), *lengths) + array.tobytes()


def write_idx(folder, arrays=TINY_ARRAYS, spell=lambda name: name, compress=gzip.compress):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(IDX, (arrays[name] for name in ARRAYS), strict=True):
        (folder / spell(name)).write_bytes(compress(idx_bytes(array)))
    return folder


@dataclass(frozen=True)
class Fake:
    """A source that delivers the tiny data set, counts its calls in a file, or fails."""

    label: str = "fake"
    failure: BaseException | None = None
    calls: Path | None = None
    seconds: float = 0

    def __str__(self):
        return self.label

    def fetch(self, workspace, report):
        if self.calls:
            with self.calls.open("a") as file:
                file.write("called\n")
        (workspace / "half").write_bytes(b"half a file")
        time.sleep(self.seconds)
        if self.failure:
            raise self.failure
        return write_idx(workspace / "files", compress=bytes, spell=lambda name: name)


class Wrong(Fake):
    """A source with complete files that are not the published ones."""

    def fetch(self, workspace, report):
        return write_idx(workspace, {**TINY_ARRAYS, "train-labels": np.zeros(30, np.uint8)}, compress=bytes)


def same(arrays):
    return all(np.array_equal(arrays[name], TINY_ARRAYS[name]) for name in ARRAYS)


def leftovers(cache):
    return [path.name for path in cache.iterdir() if not path.name.endswith(".lock")]


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 0x10
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")
