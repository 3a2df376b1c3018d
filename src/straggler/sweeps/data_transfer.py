"""Data sets on their way to machines that lack them: the files of this machine's cache, as bytes."""

from pathlib import Path

import numpy as np

from straggler.problems.datasets import DataSet, ImageDataSet
from straggler.problems.downloads.cache import cache_folder, inspect_cache
from straggler.problems.downloads.published import Array

SentData = dict[str, Array]  # the content of a file by its name


def data_of(dataset: DataSet, folder: Path | None) -> SentData | None:
    """A published data set as it is here, fetched if need be; nothing of one that is made on the spot."""
    if not isinstance(dataset, ImageDataSet):
        return None
    dataset.load(folder)
    files = sorted((cache_folder() / dataset.published.name).glob("*.npy"))
    return {file.name: np.fromfile(file, np.uint8) for file in files}


def data_there(dataset: DataSet, sent: SentData | None, folder: Path) -> Path | None:
    """On the other machine: a folder with what was sent, to be named, unless its cache has the data."""
    if sent is None or not isinstance(dataset, ImageDataSet) or not inspect_cache(dataset.published).problem:
        return None
    place = folder / dataset.published.name
    place.mkdir()
    for name, content in sent.items():
        content.tofile(place / name)
    return folder
