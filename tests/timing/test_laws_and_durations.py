"""Durations: the laws have the moments of their parameters, and a draw depends only on its address."""

import functools
import pickle
import zlib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset

from straggler.config.registry import parse_entry
from straggler.core.randomness import addressed_rng
from straggler.problems.datasets import DataArrays, Digits
from straggler.problems.examples import ArrayExamples, DatasetExamples
from straggler.problems.quadratic import NullProblem, QuadraticData, QuadraticProblem
from straggler.problems.supervised import SupervisedProblem
from straggler.timing.durations import DurationError, Durations
from straggler.timing.laws import BLOCK, DELAYS, Constant, Gamma, Law, Memoryless, Term, Trace

PLAIN = [
    "constant(seconds=0.3)",
    "gaussian(mean=0.5, std=0.05)",
    "uniform(low=1.0, high=3.0)",
    "exponential(mean=2.0, shift=0.5)",
    "gamma(mean=2.0, cv=0.5)",
    "gamma-machines(mean=2.0, cv_machine=0.6, cv_task=0.1)",
    "lognormal(mean=3.0, cv=0.7)",
    "pareto(scale=1.0, alpha=5.0)",
    "power(base=2.0, exponent=0.5)",
]
MULTIPLYING = ["spikes(probability=0.1, factor=5.0)", "on-off(fail=0.02, recover=0.03, factor=4.0)"]
BY_SAMPLES = ["by-label(factor=5.0, labels=[3, 7])", "by-length"]
NOT_RANDOM = ("constant", "power")


def law(text: str) -> Law:
    return parse_entry(text, DELAYS)


def durations(compute: str, *delays: str, workers: int = 4, seed: int = 7) -> Durations:
    return Durations(law(compute), [law(text) for text in delays], workers, seed)


def of(text: str, workers: int = 4, seed: int = 7) -> Durations:
    """Return durations with this law, as compute time or as a delay."""
    return (
        durations("gamma(1, .2)", text, workers=workers, seed=seed)
        if text in MULTIPLYING
        else durations(text, workers=workers, seed=seed)
    )


def sample(made: Durations, worker: int = 0, blocks: int = 400) -> np.ndarray:
    return np.concatenate([made.block(worker, number) for number in range(blocks)])


def trace_file(path: Path) -> Path:
    table = pl.DataFrame({"worker": [0, 1, 0, 1, 0], "seconds": [1.0, 10.0, 2.0, 20.0, 3.0]})
    table.write_csv(path) if path.suffix == ".csv" else table.write_parquet(path)
    return path


def test_every_law_is_tested_here() -> None:
    assert {law(text).name for text in PLAIN + MULTIPLYING + BY_SAMPLES} | {"trace"} == set(DELAYS)


# A draw depends on its address only


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**40 + 3])
def test_an_address_is_numpys_seed_sequence_of_its_four_numbers(seed: int) -> None:
    """Seeds of several words give the same draws too."""
    numbers = (seed, zlib.crc32(b"duration-0"), 0, 5)
    assert addressed_rng(seed, "duration-0", 0, 5).random() == np.random.default_rng(numbers).random()


@pytest.mark.parametrize("text", PLAIN + MULTIPLYING)
def test_seeded_and_repeatable(text: str) -> None:
    first, again, other = of(text), of(text), of(text, seed=8)
    assert [first(2, i) for i in range(100)] == [again(2, i) for i in range(100)]
    if law(text).name not in NOT_RANDOM:
        assert [first(2, i) for i in range(100)] != [other(2, i) for i in range(100)]


EVERYTHING = ("gamma-machines(1, .6, .1)", *MULTIPLYING, "exponential(mean=.1, workers=[1])")
IN_ORDER = durations(*EVERYTHING)
SEQUENTIAL = [[IN_ORDER.parts(worker, launch) for launch in range(5 * BLOCK)] for worker in range(4)]


