"""The cache of published data sets: sources → files → verified data → memory maps."""

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from filelock import FileLock, Timeout

from straggler.problems.downloads.sources import (
    DataError,
    FilesMissingError,
    FolderSource,
    ReportFunction,
    Source,
)

log = logging.getLogger(__name__)
Data = TypeVar("Data", covariant=True)


class Published(Protocol[Data]):
    """The description of a published data set, which verifies its files."""

    @property
    def name(self) -> str: ...
    @property
    def train(self) -> int: ...
    @property
    def test(self) -> int: ...
    @property
    def license(self) -> str: ...

    def open(self, folder: Path) -> Data:
        """Return the verified data of a cache folder; raise DataError otherwise."""

    def store(self, source: Path, folder: Path) -> None:
        """Verify the files of a source, and write the data into an empty folder."""


@dataclass(frozen=True)
class DataSetStatus:
    """Where a data set is, and whether its checksums are those of the published files."""

    name: str
    present: bool
    checksum_ok: bool
    source: str
    path: Path | None
    size: int  # bytes
    train: int  # samples
    test: int
    problem: str = ""
    license: str = ""


def data_cache_folder() -> Path:
    """Return `STRAGGLER_CACHE`, else `straggler` in the user's cache folder."""
    if path := os.environ.get("STRAGGLER_CACHE"):
        return Path(path).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "straggler"


def load_published(
    published: Published[Data],
    sources: Sequence[Source],
    folder: Path | None = None,
    report: ReportFunction = log.info,
) -> Data:
    """Return the data from the cache, else from the user's folder, else from the first working source."""
    if folder is not None and not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Pass an existing folder with --data or STRAGGLER_DATA.")
    try:
        return published.open(data_cache_folder() / published.name)
    except DataError:
        pass
    with writing_to_cache(), lock_cache(published.name, report):
        return fetch_published(published, sources, folder, report)


@contextmanager
def writing_to_cache() -> Iterator[None]:
    """Raise a DataError with a remedy if the cache cannot be written in this block."""
    try:
        yield
    except OSError as error:
        remedy = "Set STRAGGLER_CACHE to a writable folder with enough space"
        problem = f"Cannot write to the cache {data_cache_folder()}: {error.strerror or error}"
        raise DataError(f"{problem}. {remedy}.") from None


def fetch_published(
    published: Published[Data], sources: Sequence[Source], folder: Path | None, report: ReportFunction
) -> Data:
    """Fill the cache and return its data. The caller holds the lock."""
    name, place = published.name, data_cache_folder() / published.name
    try:
        return published.open(place)  # another process may have fetched the data meanwhile
    except DataError as error:
        reasons = [f"cache {place}: {error}"]
        if not isinstance(error, FilesMissingError):
            report(f"{error}; fetching {name} again")
    for source in [FolderSource(folder), *sources] if folder else sources:
        try:
            store_from_source(published, source, report)
            return published.open(place)
        except DataError as error:
            if isinstance(source, FolderSource) and not isinstance(error, FilesMissingError):
                raise DataError(
                    f"{error}. Replace the file, pass a folder with the files in a subfolder {name}, "
                    f"or leave out --data to download {name}."
                ) from None
            reasons.append(f"{source}: {error}")
            report(reasons[-1])
    listed = "\n".join(f"  - {reason}" for reason in reasons)
    remedy = "Put its files into a folder and pass it with --data DIR or STRAGGLER_DATA=DIR."
    raise DataError(f"{name} is not available:\n{listed}\n{remedy}")


def store_from_source(published: Published[object], source: Source, report: ReportFunction) -> None:
    """Fetch and verify the files of one source, and move the data into the cache in one step."""
    place = data_cache_folder() / published.name
    for stale in data_cache_folder().glob(f".{published.name}-*.partial"):  # left by a killed process
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{published.name}-", suffix=".partial", dir=data_cache_folder()
    ) as workspace:
        files, ready = Path(workspace, "files"), Path(workspace, "ready")
        files.mkdir()
        fetched = source.fetch(files, report)
        ready.mkdir()
        published.store(fetched, ready)
        size = sum(file.stat().st_size for file in ready.iterdir())
        (ready / "source.json").write_text(json.dumps({"source": str(source)}) + "\n", encoding="utf-8")
        if place.exists():
            place.rename(Path(workspace, "replaced"))
        ready.rename(place)
    report(f"{published.name}: cached {size / 1e6:.0f} MB from {source} in {place}")


@contextmanager
def lock_cache(name: str, report: ReportFunction) -> Iterator[None]:
    """Lock the cache while fetching a data set, so that other processes wait."""
    data_cache_folder().mkdir(parents=True, exist_ok=True)
    lock = FileLock(data_cache_folder() / f".{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(f"{name}: waiting for another process that is fetching it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def inspect_cache(published: Published[object]) -> DataSetStatus:
    """Return the status of a published data set in the cache; all its checksums are verified."""
    place, problem, source = data_cache_folder() / published.name, "", ""
    try:
        published.open(place)
    except DataError as error:
        problem = str(error)
    with suppress(OSError, ValueError, KeyError, TypeError):  # the source is information only
        source = str(json.loads((place / "source.json").read_text(encoding="utf-8"))["source"])
    return DataSetStatus(
        name=published.name,
        present=place.is_dir(),
        checksum_ok=not problem,
        source=source,
        path=place,
        size=sum(file.stat().st_size for file in place.glob("*.*") if file.suffix != ".json"),
        train=published.train,
        test=published.test,
        problem=problem,
        license=published.license,
    )
