"""Shared cores: their laws, on small clusters by hand and on random ones."""

import itertools
from typing import Any

import pytest
from small_clusters import Cluster

from straggler.config.registry import InputError, parse_entry
from straggler.engines.pool.gradient_pool import GradientPool
from straggler.experiment import Experiment
from straggler.running.simulation import simulate
from straggler.timing.cores import CORES


def times(cluster: Cluster, worker: int | None = None) -> list[float]:
    return [time for time, who, _ in cluster.rows if worker in (None, who)]


SETTINGS: list[dict[str, Any]] = [
    {"policy": "asynchronous", "links": ["link(latency=0.25, workers=[0])"]},
    {"policy": "k-sync(k=2)", "delays": ["exponential(0.5)"]},
    {"policy": "ssp(bound=1)", "server_link": "link(up=400, down=400)"},
]
COMMON: dict[str, Any] = {"compute": "gamma(1, 0.5)", "workers": 4}


# By hand


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        ("cores(1, slice=100)", [1, 2, 3]),  # one after the other
        # 0 and 1 make room after 0.5 s; 2 has used 0.5 s more than they only when it ends
        ("cores(1, slice=0.5)", [2, 2.5, 3]),
        ("cores(3, slice=0.5)", [1, 1, 1]),
        ("cores(4, slice=0.5)", [1, 1, 1]),
    ],
)
def test_three_jobs_of_one_second(cores: str, expected: list[float]) -> None:
    run = Cluster(policy="synchronous", cores=cores, workers=3).run(gradients=3)
    assert times(run) == pytest.approx(expected)


def test_small_slices_share_a_core_evenly() -> None:
    """Three jobs of one second, each with a third of a core."""
    run = Cluster(policy="synchronous", cores="cores(1, slice=0.001)", workers=3).run(gradients=3)
    assert times(run) == pytest.approx([3, 3, 3], abs=0.01)
    assert [each.compute for each in run.arrivals] == pytest.approx([3, 3, 3], abs=0.01)


def test_delays_use_no_core() -> None:
    run = Cluster(policy="synchronous", cores="cores(1)", delays=["constant(5)"], workers=2).run(gradients=2)
    assert max(times(run)) == pytest.approx(7, abs=0.01), "two jobs of a second, then one delay"


def test_the_server_handles_one_message_after_the_other() -> None:
    run = Cluster(policy="synchronous", cores="cores(5, server=0.5)", workers=4).run(gradients=4)
    assert times(run) == [1.0, 1.5, 2.0, 2.5], "an arrival counts when the server turns to it"
    assert run.engine.now == 3.0


def test_a_core_idle_for_a_slice_takes_over_a_waiting_process() -> None:
    """Workers 0 and 2 share a core. Worker 1, on the other with the server, is delayed for long."""
    cores = "cores(2, slice=0.25)"
    run = Cluster(policy="synchronous", cores=cores, delays=["constant(9, workers=[1])"], workers=3)
    run.run(gradients=2)
    assert times(run) == [1.5, 1.75], "the other core is idle from 1 on, and helps at 1.25"


def test_a_cancelled_job_frees_its_core() -> None:
    """Two workers share a core; the first to finish ends the round."""
    run = Cluster(policy="k-sync(k=1)", cores="cores(1, slice=100)", workers=2).run(gradients=3)
    assert times(run) == [1, 2, 3] and run.server.ledger.cancelled == 3


# Laws


@pytest.mark.parametrize("settings", SETTINGS)
def test_enough_cores_change_no_time(settings: dict[str, Any]) -> None:
    free = Cluster(**COMMON, **settings).run(gradients=200)
    many = Cluster(**COMMON, **settings, cores="cores(5)").run(gradients=200)
    assert [row[1:] for row in many.rows] == [row[1:] for row in free.rows]
    assert times(many) == pytest.approx(times(free), rel=1e-9) and many.server.x.equal(free.server.x)