@settings(max_examples=30)
@given(asked=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5 * BLOCK - 1)), min_size=1, max_size=40))
def test_draws_do_not_depend_on_the_order_of_calls(asked: list[tuple[int, int]]) -> None:
    made = durations(*EVERYTHING)
    for worker, launch in asked:
        assert made.parts(worker, launch) == SEQUENTIAL[worker][launch]
        assert made(worker, launch) == sum(SEQUENTIAL[worker][launch])


def test_blocks_equal_single_calls() -> None:
    made = durations(*EVERYTHING)
    for number in (3, 0, 4, 1):
        launches = range(number * BLOCK, (number + 1) * BLOCK)
        assert made.block(1, number).tolist() == [made(1, launch) for launch in launches]


def test_blocks_and_workers_differ() -> None:
    made = durations("gamma(1, .1)")
    draws = [made.block(worker, number) for worker in range(3) for number in range(3)]
    assert len(np.unique(np.concatenate(draws))) == 9 * BLOCK


@pytest.mark.parametrize("text", PLAIN + MULTIPLYING)
def test_draws_do_not_depend_on_the_number_of_workers(text: str) -> None:
    assert of(text, workers=4).block(3, 2).tolist() == of(text, workers=9).block(3, 2).tolist()


def test_terms_draw_independently_and_a_delay_leaves_the_compute_time_alone() -> None:
    alone, three = durations("gamma(1, .5)"), durations("gamma(1, .5)", "gamma(1, .5)")
    compute, delay = np.array([three.parts(0, i) for i in range(2000)]).T
    assert compute[:BLOCK].tolist() == alone.block(0, 0).tolist()
    assert abs(np.corrcoef(compute, delay)[0, 1]) < 0.1


def test_a_copy_in_another_process_agrees() -> None:
    made = durations(*EVERYTHING)
    made(0, 3 * BLOCK)
    assert pickle.loads(pickle.dumps(made))(0, 200) == made(0, 200)


def test_only_the_latest_block_of_a_worker_is_kept() -> None:
    made = durations("gamma(1, .1)")
    for launch in range(20 * BLOCK):
        made(0, launch)
    assert len(made._latest) == 1 and len(made._latest[0].compute) == BLOCK


# The parameters mean what they say

MOMENTS = [
    ("constant(seconds=0.3)", 0.3, 0.0),
    ("gaussian(mean=0.5, std=0.05)", 0.5, 0.1),
    ("uniform(low=1, high=3)", 2.0, 1 / np.sqrt(12)),
    ("exponential(mean=2)", 2.0, 1.0),
    ("exponential(mean=2, shift=6)", 8.0, 0.25),
    ("gamma(mean=2, cv=0.5)", 2.0, 0.5),
    ("gamma(mean=2, cv=0)", 2.0, 0.0),
    ("gamma-machines(mean=2, cv_machine=0, cv_task=0.3)", 2.0, 0.3),
    ("lognormal(mean=3, cv=0.7)", 3.0, 0.7),
    ("lognormal(mean=3, cv=0)", 3.0, 0.0),
    ("pareto(scale=2, alpha=5)", 2.5, 1 / np.sqrt(15)),
    ("power(base=2, exponent=0.5)", 2.0, 0.0),
]


@pytest.mark.parametrize(("text", "mean", "cv"), MOMENTS)
def test_mean_and_cv(text: str, mean: float, cv: float) -> None:
    drawn = sample(durations(text))
    assert drawn.mean() == pytest.approx(mean, rel=0.02)
    assert drawn.std() / drawn.mean() == pytest.approx(cv, rel=0.06, abs=1e-9)


def test_gaussian_is_clipped_at_zero() -> None:
    extra = sample(durations("constant(1)", "gaussian(mean=0, std=1)")) - 1
    assert extra.min() == 0 and np.mean(extra == 0) == pytest.approx(0.5, abs=0.02)
    assert extra.mean() == pytest.approx(1 / np.sqrt(2 * np.pi), rel=0.03)


