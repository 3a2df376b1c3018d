"""Speed-ups without gradients: equal to the simulator to the bit, and to closed forms where there are any."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from story import run_story
from straggler.algorithms.aggregations import Mean
from straggler.algorithms.corrections import Uncorrected
from straggler.algorithms.policies import POLICIES, Hybrid
from straggler.algorithms.work import gradient_program
from straggler.analysis.figures.throughput import tabulate_speedups
from straggler.cli import build_app
from straggler.config.registry import InputError, parse_entry
from straggler.core import Arrival, Policy, Server
from straggler.problems.quadratic import NullProblem
from straggler.running.simulation import FixedModel
from straggler.timing import DELAYS, Durations
from straggler.timing.clusters import mean_batch_seconds, measure_speedups, parse_policy, sample_batch_seconds
from straggler.timing.laws import BLOCK
from straggler.timing.throughput import Throughput, measure_by_simulation, measure_throughput

GAMMA = "gamma(mean=1, cv=0.3)"
UNEVEN = "gamma-machines(mean=1, cv_machine=0.6, cv_task=0.1)"
TIES = "uniform(low=1, high=1)"


def durations(compute: str, workers: int, *delays: str, seed: int = 0) -> Durations:
    law = parse_entry(compute, DELAYS)
    return Durations(law, [parse_entry(delay, DELAYS) for delay in delays], workers, seed)


def counted(policy: str, compute: str, workers: int, updates: int, **more: Any) -> Throughput:
    return measure_throughput(parse_entry(policy, POLICIES), durations(compute, workers, **more), updates)


# The same as the simulator, to the bit.

ALL = [
    "asynchronous",
    "synchronous",
    "k-sync(k=1)",
    "k-sync(k=3)",
    "k-sync(k=5)",
    "k-batch-sync(k=4)",
    "k-batch-sync(k=9)",
    "k-async(k=2)",
    "k-batch-async(k=3)",
    "ssp(bound=0)",
    "ssp(bound=2)",
    "ssp(bound=inf)",
    "hybrid(num_workers_ps_update=2, staleness_tolerance=1, pull_weights_interval=3)",
    "ringmaster(max_delay=3)",
    "ringmaster(max_delay=3, restart=true)",
    "malenia",
    "ringleader",
    "dssp(lower=1, upper=4)",
    "paced(batch=2, staleness=1, window=1)",
]


def test_every_policy_is_compared() -> None:
    assert {policy.split("(")[0] for policy in ALL} == set(POLICIES)


@pytest.mark.slow
@pytest.mark.parametrize("compute", [GAMMA, UNEVEN, TIES, "pareto(scale=1, alpha=1.1)", "power(1, 0.5)"])
@pytest.mark.parametrize("policy", ALL)
def test_closed_forms_and_the_event_loop_agree(policy: str, compute: str) -> None:
    updates, delay = 150, "spikes(probability=0.1, factor=4, workers=[0, 2])"
    settings = {"policy": policy, "compute": compute, "delay": delay, "updates": updates, "seed": 3}
    if policy == "ringleader":
        settings["aggregation"] = "ringleader"
    story = run_story(dataset="quadratic", workers=5, **settings)
    server = story.server
    ledger = server.ledger
    simulated = Throughput(
        seconds=story.times[-1],
        updates=server.k,
        gradients=server.gradients,
        applied=ledger.applied,
        dropped=ledger.dropped,
        cancelled=ledger.cancelled,
        dispatched=ledger.dispatched,
    )
    cluster = durations(compute, 5, delay, seed=3)
    for way in (measure_throughput, measure_by_simulation):
        assert way(parse_entry(policy, POLICIES), cluster, updates) == simulated


def test_more_workers_than_a_round_has_blocks() -> None:
    for policy in ("synchronous", "k-sync(k=70)", "asynchronous", "k-batch-async(k=50)"):
        policy_object, cluster = parse_entry(policy, POLICIES), durations(UNEVEN, 100)
        assert measure_throughput(policy_object, cluster, BLOCK + 1) == measure_by_simulation(
            policy_object, cluster, BLOCK + 1
        )


def test_slices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [counted("asynchronous", law, 7, 3000) for law in (GAMMA, UNEVEN, TIES)]
    monkeypatch.setattr("straggler.timing.throughput.SLICE", 50)
    assert [counted("asynchronous", law, 7, 3000) for law in (GAMMA, UNEVEN, TIES)] == whole


def test_a_policy_that_starts_no_worker_raises() -> None:
    class Lazy(POLICIES["asynchronous"]):  # type: ignore[misc]
        def receive(self, server: Any, arrival: Any) -> tuple[int, ...]:
            server.merge(arrival)
            return ()

    with pytest.raises(RuntimeError, match="left all workers idle after 0 updates"):
        measure_throughput(Lazy(), durations(GAMMA, 3), 10)


def test_a_custom_policy_says_how_many_gradients_a_step_uses() -> None:
    class Pairs(POLICIES["synchronous"]):  # type: ignore[misc]
        def gradients_per_step(self, workers: int) -> int:
            return Policy.gradients_per_step(self, workers)

    with pytest.raises(ValueError, match=r"Define Pairs\.gradients_per_step"):
        Pairs().gradients_per_step(2)
    assert Pairs().gradients_per_step(1) == 1


def test_a_usable_arrival_that_was_set_aside_is_merged_first() -> None:
    """This happens if a worker rejoins and pushes twice in a step, which raises the least pushes by two."""
    problem = NullProblem()
    x, buffers = problem.initial_model()
    components = (Hybrid(num_workers_ps_update=3), Uncorrected(), Mean(), FixedModel())
    server = Server(x, buffers, 3, *components, lambda epochs: 0.0, gradient_program(problem))
    first, second, _ = (Arrival(job, 0.0, 1.0, 1, lambda job: problem.result) for job in server.begin())
    server.aside.append(second)
    del server.busy[1]
    assert server.receive(first) == ("held", [])
    assert (server.policy.state()["_state"]["collected"], server.aside) == ([1, 0], [])


# Closed forms.


@pytest.mark.parametrize("workers", [1, 4, 33])
def test_equal_constant_workers(workers: int) -> None:
    for policy, per_update in (("asynchronous", 1), ("synchronous", workers), ("k-sync(k=1)", 1)):
        seen = counted(policy, "constant(2)", workers, updates=10 * workers)
        rounds = 10 * workers if policy != "asynchronous" else 10
        assert seen.seconds == 2.0 * rounds
        assert seen.applied == per_update * 10 * workers


def test_arrivals_by_a_time_are_the_sum_of_floors() -> None:
    times = np.sqrt(np.arange(1, 9))
    seen = counted("asynchronous", "power(base=1, exponent=0.5)", 8, updates=1000)
    assert np.floor((seen.seconds + 1e-9) / times).sum() == pytest.approx(1000, abs=7)  # ties at the end
    assert np.floor((seen.seconds - 1e-9) / times).sum() < 1000


def harmonic(n: int) -> float:
    return sum(1 / i for i in range(1, n + 1))


@pytest.mark.parametrize(("workers", "k"), [(4, 4), (16, 16), (16, 4), (16, 1)])
def test_exponential_rounds_are_order_statistics(workers: int, k: int) -> None:
    """The k-th of N exponentials comes after H(N) − H(N−k); their variances add up in the same way."""
    updates = 20_000
    seen = counted(f"k-sync(k={k})", "exponential(mean=1)", workers, updates)
    expected = harmonic(workers) - harmonic(workers - k)
    std = math.sqrt(sum(1 / i**2 for i in range(workers - k + 1, workers + 1)))
    assert abs(seen.seconds / updates - expected) < 4 * std / math.sqrt(updates)


@pytest.mark.parametrize("policy", ["k-async(k=3)", "k-batch-async(k=3)", "k-batch-sync(k=3)"])
def test_exponential_without_memory(policy: str) -> None:
    """Exponentials have no memory: k-async is as fast as k-sync, and k gradients of any worker take k/N."""
    updates, workers, k = 10_000, 8, 3
    seen = counted(policy, "exponential(mean=1)", workers, updates)
    expected = harmonic(workers) - harmonic(workers - k) if policy == "k-async(k=3)" else k / workers
    assert seen.seconds / updates == pytest.approx(expected, rel=0.03)


def test_asynchronous_throughput_is_the_sum_of_the_rates() -> None:
    """Renewal: batches per second are Σ 1/mean, whatever the laws."""
    cluster = durations(
        "lognormal(mean=1, cv=0.5)", 3, "constant(1, workers=[1])", "constant(3, workers=[2])"
    )
    seen = measure_throughput(POLICIES["asynchronous"](), cluster, 60_000)
    assert seen.applied / seen.seconds == pytest.approx(1 + 1 / 2 + 1 / 4, rel=0.01)


@pytest.mark.parametrize(("workers", "known"), [(2, 1.0563), (8, 1.1469), (32, 1.2186), (64, 1.2500)])
def test_gamma_rounds_against_quadrature(workers: int, known: float) -> None:
    """E[max]/E[X] of gammas of shape 100, computed elsewhere by quadrature."""
    seen = counted("synchronous", "gamma(mean=1, cv=0.1)", workers, 10_000)
    assert seen.seconds / 10_000 == pytest.approx(known, abs=0.002)


@pytest.mark.slow
def test_the_share_of_slow_batches_matches_the_paper() -> None:
    """Gap-Aware's figure 3: about 1 % and 27.9 % take over 1.25 means."""
    laws = [parse_entry(law, DELAYS) for law in ("gamma(128, 0.1)", "gamma-machines(128, 0.6, 0.1)")]
    frame = sample_batch_seconds(laws, [], seed=0)
    shares = frame.group_by("cluster", maintain_order=True).agg((pl.col("seconds") > 160).mean())["seconds"]
    assert shares[0] == pytest.approx(0.0093, abs=0.001)
    assert shares[1] == pytest.approx(0.280, abs=0.01)