@pytest.mark.parametrize("slice_seconds", [0.01, 0.3, 10.0])
@pytest.mark.parametrize("workers", [3, 7])
def test_busy_cores_lose_no_time(slice_seconds: float, workers: int) -> None:
    """While every core has work, two cores deliver 2 / (compute + server) messages a second."""
    cores = f"cores(2, slice={slice_seconds}, server=0.25, cv=0.2)"
    run = Cluster(compute="gamma(1, 0.3)", workers=workers, cores=cores).run(gradients=1500)
    rate = len(run.rows) / run.engine.now
    assert rate <= 2 / 1.25 * 1.03
    assert rate >= 2 / 1.25 * (0.97 if slice_seconds < 0.1 else 0.7)


def test_workers_on_one_core_deliver_equally_often() -> None:
    run = Cluster(compute="gamma(1, 0.3)", workers=5, cores="cores(1, slice=0.1, server=0.05)").run(
        gradients=2000
    )
    assert max(run.server.finished) < 1.1 * min(run.server.finished)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("cores", ["cores(1, slice=0.1)", "cores(2, slice=0.3, server=0.1, cv=0.5)"])
def test_a_resumed_run_continues_bit_for_bit(settings: dict[str, Any], cores: str) -> None:
    whole = Cluster(**COMMON, **settings, cores=cores).run(gradients=60)
    for events in range(1, 40, 3):
        first = Cluster(**COMMON, **settings, cores=cores).run(events=events, gradients=60)
        second = Cluster(**COMMON, **settings, cores=cores).restore(first.checkpoint()).run(gradients=60)
        assert first.rows + second.rows == whole.rows
        assert second.server.x.equal(whole.server.x) and second.engine.now == whole.engine.now


def test_rows_are_in_order_and_gradients_ahead_are_the_same() -> None:
    settings = COMMON | {"cores": "cores(2, slice=0.1, server=0.2, cv=0.5)", "delays": ["exponential(0.5)"]}
    here = Cluster(**settings).run(gradients=150)
    assert all(a <= b for a, b in itertools.pairwise(times(here)))
    pools: list[GradientPool] = []

    def make(program: Any) -> GradientPool:
        pools.append(GradientPool(program, 1))
        return pools[-1]

    try:
        ahead = Cluster(**settings, make_computer=make).run(gradients=150)
    finally:
        pools[0].close()
    assert ahead.rows == here.rows and ahead.server.x.equal(here.server.x)


def test_a_preview_without_gradients_has_the_times_of_the_run() -> None:
    settings = {"dataset": "digits", "model": "linear", "workers": 4, "gradients": 60, "cores": 2}
    experiment = Experiment(**settings)
    preview, run = simulate(experiment), simulate(experiment, experiment.problem())
    assert preview.engine.now == run.engine.now > 0
    assert preview.engine.now > simulate(Experiment(**settings | {"cores": None})).engine.now


# Text and refusals


def test_a_number_is_the_count_and_the_id_has_every_setting() -> None:
    assert Experiment(cores=2) == Experiment(cores="cores(2)") and Experiment(cores=2).id != Experiment().id
    assert str(Experiment(cores="2").cores) == "cores(count=2)"
    assert Experiment(cores=None).id == Experiment().id
    assert Experiment.from_settings(Experiment(cores=2).to_dict()).id == Experiment(cores=2).id


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cores": 0}, "count must be greater than or equal to 1, got 0"),
        ({"cores": "cores(2, slice=0)"}, "slice must be greater than 0"),
        ({"cores": 2, "engine": "processes"}, "is simulated, so it requires engine='simulator'"),
        ({"cores": 2, "churn": "exponential-churn(5, 5)"}, "requires workers that stay"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Experiment(**settings)


def test_text_round_trip() -> None:
    text = "cores(count=2, slice=0.0005, server=0.0004, cv=0.3)"
    assert str(parse_entry(text, CORES)) == text