def test_pareto_starts_at_its_scale_and_has_its_tail() -> None:
    drawn = sample(durations("pareto(scale=2, alpha=1.5)"))
    assert drawn.min() == pytest.approx(2, rel=1e-3) and drawn.min() >= 2
    assert np.mean(drawn > 8) == pytest.approx(4**-1.5, abs=0.01)


def test_power_of_the_workers_number() -> None:
    made = durations("power(base=3, exponent=2)")
    assert [made(worker, 5) for worker in range(4)] == [3, 12, 27, 48]


def test_gamma_rarely_exceeds_five_quarters_of_its_mean() -> None:
    # Gap-Aware, figure 3: .93 %
    assert np.mean(sample(durations("gamma(mean=128, cv=.1)"), blocks=1500) > 160) == pytest.approx(
        0.0093, abs=0.001
    )


def test_gamma_machines_often_exceed_five_quarters_of_their_mean() -> None:
    # Gap-Aware, figure 3: 27.9 %; over machines, since a machine keeps its mean
    made = durations("gamma-machines(mean=128, cv_machine=.6, cv_task=.1)", workers=8000)
    drawn = np.stack([made.block(worker, 0) for worker in range(8000)])
    assert np.mean(drawn > 160) == pytest.approx(0.279, abs=0.012)
    assert drawn.mean() == pytest.approx(128, rel=0.02)


def test_a_machine_keeps_its_mean() -> None:
    made = durations("gamma-machines(mean=1, cv_machine=.6, cv_task=.1)", workers=30)
    early, late = (np.array([made.block(w, number).mean() for w in range(30)]) for number in (0, 50))
    assert np.allclose(early, late, rtol=0.08) and early.std() > 0.3
    drawn = sample(made)
    assert drawn.std() / drawn.mean() == pytest.approx(0.1, rel=0.05)


def test_waiting_for_the_slowest_of_eight() -> None:
    made = durations("gamma(mean=1, cv=.1)", workers=8)
    drawn = np.stack([sample(made, worker, blocks=200) for worker in range(8)])
    assert drawn.max(axis=0).mean() / drawn.mean() == pytest.approx(1.1469, abs=0.005)


def test_spikes_multiply_the_compute_time() -> None:
    made = durations("gamma(1, .2)", "spikes(probability=.1, factor=5)")
    compute, extra = np.array([made.parts(0, i) for i in range(20_000)]).T
    hit = extra > 0
    assert hit.mean() == pytest.approx(0.1, abs=0.007)
    assert np.allclose(extra[hit], 4 * compute[hit])


def test_on_off_is_its_markov_chain() -> None:
    made = durations("gamma(1, .2)", "on-off(fail=.02, recover=.2, factor=10)")
    compute, extra = np.array([made.parts(0, i) for i in range(60_000)]).T
    off = extra > 0
    assert np.allclose(extra[off], 9 * compute[off])
    assert off[1:][~off[:-1]].mean() == pytest.approx(0.02, abs=0.003)
    assert (~off[1:])[off[:-1]].mean() == pytest.approx(0.2, abs=0.02)


