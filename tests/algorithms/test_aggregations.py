"""Aggregations by hand, and where each method ends if workers differ in speed and data."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from quadratic_ends import CURVATURES, MINIMA, SPEEDS, find_end, find_end_of_row
from torch import Tensor

from story import run_story
from straggler.algorithms.methods import METHODS
from straggler.core import Arrival, Message, Server
from straggler.experiment import Experiment

QUADRATIC: dict[str, Any] = {"dataset": "quadratic(dimension=4, spread=1)", "workers": 4, "lr": 0.05}
TRUE_OPTIMUM = 33 / 7


def weighted_optimum(weights: tuple[float, ...]) -> float:
    """Return the minimum of the workers' objectives with these weights."""
    curved = [w * a for w, a in zip(weights, CURVATURES, strict=True)]
    return sum(c * b for c, b in zip(curved, MINIMA, strict=True)) / sum(curved)


GRADIENT = {"work": "gradient"}
UNBIASED = {
    "ssgd": {},
    "malenia": {},
    "ringleader": {},
    "ia2sgd": {},
    "ca2fl": GRADIENT,
    "local-sgd": GRADIENT,
    "dssp": {"policy": "dssp(lower=0, upper=0)"},
}
SPEED_WEIGHTED = {
    "asgd": {},
    "fedbuff": GRADIENT | {"correction": "none"},
    "k-batch-async": {},
    "ringmaster": {"policy": "ringmaster(max_delay=inf)"},
}


@pytest.mark.slow
@pytest.mark.parametrize("method", UNBIASED)
def test_these_methods_reach_the_optimum_of_all_workers(method: str) -> None:
    tolerance = 0.06 if method == "dssp" else 1e-3  # steps of single workers oscillate around the optimum
    assert find_end(method, **UNBIASED[method]) == pytest.approx(TRUE_OPTIMUM, abs=tolerance)


@pytest.mark.parametrize("method", SPEED_WEIGHTED)
def test_these_methods_reach_the_speed_weighted_optimum(method: str) -> None:
    end = find_end(method, **SPEED_WEIGHTED[method])
    assert end == pytest.approx(weighted_optimum(SPEEDS), abs=0.08)
    assert abs(end - TRUE_OPTIMUM) > 1


METHODS_PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
ENDS = re.findall(r"^\| `([\w-]+)` \|(?:[^|]*\|){5} (−?\d+\.\d\d)\*? \|$", METHODS_PAGE, re.MULTILINE)
OFTEN = ("ssgd", "local-sgd", "fedbuff")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "end"),
    [row if row[0] in OFTEN else pytest.param(*row, marks=pytest.mark.chaos) for row in ENDS],
)
def test_the_documents_say_where_each_method_ends(method: str, end: str) -> None:
    assert find_end_of_row(method) == pytest.approx(float(end.replace("−", "-")), abs=0.006)


def test_every_method_has_an_end() -> None:
    assert [method for method, _ in ENDS] == [name for name, row in METHODS.items() if not row.single]


def test_inverse_frequencies_correct_the_speeds() -> None:
    assert find_end("inverse-frequency") == pytest.approx(TRUE_OPTIMUM, abs=0.1)


def test_dropping_methods_lose_the_slowest_worker() -> None:
    without_slowest = weighted_optimum((1.0, 1 / 2, 1 / 5, 0.0))
    assert find_end("delay-adaptive") < weighted_optimum(SPEEDS) - 0.5  # slow workers count less
    for method, policy in (("rennala", "k-batch-sync(k=4)"), ("ringmaster", "ringmaster(max_delay=3)")):
        assert find_end(method, policy=policy) < without_slowest + 0.05


def test_latest_by_hand() -> None:
    """Workers take turns, so every step is SAG: the mean of the latest gradients, after a first round."""
    story = run_story(**QUADRATIC, aggregation="latest", gradients=12)
    table: dict[int, Tensor] = {}
    x = torch.ones(4, dtype=torch.float64)
    for arrival, decision, _ in story.arrivals:
        table[arrival.worker] = arrival.message.vector
        if len(table) == 4:
            x = x - 0.05 * torch.stack(list(table.values())).mean(dim=0)
        assert decision == ("applied" if len(table) == 4 else "held")
    assert torch.allclose(story.server.x, x, atol=1e-12) and story.server.k == 9


