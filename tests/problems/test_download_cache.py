"""The data cache and user folders: complete or absent, and damaged files are detected."""

import gzip
import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from straggler.problems.downloads.cache import data_cache_folder, inspect_cache, load_published
from straggler.problems.downloads.formats import ARRAYS
from straggler.problems.downloads.sources import DataError
from tiny_data import TINY, Fake, Wrong, empty, flip, leftovers, same, truncate, write_idx


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STRAGGLER_DATA", raising=False)
    return tmp_path / "cache"


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("inside", [".", "tiny"])
@pytest.mark.parametrize("dot", ["-idx", ".idx"])
def test_idx_files_in_the_users_folder_are_read_and_cached(cache, tmp_path, end, inside, dot):
    compress = gzip.compress if end else bytes
    folder = tmp_path / "mine"
    write_idx(folder / inside, spell=lambda name: name.replace("-idx", dot) + end, compress=compress)
    arrays = load_published(TINY, [], folder)
    assert same(arrays)
    assert all(isinstance(array, np.memmap) for array in arrays.values())
    assert same(load_published(TINY, [])), "the second load reads the cache"
    assert inspect_cache(TINY).source == f"folder {folder}"


def test_the_cache_folder_can_serve_as_the_users_folder(cache, tmp_path, monkeypatch):
    load_published(TINY, [Fake()])
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "other"))
    assert same(load_published(TINY, [], cache))


@pytest.mark.parametrize("damage", [truncate, flip, empty])
@pytest.mark.parametrize("compress", [gzip.compress, bytes])
def test_a_damaged_file_in_the_users_folder_is_an_error_and_no_other_source_is_used(
    cache, tmp_path, damage, compress
):
    end = ".gz" if compress is gzip.compress else ""
    folder = write_idx(tmp_path / "mine", spell=lambda name: name + end, compress=compress)
    damage(folder / f"t10k-images-idx3-ubyte{end}")
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte.*(truncated|damaged|IDX).*leave out --data"):
        load_published(TINY, [Fake()], folder)
    assert leftovers(cache) == []


def test_a_missing_file_in_the_users_folder_is_an_error(cache, tmp_path):
    folder = write_idx(tmp_path / "mine", compress=bytes)
    (folder / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="does not contain train-labels-idx1-ubyte"):
        load_published(TINY, [Fake()], folder)


def test_a_users_folder_without_the_data_is_reported_and_the_next_source_is_tried(cache, tmp_path):
    messages = []
    assert same(load_published(TINY, [Fake()], tmp_path, messages.append))
    assert any("no files of tiny" in line for line in messages)


def test_a_users_folder_that_does_not_exist_is_an_error_even_if_the_data_are_cached(cache, tmp_path):
    load_published(TINY, [Fake()])
    with pytest.raises(DataError, match=r"nowhere is not a folder.*--data"):
        load_published(TINY, [Fake()], tmp_path / "nowhere")


def test_sources_are_tried_in_order_and_each_failure_is_reported(cache):
    messages = []
    arrays = load_published(
        TINY, [Fake("one", DataError("no route")), Wrong("two"), Fake("three")], None, messages.append
    )
    assert same(arrays)
    assert inspect_cache(TINY).source == "three"
    assert any(line == "one: no route" for line in messages)
    assert any(line.startswith("two: ") and "SHA-256" in line for line in messages)


def test_when_all_fail_the_error_names_each_source_its_reason_and_the_folder_option(cache):
    with pytest.raises(DataError) as caught:
        load_published(TINY, [Fake("one", DataError("no route")), Wrong("two")])
    message = str(caught.value)
    for part in ("cache", "one: no route", "two: ", "--data DIR", "STRAGGLER_DATA"):
        assert part in message
    assert leftovers(cache) == []


@pytest.mark.parametrize("damage", [truncate, flip, empty, Path.unlink])
@pytest.mark.parametrize("array", ARRAYS)
def test_a_damaged_cache_is_reported_and_fetched_again(cache, damage, array):
    load_published(TINY, [Fake()])
    damage(cache / "tiny" / f"{array}.npy")
    assert not inspect_cache(TINY).checksum_ok
    messages = []
    assert same(load_published(TINY, [Fake("again")], None, messages.append))
    assert any(f"{array}.npy" in line and "again" in line for line in messages)
    assert inspect_cache(TINY).checksum_ok
    assert leftovers(cache) == ["tiny"]


def test_a_damaged_cache_stays_if_it_cannot_be_fetched_again(cache):
    load_published(TINY, [Fake()])
    flip(cache / "tiny" / "test-labels.npy")
    with pytest.raises(DataError, match=r"test-labels.npy is damaged"):
        load_published(TINY, [Fake("one", DataError("no route"))])
    assert leftovers(cache) == ["tiny"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), RuntimeError("bug")])
def test_an_interruption_leaves_no_files(cache, failure):
    with pytest.raises(type(failure)):
        load_published(TINY, [Fake(failure=failure)])
    assert leftovers(cache) == []
    assert same(load_published(TINY, [Fake()])), "the lock must be free again"


def test_files_of_a_killed_process_are_deleted(cache):
    (cache / ".tiny-abc.partial").mkdir(parents=True)
    load_published(TINY, [Fake()])
    assert leftovers(cache) == ["tiny"]


def test_a_full_disk_is_an_error_and_leaves_no_files(cache, monkeypatch):
    def full(file, array):
        Path(file).write_bytes(b"some")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DataError, match=r"No space left.*STRAGGLER_CACHE"):
        load_published(TINY, [Fake()])
    assert leftovers(cache) == []


def test_a_cache_folder_that_cannot_be_created_is_an_error_with_a_remedy(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match="STRAGGLER_CACHE"):
        load_published(TINY, [Fake()])


def fetch_in_another_process(calls, answers):
    answers.put(same(load_published(TINY, [Fake(calls=calls, seconds=0.5)])))


def test_two_processes_fetch_a_data_set_once(cache, tmp_path):
    context = multiprocessing.get_context("spawn")
    answers, calls = context.Queue(), tmp_path / "calls"
    processes = [context.Process(target=fetch_in_another_process, args=(calls, answers)) for _ in range(2)]
    for process in processes:
        process.start()
    assert [answers.get(timeout=60) for _ in processes] == [True, True]
    for process in processes:
        process.join()
    assert calls.read_text() == "called\n"
    assert leftovers(cache) == ["tiny"]


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("STRAGGLER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_cache_folder() == tmp_path / "straggler"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_cache_folder() == tmp_path / ".cache" / "straggler"
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "x"))
    assert data_cache_folder() == tmp_path / "x"


def test_the_status_reports_a_damaged_cache(cache):
    load_published(TINY, [Fake()])
    assert inspect_cache(TINY).checksum_ok
    flip(cache / "tiny" / "train-images.npy")
    row = inspect_cache(TINY)
    assert row.present
    assert not row.checksum_ok
    assert "train-images.npy" in row.problem