def test_on_off_starts_on_and_its_state_crosses_blocks() -> None:
    alternating = durations("constant(1)", "on-off(fail=1, recover=1, factor=3)")
    assert [alternating(0, i) for i in range(3 * BLOCK)] == [1, 3] * (3 * BLOCK // 2)
    stuck = durations("constant(1)", "on-off(fail=1, recover=0, factor=3)")
    assert [stuck(1, i) for i in (0, 1, BLOCK, 10 * BLOCK, BLOCK - 1)] == [1, 3, 3, 3, 3]


def test_spikes_see_the_compute_time_not_the_other_delays() -> None:
    assert durations("constant(2)", "constant(100)", "spikes(1, 3)").parts(0, 0) == (2, 104)


def test_only_the_workers_named_are_affected() -> None:
    made = durations("constant(1)", "constant(seconds=2, workers=[1, 3])", "constant(0)")
    assert [made.parts(worker, 70) for worker in range(4)] == [(1, 0), (1, 2), (1, 0), (1, 2)]


def test_compute_may_name_all_workers() -> None:
    assert durations("constant(seconds=1, workers=[1, 0])", workers=2)(1, 0) == 1


# Traces


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.parquet"])
def test_trace_replays_a_file_and_starts_over(tmp_path: Path, name: str) -> None:
    made = Durations(Trace(file=str(trace_file(tmp_path / name))), [], workers=2, seed=0)
    assert [made(0, i) for i in range(5)] == [1, 2, 3, 1, 2]
    assert [made(1, i) for i in (0, 1, 2, 2 * BLOCK + 1)] == [10, 20, 10, 20]
    assert made(0, 2 * BLOCK) == 1 + (2 * BLOCK) % 3
    assert made.block(0, 10**9).sum() == BLOCK * 2 + (10**9 * BLOCK % 3 - 1), "far away, and at once"


def test_trace_of_some_workers_is_a_delay(tmp_path: Path) -> None:
    trace = Trace(file=str(trace_file(tmp_path / "jobs.csv")), workers=(1,))
    made = Durations(Constant(seconds=1), [trace], workers=3, seed=0)
    assert [made(worker, 1) for worker in range(3)] == [1, 21, 1]


def test_trace_without_a_worker_is_refused(tmp_path: Path) -> None:
    trace = Trace(file=str(trace_file(tmp_path / "jobs.csv")))
    with pytest.raises(ValueError, match=r"jobs\.csv.*has no jobs of worker 2"):
        Durations(trace, [], workers=3, seed=0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("jobs.txt", "", "neither .csv nor .parquet"),
        ("jobs.csv", "worker,time\n0,1\n", "needs the numeric columns worker and seconds"),
        ("jobs.csv", "worker,seconds\n0,soon\n", "needs the numeric columns worker and seconds"),
        ("jobs.csv", "worker,seconds\n0.5,1\n", "whole numbers"),
        ("jobs.csv", "worker,seconds\n,1\n0,1\n", "whole numbers"),
        ("jobs.csv", "worker,seconds\n0,1\n0,-2\n", "row 2 has seconds=-2.0"),
        ("jobs.csv", "worker,seconds\n0,1\n0,\n", "row 2 has seconds=None"),
        ("jobs.csv", "worker,seconds\n0,inf\n", "row 1 has seconds=inf"),
        ("jobs.parquet", "not parquet", "needs the numeric columns"),
    ],
)
def test_trace_with_a_bad_file_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        Durations(Trace(file=str(tmp_path / name)), [], workers=1, seed=0)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_a_trace_without_its_file_is_refused_when_used_not_when_constructed(tmp_path: Path) -> None:
    trace = Trace(file=str(tmp_path / "gone.csv"))
    with pytest.raises(ValueError, match=r"gone\.csv.*No such file"):
        Durations(trace, [], workers=1, seed=0)


def test_a_trace_on_another_machine_is_refused() -> None:
    with pytest.raises(ValueError, match="must be on this machine, not at an address"):
        Durations(Trace(file="https://example.com/jobs.csv"), [], workers=1, seed=0)


# Jobs of several batches


def jobs(compute: str, *delays: str, workers: int = 4, **settings: Any) -> Durations:
    return Durations(law(compute), [law(text) for text in delays], workers, 7, **settings)


def add_up(draws: list[float]) -> float:
    """Return a sum from left to right; Python's sum compensates for rounding."""
    return float(np.cumsum(draws)[-1])


def test_a_job_takes_the_sum_of_its_batches() -> None:
    one, several = jobs("gamma(1, .5)"), jobs("gamma(1, .5)", batches=[1, 2, 5, 100])
    for worker, count in enumerate((1, 2, 5, 100)):
        for launch in (0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 7):
            draws = [one(worker, launch * count + batch) for batch in range(count)]
            assert several.parts(worker, launch) == (add_up(draws), 0)


