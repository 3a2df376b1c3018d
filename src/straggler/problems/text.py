"""Text as sequences of tokens: characters are encoded once into a memory map, which is never read whole."""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from straggler.problems.downloads.cache import data_cache_folder, lock_cache, writing_to_cache
from straggler.problems.downloads.sources import DataError, ReportFunction
from straggler.problems.examples import Labels, MakeGenerator
from straggler.problems.losses import IGNORED_TARGET

BLOCK = 1 << 20  # characters or bytes that are in memory at once
CODE_POINTS = 0x110000  # of Unicode
Numbers = NDArray[np.int64]


class TokenExamples:
    """Sequences of `context` tokens with the next token as the target of each.

    A stretch is a part of a document. Sequences never cross its end: the last one may be shorter, and the
    targets after its end are ignored.
    """

    def __init__(self, tokens: NDArray[Any], starts: Numbers, lengths: Numbers, context: int) -> None:
        self.tokens, self.context = tokens, context
        self.starts, self.lengths = starts, lengths  # of each document's stretch; the length counts targets
        self.counts = -(-lengths // context)  # sequences
        self.ends = np.cumsum(self.counts)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def known_labels(self) -> Labels:
        """The number of each sequence's document."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def count_tokens(self, chosen: Numbers) -> Numbers:
        """Return the lengths of sequences."""
        return self._locate(chosen)[1]

    def fetch(self, chosen: Numbers, generator: MakeGenerator | None = None) -> tuple[Tensor, Tensor]:
        starts, lengths = self._locate(chosen)
        places = starts[:, None] + np.arange(self.context + 1)
        tokens = self.tokens[np.minimum(places, len(self.tokens) - 1)].astype(np.int64)
        missing = np.arange(self.context) >= lengths[:, None]
        inputs, targets = tokens[:, :-1].copy(), tokens[:, 1:].copy()
        inputs[missing], targets[missing] = 0, IGNORED_TARGET
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def _locate(self, chosen: Numbers) -> tuple[Numbers, Numbers]:
        """Return the place of the first token and the number of targets of sequences."""
        stretch = np.searchsorted(self.ends, chosen, side="right")
        before = (chosen - (self.ends - self.counts)[stretch]) * self.context  # tokens of the stretch
        return self.starts[stretch] + before, np.minimum(self.context, self.lengths[stretch] - before)


@dataclass(frozen=True)
class TokenData:
    """An encoded text, whose sequences are dealt to training and test set.

    The last share `test` of every document is for testing, rounded to sequences over all documents.
    """

    tokens: NDArray[Any]
    documents: Numbers  # where each document ends
    classes: tuple[str, ...]  # the vocabulary: one character per token
    chance: float  # percent of the tokens that are the most frequent one
    context: int
    test_share: float
    augment: ClassVar[bool] = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return (self.context,)

    @property
    def sequence(self) -> int:
        """The number of tokens in a sequence."""
        return self.context

    @cached_property
    def _stretches(self) -> tuple[Numbers, Numbers, Numbers]:
        """Where each document starts, its number of targets, and how many of them are for training."""
        starts = np.concatenate([np.zeros(1, np.int64), self.documents[:-1]])
        targets = np.maximum(self.documents - starts - 1, 0)
        sequences = -(-targets // self.context)
        ends = np.rint(self.test_share * np.cumsum(sequences)).astype(np.int64)
        tested = np.minimum(np.diff(ends, prepend=0), sequences)
        return starts, targets, np.where(tested == 0, targets, (sequences - tested) * self.context)

    @property
    def train(self) -> TokenExamples:
        """The training set."""
        starts, _, trained = self._stretches
        return TokenExamples(self.tokens, starts, trained, self.context)

    @property
    def test(self) -> TokenExamples:
        """The test set."""
        starts, targets, trained = self._stretches
        return TokenExamples(self.tokens, starts + trained, targets - trained, self.context)


def load_text(
    path: Path, separator: str, context: int, test_share: float, report: ReportFunction
) -> TokenData:
    """Return the tokens of a text, encoded now or on an earlier call; raise DataError if it is too short."""
    key = hash_text(path, separator)
    place = data_cache_folder() / "tokens" / key
    if not place.is_dir():
        with writing_to_cache(), lock_cache(f"tokens-{key}", report):
            if not place.is_dir():  # another process may have encoded the text meanwhile
                place.parent.mkdir(exist_ok=True)
                report(f"{path}: encoding its characters into {place}")
                with tempfile.TemporaryDirectory(suffix=".partial", dir=data_cache_folder()) as workspace:
                    encode_text(path, separator, ready := Path(workspace, "ready"))
                    ready.rename(place)
    try:
        tokens = np.load(place / "tokens.npy", mmap_mode="r", allow_pickle=False)
        documents = np.load(place / "documents.npy", allow_pickle=False)
        facts = json.loads((place / "vocabulary.json").read_text(encoding="utf-8"))
        data = TokenData(tokens, documents, tuple(facts["characters"]), facts["chance"], context, test_share)
        if len(tokens) != documents[-1]:
            raise ValueError(f"{len(tokens)} tokens instead of {documents[-1]}")
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise DataError(
            f"{place} is damaged ({error}). Delete the folder; it will be encoded again."
        ) from None
    if not len(data.train) or not len(data.test):
        raise DataError(
            f"{path} gives {len(data.train)} training and {len(data.test)} test sequences with "
            f"context={context} and test={test_share}. Use a longer text or a smaller context."
        )
    return data


def encode_text(path: Path, separator: str, folder: Path) -> None:
    """Write the tokens of a text, the ends of its documents and its vocabulary into a new folder."""
    totals, size, ends = np.zeros(CODE_POINTS, np.int64), 0, list[int]()
    for block in read_blocks(path, separator):
        if block is None:
            if size > (ends[-1] if ends else 0):  # not an empty document
                ends.append(size)
        else:
            codes = find_codes(block)
            size += len(codes)
            counts = np.bincount(codes)
            totals[: len(counts)] += counts
    if not size:
        raise DataError(f"{path} contains no text.")
    known = np.flatnonzero(totals)
    dtype = np.min_scalar_type(len(known) - 1)
    table = np.zeros(CODE_POINTS, dtype)
    table[known] = np.arange(len(known))
    folder.mkdir()
    tokens = np.lib.format.open_memmap(folder / "tokens.npy", mode="w+", dtype=dtype, shape=(size,))
    place = 0
    for block in read_blocks(path, separator):
        if block is not None:
            codes = find_codes(block)
            tokens[place : place + len(codes)] = table[codes]
            place += len(codes)
    tokens.flush()
    np.save(folder / "documents.npy", np.array(ends, np.int64))
    facts = {"characters": "".join(map(chr, known)), "chance": 100 * float(totals.max()) / size}
    (folder / "vocabulary.json").write_text(json.dumps(facts), encoding="utf-8")


def find_codes(block: str) -> NDArray[np.uint32]:
    """Return the code points of the characters."""
    return np.frombuffer(block.encode("utf-32-le"), np.uint32)


def read_blocks(path: Path, separator: str) -> Iterator[str | None]:
    """Yield the text in blocks, and None at the end of every document."""
    for file in list_text_files(path):
        try:
            with file.open(encoding="utf-8", newline="") as content:
                if separator:
                    yield from read_separated(content, separator)
                else:
                    while block := content.read(BLOCK):
                        yield block
        except UnicodeDecodeError as error:
            raise DataError(
                f"{file} is not UTF-8 text: {error}. Convert it, for example with iconv."
            ) from None
        yield None


def read_separated(content: Any, separator: str) -> Iterator[str | None]:
    """Yield the text of a file between the lines that equal the separator, and None for each such line."""
    while lines := content.readlines(BLOCK):
        start = 0
        for number, line in enumerate(lines):
            if line.rstrip("\r\n") == separator:
                yield "".join(lines[start:number])
                yield None
                start = number + 1
        yield "".join(lines[start:])


def list_text_files(path: Path) -> list[Path]:
    """Return the file, or the `.txt` files of the folder in the order of their names."""
    files = sorted(file for file in path.glob("**/*.txt") if file.is_file()) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path} contains no .txt files.")
    for file in files:
        if not file.is_file():  # a pipe or a device might never end
            state = "is not a regular file" if file.exists() else "does not exist"
            raise DataError(f"{file} {state}. The current folder is {Path.cwd()}.")
    return files


def hash_text(path: Path, separator: str) -> str:
    """Return a hash of the documents of a text; files that have not changed are read once per process."""
    states = ((str(file.absolute()), file.stat()) for file in list_text_files(path))
    known = tuple((name, state.st_size, state.st_mtime_ns) for name, state in states)
    return hash_files(known, separator)


@lru_cache(maxsize=256)
def hash_files(files: tuple[tuple[str, int, int], ...], separator: str) -> str:
    """Return a hash of files (name, size, time of the last change) that does not depend on their names."""
    digest = hashlib.sha256(separator.encode())
    for name, size, _ in files:
        digest.update(b"\0%d\0" % size)
        with Path(name).open("rb", buffering=0) as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]