# The table.


def test_speedup_is_counted_in_mean_batches() -> None:
    law = parse_entry("constant(4)", DELAYS)
    frame = measure_speedups(["asgd", "ssgd", "k-sync(k=50%)"], [law], [], [1, 8], 400, [0, 1])
    assert set(frame["applied"]) == {400}
    by_method = {key[0]: list(group["speedup"]) for key, group in frame.group_by("method")}
    assert by_method["ssgd"] == [1, 1, 8, 8]
    assert by_method["k-sync(k=50%)"] == [1, 1, 4, 4]
    assert by_method["asgd"] == [1, 1, 8, 8]


def test_the_unit_is_the_mean_batch_of_the_largest_cluster() -> None:
    law = parse_entry("power(base=1, exponent=1)", DELAYS)
    assert mean_batch_seconds(law, [], 4, [0]) == 2.5
    assert set(measure_speedups(["ssgd"], [law], [], [2, 4], 5, [0])["unit"]) == {2.5}
    assert set(measure_speedups(["ssgd"], [law], [], [2, 4], 5, [0], unit=7.0)["unit"]) == {7.0}


def test_shares_of_the_workers() -> None:
    assert str(parse_policy("k-sync(k=90%)", 64)) == "k-sync(k=58)"
    assert str(parse_policy("k-sync(k=1%)", 8)) == "k-sync(k=1)"
    assert str(parse_policy("k-sync", 8)) == "k-sync(k=2)"
    assert str(parse_policy("dana-ga", 8)) == "asynchronous"
    for wrong in ("asgdd", "k-sync(k=9)", "k-sync(k=0)", "asgd(", "sgdm(k=2)"):
        with pytest.raises(InputError, match="--method"):
            parse_policy(wrong, 8)