def test_multiplying_laws_apply_to_each_batch_and_delays_in_seconds_to_each_job() -> None:
    laws = ("gamma(1, .5)", "exponential(2)", *MULTIPLYING)
    one, several = jobs(*laws), jobs(*laws, batches=[3] * 4)
    once, spiky = jobs(*laws[:2]), [jobs(laws[0], "constant(0)", *laws[2:])]
    for launch in (0, 1, BLOCK - 1, 2 * BLOCK + 5):
        compute, delay = several.parts(2, launch)
        draws = [one.parts(2, 3 * launch + batch) for batch in range(3)]
        assert compute == add_up([draw[0] for draw in draws])
        extra = sum(spiky[0].parts(2, 3 * launch + batch)[1] for batch in range(3))
        assert delay == pytest.approx(once.parts(2, launch)[1] + extra)


def test_one_batch_and_scale_one_change_no_bit() -> None:
    plain, same = durations(*EVERYTHING), jobs(*EVERYTHING, batches=[1] * 4, scales=[1.0] * 4)
    for worker in range(4):
        launches = range(3 * BLOCK)
        assert [plain.parts(worker, i) for i in launches] == [same.parts(worker, i) for i in launches]
        assert plain.block(worker, 2).tolist() == same.block(worker, 2).tolist()


def test_a_scale_multiplies_the_compute_time_and_what_multiplies_it() -> None:
    laws = ("gamma(1, .5)", "spikes(.5, 3)", "constant(2)")
    plain, scaled = jobs(*laws), jobs(*laws, scales=[1.0, 0.25, 2.0, 4.0])
    for worker, scale in enumerate((1.0, 0.25, 2.0, 4.0)):
        for launch in range(100):
            compute, delay = plain.parts(worker, launch)
            assert scaled.parts(worker, launch) == pytest.approx((scale * compute, scale * (delay - 2) + 2))


def test_blocks_of_jobs_of_several_batches_equal_single_calls() -> None:
    made = jobs(*EVERYTHING, batches=[4, 3, 2, 1], scales=[1.0, 0.5, 2.0, 3.0])
    for worker, number in ((0, 3), (1, 0), (2, 4)):
        launches = range(number * BLOCK, (number + 1) * BLOCK)
        assert made.block(worker, number).tolist() == [made(worker, launch) for launch in launches]


def test_mean_seconds_and_relative_speeds() -> None:
    made = jobs("power(1, 1)", batches=[1, 1, 2, 1], scales=[1.0, 1.0, 1.0, 0.25])
    assert [made.mean_seconds(worker) for worker in range(4)] == [1, 2, 6, 1]
    assert made.relative_speeds() == [1, 1 / 2, 1 / 6, 1]
    drawn = durations("gamma-machines(1, .6, .1)")
    assert drawn.mean_seconds(2) == drawn.block(2, 0).mean() and max(drawn.relative_speeds()) == 1


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"batches": [1, 2]}, r"batches must have one value per worker \(4\), got 2"),
        ({"batches": [1, 2, 0, 1]}, "batches must be finite and at least 1, got 0"),
        ({"scales": [1.0] * 5}, r"scales must have one value per worker \(4\), got 5"),
        ({"scales": [1.0, 1.0, 0.0, 1.0]}, "scales must be finite and above 0, got 0.0"),
        ({"scales": [1.0, 1.0, float("nan"), 1.0]}, "scales must be finite and above 0, got nan"),
    ],
)
def test_wrong_batches_and_scales_are_refused(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jobs("constant(1)", **settings_)


# Laws that depend on the samples


@functools.cache
def load_digits() -> DataArrays:
    return Digits().load()


@functools.cache
def digits() -> SupervisedProblem:
    arrays = load_digits()
    mean, std = arrays.mean, arrays.std
    examples = ArrayExamples(arrays.inputs, arrays.labels, mean, std)
    parts = np.array_split(np.arange(len(examples)), 4)
    return SupervisedProblem(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), examples, examples, parts, 16, 3
    )


