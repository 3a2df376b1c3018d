"""Transfer of data sets and records between machines, as the contents of their files."""

import json
import shutil
from pathlib import Path

import numpy as np

from straggler.problems.datasets import DataSet, PublishedDataSet
from straggler.problems.downloads.cache import data_cache_folder, inspect_cache
from straggler.problems.downloads.formats import Array
from straggler.record import Record
from straggler.running.atomic_files import write_text_atomically

PackedData = dict[str, Array]
PackedRecord = dict[str, bytes]


def pack_dataset(dataset: DataSet, folder: Path | None) -> PackedData | None:
    """Return the files of a published data set, downloaded if necessary; None for other data sets."""
    if not isinstance(dataset, PublishedDataSet):
        return None
    dataset.load(folder)
    files = sorted((data_cache_folder() / dataset.published.name).iterdir())
    return {file.name: np.fromfile(file, np.uint8) for file in files}


def unpack_dataset(dataset: DataSet, packed: PackedData | None, folder: Path) -> Path | None:
    """Write a data set into a folder and return the folder; None if this machine's cache has the data."""
    if (
        packed is None
        or not isinstance(dataset, PublishedDataSet)
        or not inspect_cache(dataset.published).problem
    ):
        return None
    place = folder / dataset.published.name
    place.mkdir()
    for name, content in packed.items():
        content.tofile(place / name)
    return folder


def pack_record(folder: Path) -> PackedRecord:
    """Return the files of a finished record, without its lock and the folders of loggers."""
    return {
        file.name: file.read_bytes() for file in folder.iterdir() if file.is_file() and file.name != ".lock"
    }


def unpack_record(packed: PackedRecord, folder: Path, experiment: str) -> Record:
    """Write a record, completely or not at all, replacing the files of an interrupted run.

    `experiment` is its TOML text on this machine; the other machine may not know the files of custom code.
    """
    arriving = folder.with_name(f".{folder.name}.arriving")
    shutil.rmtree(arriving, ignore_errors=True)
    arriving.mkdir(parents=True)
    for name, content in packed.items():
        (arriving / Path(name).name).write_bytes(content)
    (arriving / "experiment.toml").write_text(experiment)
    summary = Record(arriving).summary | {"id": folder.name, "record": str(folder)}
    write_text_atomically(arriving / "summary.json", json.dumps(summary, indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    arriving.rename(folder)
    return Record(folder)
