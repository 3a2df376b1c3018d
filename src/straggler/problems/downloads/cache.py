"""The cache: published data sets as checked, memory-mapped arrays, written whole or not at all."""

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from straggler.problems.downloads.formats import open_arrays, read_folder
from straggler.problems.downloads.published import Array, PublishedData
from straggler.problems.downloads.sources import DataError, FilesMissing, FolderSource, ReportFunction, Source

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataSetStatus:
    """Where a data set is and whether it is what was published."""

    name: str
    present: bool
    checksum_ok: bool
    source: str
    path: Path | None
    size: int
    train: int
    test: int
    problem: str = ""


def cache_folder() -> Path:
    """`STRAGGLER_CACHE`, else `straggler` in the user's cache folder."""
    if named := os.environ.get("STRAGGLER_CACHE"):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "straggler"


def load_published(
    published: PublishedData,
    sources: Sequence[Source],
    folder: Path | None = None,
    report: ReportFunction = log.info,
) -> dict[str, Array]:
    """The arrays from the cache, else from the named folder, else from the first source that has them."""
    if folder is not None and not folder.is_dir():
        raise DataError(f"{folder} is not a folder; --data (or STRAGGLER_DATA) names one that exists")
    try:
        return open_arrays(published, cache_folder() / published.name)
    except DataError:
        with locked(published.name, report):
            return open_or_fetch(published, sources, folder, report)


def open_or_fetch(
    published: PublishedData, sources: Sequence[Source], folder: Path | None, report: ReportFunction
) -> dict[str, Array]:
    """With the lock held: what another process fetched meanwhile, else fetch."""
    place = cache_folder() / published.name
    try:
        return open_arrays(published, place)
    except DataError as error:
        reasons = [f"cache {place}: {error}"]
        if not isinstance(error, FilesMissing):
            report(f"{error}; fetching {published.name} again")
    for source in [FolderSource(folder), *sources] if folder else sources:
        try:
            bring(published, source, report)
            return open_arrays(published, place)
        except DataError as error:
            if isinstance(source, FolderSource) and not isinstance(error, FilesMissing):
                raise DataError(f"{error}; {mend(published)}") from None
            reasons.append(f"{source}: {error}")
            report(reasons[-1])
        except OSError as error:
            raise DataError(unwritable(error)) from None
    raise DataError(no_source(published, reasons))


def mend(published: PublishedData) -> str:
    other = f"name a folder with its files in a subfolder {published.name}"
    return f"replace the file, {other}, or leave out --data to fetch {published.name}"


def unwritable(error: OSError) -> str:
    remedy = "name a folder that can be written, with room, with STRAGGLER_CACHE"
    return f"the cache {cache_folder()} cannot be written: {error.strerror or error}; {remedy}"


def no_source(published: PublishedData, reasons: Sequence[str]) -> str:
    listed = "\n".join(f"  - {reason}" for reason in reasons)
    remedy = "Put its files into a folder and name that with --data DIR or STRAGGLER_DATA=DIR."
    return f"{published.name} could not be had:\n{listed}\n{remedy}"


def bring(published: PublishedData, source: Source, report: ReportFunction) -> None:
    """Bring from one source, check, and put into the cache in one step."""
    with workspace(published.name) as work:
        (work / "files").mkdir()
        files = source.bring(work / "files", report)
        arrays = read_folder(published, files)
        store(arrays, work / "ready", str(source))
        place = cache_folder() / published.name
        if place.exists():
            place.rename(work / "replaced")
        (work / "ready").rename(place)
        report(f"{published.name}: {published.size() / 1e6:.0f} MB from {source}, now in {place}")


def store(arrays: dict[str, Array], folder: Path, source: str) -> None:
    """One `.npy` per array, and where they came from."""
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    (folder / "source.json").write_text(json.dumps({"source": source}) + "\n", encoding="utf-8")


@contextmanager
def workspace(name: str) -> Iterator[Path]:
    """A folder beside the cached data that is gone afterwards, whatever happens."""
    # the lock is held, so what a killed process left here is nobody's
    for stale in cache_folder().glob(f".{name}-*.partial"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", suffix=".partial", dir=cache_folder()) as folder:
        yield Path(folder)


@contextmanager
def locked(name: str, report: ReportFunction) -> Iterator[None]:
    """One process at a time fetches a data set; the others wait and then find it."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f".{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            report(f"{name}: another process is fetching it, waiting")
            lock.acquire()
    except OSError as error:
        raise DataError(unwritable(error)) from None
    try:
        yield
    finally:
        lock.release()


def inspect_cache(published: PublishedData) -> DataSetStatus:
    """What the cache holds of a data set, checked in full."""
    place = cache_folder() / published.name
    try:
        open_arrays(published, place)
        problem = ""
    except DataError as error:
        problem = str(error)
    return DataSetStatus(
        name=published.name,
        present=place.is_dir(),
        checksum_ok=not problem,
        source=origin(place),
        path=place,
        size=sum(file.stat().st_size for file in place.glob("*.npy")),
        train=published.train,
        test=published.test,
        problem=problem,
    )


def origin(place: Path) -> str:
    """The source that `store` noted; an unreadable note is no reason to fail."""
    try:
        return str(json.loads((place / "source.json").read_text(encoding="utf-8"))["source"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