def expected_factor(text: str, chosen: np.ndarray) -> float:
    """Compute a batch's factor from the raw data."""
    arrays = load_digits()
    if text == "by-length":
        counts = [int((picture != 0).sum()) for picture in arrays.inputs]
        places = np.linspace(0, len(counts) - 1, 1000).astype(int)
        return float(np.mean([counts[i] for i in chosen]) / np.mean([counts[i] for i in places]))
    return float(np.mean([5.0 if arrays.labels[i] in (3, 7) else 1.0 for i in chosen]))


@pytest.mark.parametrize("text", BY_SAMPLES)
def test_a_batch_takes_as_long_as_its_samples(text: str) -> None:
    plain, made = jobs("gamma(1, .5)", batches=[1, 2, 3, 4]), jobs("gamma(1, .5)", text, batches=[1, 2, 3, 4])
    made.use_problem(digits())
    factors = set()
    for worker, launch, index in ((0, 0, 0), (1, 5, 3), (2, BLOCK + 2, 60), (3, 9, 9)):
        count = worker + 1
        draws = [jobs("gamma(1, .5)")(worker, launch * count + batch) for batch in range(count)]
        wanted = [
            expected_factor(text, digits().batch(worker, index * count + each)) for each in range(count)
        ]
        compute, delay = made.job_parts(worker, launch, index)
        assert compute == pytest.approx(float(np.dot(draws, wanted))) and delay == 0
        assert made.parts(worker, launch) == plain.parts(worker, launch), "without the samples"
        factors |= set(wanted)
    assert len(factors) > 3 and min(factors) != max(factors)


def test_factors_also_multiply_spikes_but_not_seconds() -> None:
    made = jobs(
        "constant(1)", "spikes(1, 3)", "constant(10)", BY_SAMPLES[0], "by-label(2, [0, 1, 2], workers=[1])"
    )
    made.use_problem(digits())
    for worker in (0, 1):
        chosen = digits().batch(worker, 4)
        factor = expected_factor(BY_SAMPLES[0], chosen)
        if worker == 1:
            factor *= np.where(
                np.isin(digits().splits["train"].known_labels[chosen], [0, 1, 2]), 2.0, 1.0
            ).mean()
        compute, delay = made.job_parts(worker, 0, 4)
        assert compute == pytest.approx(factor) and delay == pytest.approx(10 + 2 * factor)


def test_labels_need_no_samples() -> None:
    class Unreadable(Dataset[Any]):
        targets = [0, 1, 2, 3] * 10

        def __len__(self) -> int:
            return 40

        def __getitem__(self, number: int) -> Any:
            raise AssertionError("a sample was read")

    examples = DatasetExamples(Unreadable())
    problem = SimpleNamespace(splits={"train": examples}, batch=lambda worker, index: np.arange(4))
    made = jobs("constant(1)", "by-label(9, [0])")
    made.use_problem(problem)
    assert made.job_parts(0, 0, 0) == (3, 0)


def test_the_length_of_a_dataset_is_read_sample_by_sample_and_once() -> None:
    class Sentences(Dataset[Any]):
        reads: ClassVar[Counter[int]] = Counter()

        def __len__(self) -> int:
            return 5000

        def __getitem__(self, number: int) -> tuple[Tensor, int]:
            self.reads[number] += 1
            words = torch.zeros(10, dtype=torch.int64)
            words[: 1 + number % 10] = 7
            return words, 0

    examples = DatasetExamples(Sentences())
    problem = SimpleNamespace(splits={"train": examples}, batch=lambda worker, index: np.array([0, 9, 9]))
    made = jobs("constant(1)", "by-length")
    made.use_problem(problem)
    assert len(Sentences.reads) == 1000
    places = np.linspace(0, 4999, 1000).astype(int)
    assert made.job_parts(0, 0, 0)[0] == pytest.approx(7 / np.mean(1 + places % 10))
    assert made.job_parts(0, 1, 1)[0] == made.job_parts(0, 0, 0)[0]
    assert set(Sentences.reads.values()) == {1}


