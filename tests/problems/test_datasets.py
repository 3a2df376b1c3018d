"""The data sets of the catalogue: their contents, checksums and limits."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from straggler.config.registry import InputError, parse_entry
from straggler.experiment import Experiment
from straggler.problems.datasets import DATASETS, Cifar10, list_statuses
from straggler.problems.downloads.cache import inspect_cache, load_published
from straggler.problems.downloads.sources import DataError
from tiny_data import flip, leftovers, truncate


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STRAGGLER_DATA", raising=False)
    return tmp_path / "cache"


def test_digits_have_28_by_28_pixels_and_a_stratified_split():
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
    data = parse_entry("digits(normalise=false)", DATASETS).load()
    assert (data.mean, data.std) == ((0.0,), (1.0,))


def test_the_settings_determine_a_mixture():
    first, again = (DATASETS["mixture"]().load() for _ in range(2))
    other = parse_entry("mixture(seed=1)", DATASETS).load()
    assert np.array_equal(first.inputs, again.inputs)
    assert not np.allclose(first.inputs, other.inputs)
    assert first.inputs.dtype == np.float32
    assert (first.inputs.shape, first.test_inputs.shape) == ((2000, 20), (500, 20))
    assert np.bincount(first.labels).tolist() == [200] * 10
    assert first.mean == ()


def nearest_centre_accuracy(text):
    data = parse_entry(text, DATASETS).load()
    centres = np.stack([data.inputs[data.labels == c].mean(axis=0) for c in range(len(data.classes))])
    distances = ((data.test_inputs[:, None] - centres) ** 2).sum(axis=2)
    return (distances.argmin(axis=1) == data.test_labels).mean()


def test_spread_makes_a_mixture_harder_to_learn():
    assert nearest_centre_accuracy("mixture") > 0.9
    assert nearest_centre_accuracy("mixture(spread=10)") < 0.5


def test_synthetic_is_an_alias_of_mixture():
    assert str(parse_entry("synthetic(samples=50)", DATASETS)) == "mixture(samples=50)"


@pytest.mark.parametrize("text", ["mixture(samples=3)", "mixture(classes=1)", "mixture(spread=-1)"])
def test_an_invalid_mixture_is_refused(text):
    with pytest.raises(ValueError, match="mixture"):
        parse_entry(text, DATASETS)


@pytest.mark.parametrize(
    "settings",
    [
        {"dataset": "mixture(samples=1e12)"},
        {"dataset": "mixture(samples=100000, features=100000)"},
        {"dataset": "quadratic(dimension=1e12)"},
        {"dataset": "quadratic(dimension=100000000)", "workers": 100},
        {"dataset": "mixture", "model": "mlp(hidden=[1000000, 1000000])"},
    ],
)
def test_data_and_models_too_large_for_memory_are_refused_at_once(settings, tmp_path):
    with pytest.raises(InputError, match=r"limit|2147483648"):
        Experiment(**settings, updates=1).run(tmp_path)
    assert not list(tmp_path.iterdir())


def test_status_lists_every_data_set_and_downloads_nothing(cache):
    rows = {row.name: row for row in list_statuses()}
    published = {"fashion-mnist", "mnist", "cifar10", "moby-dick", "state-of-the-union"}
    assert set(rows) == published | {"digits", "mixture"}
    assert not rows["mnist"].present
    assert not rows["mnist"].checksum_ok
    assert rows["digits"].present
    assert rows["digits"].train == 1437
    assert not cache.exists()


REAL = [
    ("fashion-mnist", (60_000, 1, 28, 28)),
    ("mnist", (60_000, 1, 28, 28)),
    ("cifar10", (50_000, 3, 32, 32)),
]
CIFAR10 = Cifar10.published


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), REAL)
def test_published_data_have_the_stated_shapes_means_and_deviations(name, shape):
    data = DATASETS[name]().load()
    assert data.inputs.shape == shape
    assert isinstance(data.inputs, np.memmap)
    assert len(data.classes) == 10
    assert data.labels.dtype == np.int64
    assert len(data.test_labels) == 10_000 == len(data.test_inputs)
    mean, std = (getattr(data.inputs, what)(axis=(0, 2, 3)) / 255 for what in ("mean", "std"))
    assert np.allclose(mean, data.mean, atol=6e-5)
    assert np.allclose(std, data.std, atol=6e-5)
    if name != "mnist":
        assert len(set(np.bincount(data.labels))) == 1


def test_the_data_folder_may_come_from_the_environment(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("STRAGGLER_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="nowhere is not a folder"):
        DATASETS["mnist"]().load()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fashion-mnist", "mnist"])
def test_an_empty_cache_is_filled_from_a_source(cache, name):
    try:
        DATASETS[name]().load()
    except DataError as error:
        pytest.skip(f"no source is reachable: {error}")
    assert inspect_cache(DATASETS[name].published).checksum_ok
    assert leftovers(cache) == [name]


@pytest.fixture(scope="module")
def cifar():
    return Cifar10().load()


def cifar_batches(data):
    labels, images = data.labels.astype(np.uint8).reshape(5, -1), data.inputs.reshape(5, -1, 3072)
    yield from ((f"data_batch_{i + 1}", labels[i], images[i]) for i in range(5))
    yield "test_batch", data.test_labels.astype(np.uint8), data.test_inputs.reshape(-1, 3072)


@pytest.mark.slow
def test_cifar10_is_read_from_binary_files_and_a_damaged_file_is_named(cifar, cache, tmp_path):
    for name, labels, images in cifar_batches(cifar):
        (tmp_path / f"{name}.bin").write_bytes(np.concatenate([labels[:, None], images], axis=1).tobytes())
    # the MD5 of the file that the authors distribute
    first = hashlib.md5((tmp_path / "data_batch_1.bin").read_bytes()).hexdigest()
    assert first == "5dd7e06a14cb22eb9f671a540d1b7c25"
    flip(tmp_path / "data_batch_3.bin")
    with pytest.raises(DataError, match=r"data_batch_3\.bin is damaged"):
        load_published(CIFAR10, [], tmp_path)
    flip(tmp_path / "data_batch_3.bin")
    assert np.array_equal(load_published(CIFAR10, [], tmp_path)["test-images"], cifar.test_inputs)
    truncate(tmp_path / "data_batch_5.bin")
    with pytest.raises(DataError, match=r"data_batch_5\.bin is truncated or damaged"):
        load_published(replace(CIFAR10, name="another"), [], tmp_path)


@pytest.mark.slow
def test_cifar10_is_read_from_pictures(cifar, cache, tmp_path):
    for name, _, images in cifar_batches(cifar):
        rows = images.reshape(-1, 3, 1024).transpose(0, 2, 1)
        Image.fromarray(np.ascontiguousarray(rows)).save(tmp_path / f"{name}.png", compress_level=0)
    (tmp_path / "train_lables.json").write_text(json.dumps(cifar.labels.tolist()))
    (tmp_path / "test_lables.json").write_text(json.dumps(cifar.test_labels.tolist()))
    whole = (tmp_path / "data_batch_1.png").read_bytes()
    (tmp_path / "data_batch_1.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"data_batch_1\.png is truncated"):
        load_published(CIFAR10, [], tmp_path)
    (tmp_path / "data_batch_1.png").write_bytes(whole)
    assert np.array_equal(load_published(CIFAR10, [], tmp_path)["train-images"], cifar.inputs)


@pytest.mark.slow
def test_cifar10_is_augmented_only_on_request():
    assert not parse_entry("cifar10", DATASETS).load().augment
    assert parse_entry("cifar10(augment=true)", DATASETS).load().augment