def test_a_staleness_limit_leaves_old_messages_out() -> None:
    """Worker 0 is slow: with the limit 2 its message counts at first, then no more."""
    slow = {"compute": "constant(1)", "delay": "constant(9, workers=[0])"}
    story = run_story(**QUADRATIC | {"workers": 3}, **slow, aggregation="latest(max_staleness=2)", updates=8)
    versions: dict[int, int] = {}
    table, k, x = dict[int, Tensor](), 0, torch.ones(4, dtype=torch.float64)
    for arrival, decision, _ in story.arrivals:
        table[arrival.worker], versions[arrival.worker] = arrival.message.vector, arrival.job.version
        if decision == "applied":
            recent = [table[worker] for worker in table if versions[worker] >= k - 2]
            x, k = x - 0.05 * torch.stack(recent).mean(dim=0), k + 1
    assert torch.allclose(story.server.x, x, atol=1e-12) and k == 8


def test_cached_with_everybody_is_fedavg() -> None:
    sync = QUADRATIC | {"policy": "synchronous", "updates": 20, "work": "local(steps=3, lr=0.05)", "lr": 1.0}
    ours, mean = run_story(**sync, aggregation="cached").server.x, run_story(**sync).server.x
    assert torch.allclose(ours, mean, atol=1e-12)


def test_ca2fl_with_a_message_of_every_worker_is_fedavg() -> None:
    """Under its own policy: equally fast workers deliver one message each for every step."""
    settings: dict[str, Any] = QUADRATIC | {"lr": 1.0, "work": "local(steps=3, lr=0.05)", "updates": 20}
    fedavg = run_story(**settings | {"updates": 1}, method="local-sgd").server.x
    first = run_story(**settings | {"updates": 1}, method="ca2fl", policy="k-batch-async(k=4)").server
    assert torch.allclose(first.x, fedavg, atol=1e-12)
    plain = run_story(**settings, policy="k-batch-async(k=4)").server.x
    ours = run_story(**settings, method="ca2fl", policy="k-batch-async(k=4)").server.x
    assert torch.allclose(ours, plain, atol=1e-12)


def test_cached_by_hand() -> None:
    """K = 1: mean(Δ − h) + mean(h), so the third message of two workers is calibrated by the first two."""
    two = QUADRATIC | {"workers": 2}
    story = run_story(**two, policy="k-batch-async(k=1)", aggregation="cached", updates=3)
    (a, _, _), (b, _, _), (c, _, _) = story.arrivals
    first, second, third = (each.message.vector for each in (a, b, c))
    x = torch.ones(4, dtype=torch.float64) - 0.05 * first
    x = x - 0.05 * (second + first / 2)
    x = x - 0.05 * (third - first + (first + second) / 2)
    assert (a.worker, b.worker, c.worker) == (0, 1, 0)
    assert torch.allclose(story.server.x, x, atol=1e-12)


def test_by_samples_weights_messages() -> None:
    batches: dict[str, Any] = {"dataset": "digits", "model": "mlp", "workers": 2, "policy": "synchronous"}
    story = run_story(**batches, batch_size=[10, 30], aggregation="by-samples", updates=1, lr=1.0)
    first, second = (arrival.message.vector for arrival, _, _ in story.arrivals)
    x, _ = story.problem.initial_model()
    assert torch.allclose(story.server.x, x - (10 * first + 30 * second) / 40, atol=1e-6)


def test_worker_means_by_hand() -> None:
    """Worker 0 delivers two messages and worker 1 one: the mean of their means."""
    two = QUADRATIC | {"workers": 2, "compute": "power(1, 1)"}
    story = run_story(**two, policy="k-batch-async(k=3)", aggregation="worker-means", updates=1)
    (a, _, _), (b, _, _), (c, _, _) = story.arrivals
    vectors: dict[int, list[Tensor]] = {0: [], 1: []}
    for each in (a, b, c):
        vectors[each.worker].append(each.message.vector)
    means = [torch.stack(each).mean(dim=0) for each in vectors.values()]
    expected = torch.ones(4, dtype=torch.float64) - 0.05 * torch.stack(means).mean(dim=0)
    assert torch.allclose(story.server.x, expected, atol=1e-12)


def test_sum_is_n_times_the_mean_for_plain_sgd() -> None:
    sync = QUADRATIC | {"policy": "synchronous", "updates": 10}
    total = run_story(**sync | {"lr": 0.05 / 4}, aggregation="sum").server.x
    assert torch.allclose(total, run_story(**sync).server.x, atol=1e-12)
    old = run_story(**sync | {"policy": "synchronous(aggregate=sum)", "lr": 0.05 / 4}).server.x
    assert torch.equal(total, old)