@pytest.mark.parametrize("text", BY_SAMPLES)
def test_a_problem_without_samples_is_refused(text: str) -> None:
    made = jobs("constant(1)", text)
    for problem in (NullProblem(), QuadraticProblem(QuadraticData(), 4, 1, 0)):
        with pytest.raises(
            ValueError, match=rf"delay={law(text).name}.*depends on the samples: .*has no samples"
        ):
            made.use_problem(problem)
    with pytest.raises(ValueError, match=r"depends on the samples\. Call use_problem first"):
        made.job_parts(0, 0, 0)
    with pytest.raises(ValueError, match="depends on the samples, which are unknown without a problem"):
        made.block(0, 0)
    made.check_first_jobs()
    assert made.mean_seconds(0) == 1


@pytest.mark.parametrize(
    ("text", "labels", "message"),
    [
        ("by-label(2, [1])", None, "labels are not known without reading all samples. Give the Dataset"),
        ("by-label(2, [1])", np.ones((30, 2)), r"the targets have shape \(30, 2\) and type float64"),
        ("by-label(2, [1, 4])", np.arange(30) % 4, r"labels=\[1, 4\] must be 0 to 3"),
        ("by-label(2, [-1])", np.arange(30) % 4, r"labels=\[-1\] must be 0 to 3"),
        ("by-length", np.arange(30) % 4, "all samples have length 0"),
    ],
)
def test_data_that_lack_what_a_law_needs_are_refused(text: str, labels: Any, message: str) -> None:
    examples = ArrayExamples(np.zeros((30, 4)), labels)
    problem = SimpleNamespace(splits={"train": examples}, batch=lambda worker, index: np.arange(3))
    with pytest.raises(ValueError, match=message) as caught:
        jobs("constant(1)", text).use_problem(problem)
    assert "\n" not in str(caught.value) and str(law(text)) in str(caught.value)


# Text and refusals