def test_rows_have_intervals_and_a_paired_ratio() -> None:
    frame = pl.DataFrame(
        {
            "cluster": ["c"] * 4,
            "method": ["asgd", "asgd", "ssgd", "ssgd"],
            "workers": [2] * 4,
            "seed": [0, 1, 0, 1],
            "speedup": [2.0, 4.0, 1.0, 2.0],
        }
    )
    columns, rows = tabulate_speedups(frame)
    assert columns == ["N", "asgd", "ssgd", "asgd ÷ ssgd"]
    assert rows == [["2", "3.00", "1.50", "2.00"]]  # no interval from two seeds
    third = pl.DataFrame(
        {"workers": [2] * 2, "method": ["asgd", "ssgd"], "seed": [2] * 2, "speedup": [3.0, 1.5]}
    )
    half = 4.302653 / math.sqrt(3)  # Student's t for two degrees of freedom
    (row,) = tabulate_speedups(pl.concat([frame.select(third.columns), third]))[1]
    assert row == ["2", f"3.00 ± {half:.2f}", f"1.50 ± {half / 2:.2f}", "2.00 ± 0.00"]


# The commands.


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(build_app(load_all=True), arguments)


def test_speedup_command(tmp_path: Path) -> None:
    figure, table = tmp_path / "s.svg", tmp_path / "s.csv"
    arguments = ["--workers", "1,4", "--iterations", "100", "--repetitions", "3", "--json"]
    result = invoke("speedup", *arguments, "--out", str(figure), "--out", str(table))
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout.splitlines()[-1])
    assert len(facts) == 2 * 3 * 2 * 3
    assert "<svg" in figure.read_text()
    assert pl.read_csv(table)["speedup"].to_list() == [row["speedup"] for row in facts]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workers", "4,x"], "--workers '4,x'"),
        (["--workers", "0"], "--workers '0'"),
        (["--method", "nope"], "Unknown method or policy"),
        (["--compute", "gama(1, 1)"], "gamma"),
        (["--out", "speed.doc"], "speed.doc"),
        (["--iterations", "0"], "iterations"),
    ],
)
def test_speedup_refuses(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("speedup", *arguments)
    assert result.exit_code != 0
    assert said in (result.output + str(result.exception))
    assert list(tmp_path.iterdir()) == []


def test_repeated_options_are_measured_once() -> None:
    words = ["--repetitions", "2", "--iterations", "200", "--json"]
    once = ["--workers", "2", "--method", "asgd", "--compute", "gamma(1, 0.5)"]
    twice = ["--workers", "2,2", "--method", "asgd", *once[2:], "--compute", "gamma(1,0.5)"]
    first, second = (invoke("speedup", *given, *words).output.splitlines() for given in (once, twice))
    assert first == second and len(json.loads(first[-1])) == 2


@pytest.mark.slow
def test_densities_of_a_cluster_have_the_requested_size(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("worker,seconds\n0,1\n0,2\n1,3\n")
    law = f"trace(file='{tmp_path / 'trace.csv'}')"
    many = invoke("densities", "--compute", law)
    assert many.exit_code != 0 and "with 20,000 workers" in str(many.exception)
    two = invoke("densities", "--compute", law, "--workers", "2")
    assert two.exit_code == 0 and "2.2" in two.output and "50.0%" in two.output, "means 1.5 and 3"
    slow = invoke(
        *("densities", "--compute", "constant(1)", "--delay", "constant(2, workers=[0])", "--workers", "4")
    )
    assert "1.5" in slow.output and "25.0%" in slow.output


@pytest.mark.slow
def test_densities_command(tmp_path: Path) -> None:
    result = invoke("densities", "--out", str(tmp_path / "d.png"))
    assert result.exit_code == 0, result.output
    assert "28.0%" in result.output and (tmp_path / "d.png").stat().st_size > 10_000


def test_different_seeds_have_different_repetitions() -> None:
    def repetitions(seed: int) -> set[float]:
        words = f"speedup --workers 4 --method ssgd --iterations 40 --repetitions 3 --seed {seed} --json"
        said = invoke(*words.split())
        return {row["seconds"] for row in json.loads(said.stdout.splitlines()[-1])}

    first, second = repetitions(0), repetitions(1)
    assert len(first) == len(second) == 6 and not first & second
