"""Partitions: disjoint, complete, without empty parts, and determined by the seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from straggler.config.registry import parse_entry
from straggler.problems.partitions import PARTITIONS, count_classes

DISJOINT = ["iid", "label", "dirichlet(alpha=0.3)", "dirichlet(alpha=1e-6)", "shards(per_worker=1)", "shards"]
DISJOINT += ["by-stream", "by-document"]
BALANCED = np.repeat(np.arange(10), 60)


def split(text, labels, workers, seed=0):
    return parse_entry(text, PARTITIONS).split(labels, workers, np.random.default_rng(seed))


def classes_of(labels, part):
    return set(labels[part].tolist())


@st.composite
def dealt(draw):
    labels = np.array(draw(st.lists(st.integers(0, 11), min_size=1, max_size=120)))
    text = draw(st.sampled_from(DISJOINT))
    limit = len(labels) // (2 if text == "shards" else 1)
    return labels, text, draw(st.integers(1, max(1, limit))), draw(st.integers(0, 3))


@settings(max_examples=300)
@given(dealt())
def test_parts_are_disjoint_complete_and_not_empty(case):
    labels, text, workers, seed = case
    if text == "shards" and len(labels) < 2 * workers:
        return
    parts = split(text, labels, workers, seed)
    assert len(parts) == workers
    assert all(len(part) > 0 and part.dtype == np.int64 for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


@settings(max_examples=50)
@given(dealt())
def test_the_seed_determines_the_parts(case):
    labels, text, workers, seed = case
    if text == "shards" and len(labels) < 2 * workers:
        return
    first, second = split(text, labels, workers, seed), split(text, labels, workers, seed)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("text", DISJOINT)
def test_another_seed_gives_other_parts(text):
    first, second = split(text, BALANCED, 5, 0), split(text, BALANCED, 5, 1)
    assert any(set(a) != set(b) for a, b in zip(first, second, strict=True))


def test_shared_is_one_array_for_any_number_of_workers():
    parts = split("shared", BALANCED, 10_000)
    assert all(part is parts[0] for part in parts)
    assert np.array_equal(parts[0], np.arange(600))


@pytest.mark.parametrize("workers", [1, 7, 13, 600])
def test_iid_sizes_differ_by_at_most_one(workers):
    sizes = [len(part) for part in split("iid", BALANCED, workers)]
    assert max(sizes) - min(sizes) <= 1


def test_iid_mixes_classes():
    assert all(len(classes_of(BALANCED, part)) == 10 for part in split("iid", BALANCED, 4))


@pytest.mark.parametrize("workers", range(1, 11))
def test_label_deals_whole_classes_round_robin(workers):
    parts = split("label", BALANCED, workers)
    counts = count_classes(BALANCED, parts, 10)
    assert set(np.unique(counts)) <= {0, 60}
    expected = [len(range(worker, 10, workers)) for worker in range(workers)]
    assert [len(classes_of(BALANCED, part)) for part in parts] == expected


@pytest.mark.parametrize("workers", [11, 20, 25, 40, 600])
def test_label_beyond_the_classes_gives_each_worker_one_class(workers):
    counts = count_classes(BALANCED, split("label", BALANCED, workers), 10)
    assert ((counts > 0).sum(axis=1) == 1).all()
    assert (counts.sum(axis=0) == 60).all()
    sharing = (counts > 0).sum(axis=0)
    assert sharing.max() - sharing.min() <= 1


def test_label_shares_the_fullest_class_first():
    labels = np.array([0] * 97 + [1, 2, 2])
    counts = count_classes(labels, split("label", labels, 50), 3)
    assert (counts > 0).sum(axis=0).tolist()[1] == 1
    assert (counts > 0).sum(axis=0).tolist()[0] >= 48


def test_label_ignores_classes_that_do_not_occur():
    labels = np.array([3, 3, 9, 9, 9])
    assert sorted(len(part) for part in split("label", labels, 2)) == [2, 3]


@pytest.mark.parametrize(
    ("workers", "each", "trained"), [(2, 300, 10), (4, 120, 8), (5, 120, 10), (8, 60, 8), (10, 60, 10)]
)
def test_label_truncated_drops_the_same_classes_as_the_epfl_code(workers, each, trained):
    parts = split("label-truncated", BALANCED, workers)
    assert [len(part) for part in parts] == [each] * workers
    assert (count_classes(BALANCED, parts, 10).sum(axis=0) > 0).sum() == trained


def test_label_truncated_keeps_the_beginning_of_each_label_part():
    whole, short = split("label", BALANCED, 4), split("label-truncated", BALANCED, 4)
    assert all(np.array_equal(a[: len(b)], b) for a, b in zip(whole, short, strict=True))


def test_label_truncated_refuses_empty_workers():
    with pytest.raises(ValueError, match=r"workers \(20\) than classes \(10\).*at most 10 workers.*label"):
        split("label-truncated", BALANCED, 20)


def concentration(alpha):
    counts = count_classes(BALANCED, split(f"dirichlet(alpha={alpha})", BALANCED, 10), 10)
    return (counts.max(axis=0) / counts.sum(axis=0)).mean()


def test_a_smaller_alpha_makes_workers_more_different():
    assert concentration(0.01) > 0.8 > concentration(1) > 0.15 > concentration(1000)


def test_dirichlet_terminates_with_a_tiny_alpha_and_one_sample_per_worker():
    assert [len(part) for part in split("dirichlet(alpha=1e-6)", BALANCED, 600)] == [1] * 600


def test_dirichlet_for_ten_thousand_workers():
    labels = np.arange(20_000) % 10
    assert min(len(part) for part in split("dirichlet(alpha=0.1)", labels, 10_000)) >= 1


@pytest.mark.parametrize("alpha", ["0", "-1", "inf", "1e7"])
def test_dirichlet_refuses_an_invalid_alpha(alpha):
    with pytest.raises(ValueError, match="alpha"):
        parse_entry(f"dirichlet(alpha={alpha})", PARTITIONS)


def test_shards_hold_few_classes():
    parts = split("shards", BALANCED, 30)
    assert [len(part) for part in parts] == [20] * 30
    assert max(len(classes_of(BALANCED, part)) for part in parts) == 2


@pytest.mark.parametrize("workers", [1, 3, 7, 60])
def test_by_stream_deals_consecutive_stretches_of_equal_length(workers):
    parts = split("by-stream", BALANCED, workers)
    assert all(np.array_equal(np.diff(part), np.ones(len(part) - 1)) for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@settings(max_examples=100)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 12), st.integers(0, 3))
def test_by_document_keeps_documents_whole_and_balances_their_lengths(lengths, workers, seed):
    labels = np.repeat(np.arange(len(lengths)), lengths)
    if len(labels) < workers:
        return
    parts = split("by-document", labels, workers, seed)
    if workers > len(lengths):  # then each worker has a stretch of one document
        assert all(
            len(classes_of(labels, part)) == 1 and part[-1] - part[0] == len(part) - 1 for part in parts
        )
        return
    assert sum(len(classes_of(labels, part)) for part in parts) == len(lengths)
    sizes = sorted(map(len, parts))
    assert sizes[-1] - sizes[0] <= max(lengths)
    assert all(np.array_equal(part, np.sort(part)) for part in parts), "the order of the text is kept"


@pytest.mark.timeout(100)
def test_by_document_for_many_documents():
    parts = split("by-document", np.arange(200_000), 200)
    assert {len(part) for part in parts} == {1000}


@pytest.mark.parametrize("text", ["iid", "label", "dirichlet(alpha=1)", "shards"])
def test_more_workers_than_samples_is_refused_with_a_remedy(text):
    with pytest.raises(ValueError, match=r"4 samples for 5 workers.*at most \d workers.*shared"):
        split(text, np.array([0, 1, 0, 1]), 5)


@pytest.mark.parametrize("text", ["label", "label-truncated", "dirichlet(alpha=1)", "shards"])
def test_partitions_by_label_refuse_targets_of_several_dimensions(text):
    with pytest.raises(ValueError, match=r"one label per sample.*2 dimensions.*partition=iid"):
        split(text, np.zeros((20, 2)), 2)
    assert sum(map(len, split("iid", np.zeros((20, 2)), 2))) == 20


@pytest.mark.parametrize("text", ["shared", "iid"])
def test_zero_workers_are_refused(text):
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        split(text, BALANCED, 0)


def test_class_counts_have_a_row_per_worker():
    counts = count_classes(np.array([0, 2, 2]), [np.array([0, 1]), np.array([2])], 4)
    assert counts.tolist() == [[1, 0, 1, 0], [0, 0, 1, 0]]
