"""Links: transport times are those of the formula, and the server's link carries one message at a time."""

import math
from typing import Any

import pytest
from small_clusters import BYTES_DOWN, BYTES_UP, Cluster

from straggler.config.registry import parse_entry
from straggler.engines.pool.gradient_pool import GradientPool
from straggler.experiment import Experiment
from straggler.running.simulation import simulate
from straggler.timing import LINKS, Link, Network

LATENCY, UP, DOWN = 0.125, 400.0, 200.0  # powers of two, so that times are exact
WORKER = f"link(latency={LATENCY}, up={UP}, down={DOWN})"
TRIP = LATENCY + BYTES_DOWN / DOWN + LATENCY + BYTES_UP / UP  # 0.75


def times(cluster: Cluster, worker: int | None = None) -> list[float]:
    return [time for time, who, _ in cluster.rows if worker in (None, who)]


def transport(cluster: Cluster) -> list[float]:
    done = cluster.arrivals
    return [each.time - each.started - (each.compute or 0) - (each.delay or 0) for each in done]


# One link


def test_a_job_takes_both_ways_and_its_compute_time() -> None:
    run = Cluster(links=[WORKER], workers=1).run(gradients=4)
    assert times(run) == [i * (1 + TRIP) for i in (1, 2, 3, 4)]
    assert transport(run) == [TRIP] * 4
    assert [each.compute for each in run.arrivals] == [1] * 4 and run.arrivals[0].delay == 0


@pytest.mark.parametrize(
    ("link", "seconds"),
    [
        ("link(latency=0.25)", 0.5),
        ("link(up=50)", 2.0),
        ("link(down=25)", 2.0),
        ("link(0.5, 100, 50)", 3.0),
        ("link", 0.0),
    ],
)
def test_each_setting_has_its_own_effect(link: str, seconds: float) -> None:
    assert transport(Cluster(links=[link], workers=1).run(gradients=3)) == [seconds] * 3


def test_a_link_of_some_workers_leaves_the_others_alone() -> None:
    run = Cluster(links=["link(latency=1, workers=[1])", "link(latency=0.25, workers=[2])"], workers=3).run(
        events=9
    )
    assert times(run, 0)[:3] == [1, 2, 3]
    assert times(run, 1) == [3]
    assert times(run, 2)[:2] == [1.5, 3]


def test_delays_are_kept_apart_from_transport() -> None:
    run = Cluster(links=["link(latency=0.5)"], delays=["constant(2)"], workers=1).run(gradients=2)
    assert [(each.compute, each.delay) for each in run.arrivals] == [(1, 2), (1, 2)]
    assert transport(run) == [1, 1]


# The server's link


def test_messages_that_arrive_together_are_received_one_by_one() -> None:
    """Models are sent at once, so all messages reach the server's link after one second."""
    run = Cluster(policy="synchronous", server_link="link(up=200)", workers=4).run(gradients=8)
    assert times(run)[:4] == [1.5, 2.0, 2.5, 3.0]
    assert [worker for _, worker, _ in run.rows[:4]] == [0, 1, 2, 3]
    assert times(run)[4:] == [4.5, 5.0, 5.5, 6.0]


def test_models_are_sent_one_by_one() -> None:
    run = Cluster(policy="synchronous", server_link="link(down=100)", workers=4).run(gradients=8)
    assert times(run) == [1.5, 2.0, 2.5, 3.0, 4.5, 5.0, 5.5, 6.0]


def test_the_whole_way_by_hand() -> None:
    """The server's link has latency too; the queue is before it on the way down, and after it on the way up.

    Down: 0.5 s in the queue, 0.25 s latency of the server, 0.375 s of the worker's link.
    Up: 0.375 s of the worker's link, 0.5 s in the queue, 0.25 s latency of the server.
    """
    run = Cluster(links=[WORKER], server_link="link(latency=0.25, up=200, down=100)", workers=2).run(events=4)
    assert run.rows[0][:2] == (0.5 + 0.25 + 0.375 + 1 + 0.375 + 0.5 + 0.25, 0)
    assert run.rows[1][:2] == (3.25 + 0.5, 1), "its model was sent 0.5 s later"
    assert run.rows[2][:2] == (3.25 * 2, 0)
    assert transport(run)[:2] == [2.25, 2.75]


def test_the_queue_is_in_order_of_arrival_at_the_server() -> None:
    """Worker 1 computes faster but its link is slow, so worker 0's message is first in the queue."""
    run = Cluster(
        compute="constant(1)",
        delays=["constant(0.5, workers=[0])"],
        links=["link(up=100, workers=[1])"],
        server_link="link(up=25)",
        policy="synchronous",
    ).run(gradients=2)
    assert [row[:2] for row in run.rows] == [(1.5 + 4, 0), (1.5 + 8, 1)]


def test_a_busy_link_limits_the_rate() -> None:
    """Eight workers could send eight messages a second; the link carries two. It is never idle."""
    run = Cluster(server_link="link(up=200)", workers=8).run(gradients=100)
    assert times(run) == [1 + 0.5 * i for i in range(1, 101)]
    free = Cluster(server_link="link(up=1600)", workers=4).run(gradients=100)
    rate = 100 / times(free)[-1]
    assert rate == pytest.approx(4, rel=0.1), "a link that is rarely busy hardly matters"