def list_remembered_workers(server: Server) -> dict[str, list[int]]:
    """Return the workers in every table of the server's aggregation, by the name of the table."""
    tables = [value for value in server.aggregation.state().values() if isinstance(value, dict)]
    found = {name: each for table in tables for name, each in table.items() if isinstance(each, dict)}
    return {name: sorted(each) for name, each in found.items() if name != "workers"}


@pytest.mark.parametrize(
    ("aggregation", "names"),
    [
        ("latest", ["latest"]),
        ("latest(max_staleness=9)", ["latest", "versions"]),
        ("cached", ["latest"]),
        ("inverse-frequency", ["counts"]),
    ],
)
def test_a_worker_that_leaves_is_forgotten(aggregation: str, names: list[str]) -> None:
    churn = {"churn": "leave(10.5, workers=[3])", "compute": "constant(1)"}
    before, after = [], []

    def watch(server: Server) -> None:
        (before if 3 in server.active else after).append(list_remembered_workers(server))

    settings = QUADRATIC | {"dataset": "quadratic(dimension=4)", "aggregation": aggregation}
    assert run_story(watch, **settings, **churn, updates=200).server.k == 200
    assert [before[-1][name] for name in names] == [[0, 1, 2, 3]] * len(names)
    assert all(each[name] == [0, 1, 2] for each in after for name in names)


def test_worker_means_use_the_messages_of_a_worker_that_left() -> None:
    """They wait for the next step, which uses and forgets them."""
    experiment = Experiment(
        dataset="quadratic", workers=3, policy="k-batch-async(k=3)", aggregation="worker-means", updates=5
    )
    server = experiment.server(experiment.problem())
    server.begin()
    for time, worker in enumerate((0, 1)):
        server.receive(Arrival(server.busy[worker], 0.0, time + 1.0, 1, server.program.compute))
    server.change(0, joined=False)
    assert list_remembered_workers(server) == {"sums": [0, 1], "counts": [0, 1]}
    server.receive(Arrival(server.busy[2], 0.0, 9.0, 1, server.program.compute))
    assert server.k == 1 and list_remembered_workers(server) == {"sums": [], "counts": []}


def test_running_sums_are_those_of_the_messages() -> None:
    """Large early messages leave no rounding errors in a sum that later messages replace."""
    experiment = Experiment(dataset="quadratic(dimension=4)", workers=3, aggregation="latest", updates=5)
    server = experiment.server(experiment.problem())
    server.begin()
    for number in range(400):
        worker, size = number % 3, 1e12 if number < 30 else 1.0 / 3
        message = Message(torch.full((4,), size, dtype=torch.float64), 0.0, torch.zeros(0))
        server.receive(Arrival(server.busy[worker], 0.0, 0.0, 1, lambda job, message=message: message))
    state = server.aggregation.state()["_table"]
    assert torch.allclose(state["total"], torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("aggregation", ["cached", "latest"])
def test_a_worker_that_leaves_before_the_step_is_forgotten_after_it(aggregation: str) -> None:
    """Its message waits for the step, which enters it into the table again."""
    experiment = Experiment(
        dataset="quadratic", workers=3, policy="k-batch-async(k=3)", aggregation=aggregation, updates=5
    )
    problem = experiment.problem()
    server = experiment.server(problem)
    server.begin()
    for time, worker in enumerate((0, 1, 2, 0)):
        server.receive(Arrival(server.busy[worker], 0.0, time + 1.0, 1, server.program.compute))
    server.change(0, joined=False)
    for time, worker in enumerate((1, 2)):
        server.receive(Arrival(server.busy[worker], 0.0, time + 9.0, 1, server.program.compute))
    assert server.k == 2 and not server.departed
    table = server.aggregation.state()["_cache" if aggregation == "cached" else "_table"]
    assert sorted(table["latest"]) == [1, 2]


@pytest.mark.parametrize("policy", ["k-sync(k=1)", "k-sync(k=2)", "k-batch-sync(k=2)", "ringmaster(2, true)"])
@pytest.mark.parametrize("aggregation", ["latest", "latest(max_staleness=3)", "cached", "worker-means"])
def test_cancelled_jobs_do_not_stop_an_aggregation_that_waits(policy: str, aggregation: str) -> None:
    """Worker 3 takes ten times as long as the others; `latest` waits for its first message."""
    settings = {"policy": policy, "aggregation": aggregation, "delay": "constant(9, workers=[3])"}
    server = run_story(dataset="quadratic", workers=4, gradients=400, **settings).server
    assert server.k > 50