@pytest.mark.parametrize("text", [*PLAIN, *MULTIPLYING, *BY_SAMPLES, "trace(file='a/jobs.csv')"])
def test_text_round_trip(text: str) -> None:
    assert str(law(text)) == text
    some = law(f"{text[:-1]}, workers=[0, 2])" if "(" in text else f"{text}(workers=[0, 2])")
    assert law(str(some)) == some != law(text)
    assert str(some).endswith("workers=[0, 2])")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("constant(-1)", "constant: seconds must be greater than or equal to 0"),
        ("gaussian(mean=-0.1, std=1)", "mean must be greater"),
        ("gaussian(mean=1, std=-1)", "std must be greater"),
        ("uniform(low=-1, high=1)", "low must be greater"),
        ("uniform(low=3, high=1)", "low=3.0 is above high=1.0"),
        ("exponential(mean=inf)", "mean must be a finite number"),
        ("exponential(mean=1, shift=-1)", "shift must be greater"),
        ("gamma(mean=1, cv=nan)", "cv must be a finite number"),
        ("gamma-machines(mean=1, cv_machine=-1, cv_task=1)", "cv_machine must be greater"),
        ("lognormal(mean=1, cv=-1)", "cv must be greater"),
        ("pareto(scale=1, alpha=0)", "alpha must be greater than 0"),
        ("power(base=1, exponent=-1)", "exponent must be greater"),
        ("spikes(probability=1.5, factor=2)", "probability must be less than or equal to 1"),
        ("spikes(probability=0.5, factor=0.5)", "factor must be greater than or equal to 1"),
        ("on-off(fail=-1, recover=1, factor=2)", "fail must be greater"),
        ("by-label(factor=0, labels=[1])", "factor must be greater than 0, got 0"),
        ("by-label(factor=2, labels=[])", "labels .*at least 1 item"),
        ("by-label(factor=2, labels=3)", r"labels must be a list, got 3. Write labels=\[3\]"),
        ("on-off(fail=0, recover=2, factor=2)", "recover must be less"),
        ("constant(seconds=1, workers=[])", r"\[\] affects no worker"),
        ("constant(seconds=1, workers=[-1])", "workers.0 must be greater"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        law(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", MULTIPLYING + BY_SAMPLES)
def test_a_law_that_multiplies_the_compute_time_is_not_the_compute_time(text: str) -> None:
    with pytest.raises(ValueError, match=f"{law(text).name} multiplies the compute time"):
        durations(text)


def test_workers_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match=r"constant\(.*\): worker 4 does not exist. The workers are 0 to 3"):
        durations("constant(1)", "constant(seconds=1, workers=[0, 4])")
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        durations("constant(1)", workers=0)


def test_compute_for_some_workers_only_is_refused() -> None:
    with pytest.raises(ValueError, match="worker 1 has no compute time"):
        durations("constant(seconds=1, workers=[0, 2, 3])")


@pytest.mark.parametrize(("worker", "launch"), [(-1, 0), (4, 0), (0, -1)])
def test_a_worker_or_block_that_does_not_exist_is_refused(worker: int, launch: int) -> None:
    made = durations("constant(1)")
    made(3, 0), made(0, BLOCK - 1)
    with pytest.raises(ValueError, match=f"got {worker} and"):
        made(worker, launch)


def test_a_job_that_takes_no_time_is_named() -> None:
    made = durations("gaussian(mean=1, std=.6)", seed=1)
    drawn = made.compute.law.block(made.compute, 2, 3, np.zeros(BLOCK))
    launch = 3 * BLOCK + int(np.flatnonzero(drawn == 0)[0])
    message = rf"worker 2, job {launch}: gaussian\(mean=1.0, std=0.6\) gives 0.0 seconds.*Reduce the spread"
    with pytest.raises(DurationError, match=message):
        made(2, launch)
    with pytest.raises(DurationError, match=message):
        made.parts(2, launch)
    with pytest.raises(DurationError, match=message):
        made.block(2, 3)
    assert made(2, launch - 1) > 0  # the job before is valid


@pytest.mark.filterwarnings("error")
def test_a_job_with_an_infinite_duration_is_named() -> None:
    made = durations("constant(1)", "pareto(scale=1, alpha=.0001, workers=[3])", "spikes(1, 2)")
    assert made(0, 0) == 2
    message = (
        r"worker 3, job 0: constant\(.*\) \+ pareto\(.*\) \+ spikes\(.*\) gives inf seconds.*larger alpha"
    )
    with pytest.raises(DurationError, match=message):
        made(3, 0)
    with pytest.raises(DurationError, match=r"power\(.*\) \+ spikes\(.*\) gives (inf|nan) seconds"):
        durations("power(1e300, 1e3)", "spikes(.5, 2)")(1, 0)


def test_a_delay_may_be_zero_and_compute_too_if_a_delay_is_not() -> None:
    assert durations("constant(0)", "constant(2)").parts(0, 0) == (0, 2)
    with pytest.raises(DurationError, match=r"worker 0, job 0: constant\(seconds=0.0\) gives"):
        durations("constant(0)", "constant(seconds=2, workers=[1])")(0, 0)


def test_a_custom_law_needs_only_draw() -> None:
    class Ramp(Memoryless):
        name = "ramp"

        def draw(self, rng: np.random.Generator, worker: int, compute: np.ndarray) -> np.ndarray:
            return np.arange(1.0, compute.size + 1)

    made = Durations(Ramp(), [Gamma(mean=0, cv=1)], workers=1, seed=0)
    assert made(0, 4) == 5 and Term(Ramp(), 0, 1, 0).affected == {0}