def test_a_cancelled_job_never_reaches_the_server_but_its_model_was_sent() -> None:
    """Of two workers the first to arrive ends the round, which cancels the other's job."""
    run = Cluster(policy="k-sync(k=1)", server_link="link(down=100)", workers=2).run(gradients=3)
    assert run.rows == [(1.5, 0, "applied"), (3.0, 0, "applied"), (4.5, 0, "applied")]
    assert run.server.ledger.cancelled == 3


# Without links nothing changes

NO_LINKS: list[dict[str, Any]] = [
    {"policy": "asynchronous"},
    {"policy": "k-batch-sync(k=2)"},
    {"policy": "ssp(bound=1)", "work": "local(steps=3)", "batches": [3, 3, 3]},
]


@pytest.mark.parametrize("settings", NO_LINKS)
def test_an_empty_network_and_churn_change_no_bit(settings: dict[str, Any]) -> None:
    common = {"compute": "gamma(1, 0.5)", "delays": ["spikes(0.1, 5)", "exponential(0.1)"], "workers": 3}
    plain = Cluster(**common, **settings, is_plain=True).run(gradients=200)
    empty = Cluster(**common, **settings).run(gradients=200)
    assert plain.rows == empty.rows and plain.engine._is_plain and not empty.engine._is_plain
    assert plain.server.x.equal(empty.server.x)
    assert Cluster(**common, **settings, links=["link(1e-9)"]).run(gradients=200).rows != plain.rows


def test_gradients_computed_ahead_on_processes_are_the_same() -> None:
    common: dict[str, Any] = {
        "compute": "gamma(1, 0.5)",
        "links": [WORKER],
        "server_link": "link(up=300, down=300)",
        "churn": ["exponential-churn(20, 5)"],
        "workers": 5,
    }
    here = Cluster(**common).run(gradients=150)
    pools: list[GradientPool] = []

    def make(program: Any) -> GradientPool:
        pools.append(GradientPool(program, 1))
        return pools[-1]

    try:
        ahead = Cluster(**common, make_computer=make).run(gradients=150)
    finally:
        pools[0].close()
    assert ahead.rows == here.rows and ahead.server.x.equal(here.server.x)


def test_cancelled_jobs_do_not_fill_the_queue() -> None:
    """The slow worker's job is cancelled in every round, and would end long after the run."""
    delays = ["constant(1e9, workers=[1, 2, 3])"]
    run = Cluster(policy="k-sync(k=1)", delays=delays, workers=4, links=["link(0.1)"]).run(updates=3000)
    assert run.server.k == 3000 and len(run.engine._queue) <= 3 * 4 + 1000 + 4


# Text and refusals


@pytest.mark.parametrize(
    "text",
    ["link", "link(latency=0.1)", "link(up=10.0, down=5.0, workers=[0, 2])", "link(latency=1.0, up=2.0)"],
)
def test_text_round_trip(text: str) -> None:
    assert str(parse_entry(text, LINKS)) == text


def test_infinity_is_the_default_and_may_be_written() -> None:
    assert parse_entry("link(up=inf, down=inf)", LINKS) == Link() and Link().up == math.inf
    assert Link().identity() == "link(latency=0.0, up=inf, down=inf, workers=None)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("link(up=-1)", "link: up must be greater than 0, got -1; for example up=inf"),
        ("link(down=0)", "link: down must be greater than 0, got 0; for example down=inf"),
        ("link(up=nan)", "up must be greater than 0, got 'nan'"),
        ("link(latency=-0.5)", "latency must be greater than or equal to 0, got -0.5"),
        ("link(latency=inf)", "latency must be a finite number"),
        ("link(workers=[])", r"\[\] affects no worker"),
        ("link(bandwidth=3)", "unknown key 'bandwidth'"),
        ("lnk", "Unknown link 'lnk'. Did you mean 'link'"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_entry(text, LINKS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("links", "server", "message"),
    [
        ([Link(), Link(workers=(1,))], None, r"Worker 1 has two links, link and link\(workers=\[1\]\)"),
        ([Link(workers=(0, 1)), Link(latency=1, workers=(1,))], None, "Worker 1 has two links"),
        ([Link(workers=(0, 3))], None, "worker 3 does not exist. The workers are 0 to 1"),
        ([], Link(workers=(0,)), "all workers share the server's link. Omit workers"),
        ([Link(up=1e-320)], None, "would never arrive. Use a larger bandwidth"),
        ([], Link(down=1e-320), "would never arrive"),
    ],
)
def test_networks_that_make_no_sense_are_refused(
    links: list[Link], server: Link | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Network(links, server, 2, BYTES_UP, BYTES_DOWN)


def test_a_worker_named_twice_in_one_link_has_one_link() -> None:
    Network([Link(workers=(1, 1)), Link(workers=(0,))], None, 2, BYTES_UP, BYTES_DOWN)


@pytest.mark.parametrize(
    "settings",
    [
        {"link": "link(latency=0.1, up=1e5, down=1e6)", "channel": "top-k(0.1)"},
        {"server_link": "link(up=1e6)", "work": "local(steps=3)"},
        {"delay": "by-label(5, labels=[0, 1])"},
    ],
)
def test_a_preview_without_gradients_has_the_times_of_the_run(settings: dict[str, Any]) -> None:
    experiment = Experiment(dataset="digits", model="linear", workers=4, gradients=60, **settings)
    preview, run = simulate(experiment), simulate(experiment, experiment.problem())
    assert preview.engine.now == run.engine.now > 0
    assert preview.server.bytes_up == run.server.bytes_up > 0
