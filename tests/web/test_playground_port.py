"""The page's simulation in JavaScript equals the simulator's, event by event."""

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from playwright.sync_api import Browser, Page
from torch import Tensor
from web_testing import BrowserPage

from straggler.algorithms.methods import METHODS
from straggler.core import Arrival, Change, Decision, Job
from straggler.core.loop import Budget, train
from straggler.core.randomness import addressed_rng
from straggler.experiment import Experiment
from straggler.problems.supervised import use_one_thread
from straggler.running.simulation import create_simulation
from straggler.timing import DELAYS
from straggler.timing.churn import CHURN
from straggler.web.playground import LEFT_OUT, describe_simulation, is_offered, list_choices
from straggler.web.playground_build import SIMULATION_SCRIPTS
from straggler.web.report import STATIC
from straggler.web.ziggurat import read_ziggurat_widths

pytestmark = pytest.mark.slow
EVENTS = 150  # gradients per simulation
OFFERED = [name for name, method in METHODS.items() if is_offered(method)]
# Settings of clusters; every method is simulated on all of them.
CLUSTERS: dict[str, dict[str, Any]] = {
    "equal workers": {"workers": 4, "compute": "constant(1)"},
    "random times": {"workers": 5, "compute": "gamma(mean=1, cv=0.3)", "seed": 7},
    "one slow worker": {
        "workers": 8,
        "compute": "gamma(mean=1, cv=0.2)",
        "delay": ["constant(4, workers=[0])", "spikes(0.2, 10)"],
        "seed": 1,
    },
    "links": {
        "workers": 6,
        "compute": "exponential(mean=1, shift=0.1)",
        "link": ["link(latency=0.3, up=1e3, down=2e3)"],
        "server_link": "link(latency=0.1, up=1e4)",
        "dataset": "mixture(samples=100)",
        "model": "linear",
    },
    "churn": {
        "workers": 7,
        "compute": "gamma(mean=1, cv=0.5)",
        "churn": ["preemption(every=15, down=4, warning=0.3, workers=[0, 1, 2, 3])", "late(5, workers=[6])"],
        "seed": 3,
    },
    "churn with grace": {
        "workers": 9,
        "compute": "uniform(0.5, 2)",
        "churn": ["exponential-churn(up=12, down=5, finish=True, workers=[0, 1, 2, 3, 4])"],
        "server_link": "link(latency=0.2)",
    },
}
MORE_SETTINGS = [  # of methods, beside the defaults
    {"policy": "k-sync(k=4)"},
    {"policy": "k-async(k=3)"},
    {"policy": "k-batch-sync(k=11)"},
    {"policy": "ssp(bound=0)"},
    {"policy": "ssp(bound=1)"},
    {"policy": "dssp(lower=1, upper=4)"},
    {"policy": "ringmaster(max_delay=3)"},
    {"policy": "ringmaster(max_delay=2, restart=True)"},
    {"policy": "malenia(batch=20)", "aggregation": "worker-means"},
    {"policy": "paced(batch=3, staleness=1, window=4)"},
    {"policy": "paced(batch=1, staleness=0)"},
    {"policy": "hybrid(num_workers_ps_update=3, staleness_tolerance=2, pull_weights_interval=2)"},
    {"policy": "hybrid(num_workers_ps_update=2, staleness_tolerance=0)"},
    {"aggregation": "latest(max_staleness=2)"},
    {"work": "accumulate(batches=3)"},
    {"method": "async-diloco", "work": "local(steps=6, lr=0.1, balance=True)"},
]
COMPUTE_LAWS = [
    "gaussian(mean=2, std=0.5)",
    "uniform(low=0.1, high=3)",
    "exponential(mean=1, shift=0.01)",
    "gamma(mean=1, cv=2)",
    "gamma-machines(mean=1, cv_machine=0.8, cv_task=0.3)",
    "lognormal(mean=1, cv=1)",
    "pareto(scale=0.5, alpha=1.2)",
    "power(base=0.3, exponent=0.7)",
]
DELAY_LAWS = ["constant(seconds=2, workers=[1, 3])", "spikes(probability=0.1, factor=20)"]
DELAY_LAWS += ["on-off(fail=0.1, recover=0.3, factor=8, workers=[0, 2])", "gaussian(mean=0, std=1)"]
CHURN_LAWS = ["exponential-churn(up=10, down=3, workers=[0, 1])", "preemption(every=9, down=2)"]
CHURN_LAWS += ["diurnal(period=20, share=0.6, workers=[1, 2, 3])", "late(seconds=6, workers=[0, 4])"]
CHURN_LAWS += ["leave(seconds=9, workers=[2], finish=True)"]


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    with BrowserPage(browser) as found:
        found.set_content("<title>simulation</title>")
        for name in SIMULATION_SCRIPTS:
            found.add_script_tag(content=(STATIC / name).read_text())
        found.evaluate("(widths) => playground.useTables(widths)", read_ziggurat_widths())
        yield found


SIMULATE = """(all) => all.map(([settings, gradients]) => {
    try {
        const { jobs } = playground.simulate(playground.revive(settings), { gradients, seconds: Infinity });
        const keys = ["worker", "version", "staleness", "decision", "time", "started"];
        return jobs.map((job) => keys.map((key) => job[key]));
    } catch (error) { return error.message; }
})"""


def list_events(experiment: Experiment) -> tuple[list[list[Any]], dict[str, Any]]:
    """Return the events of the simulator, and the experiment as the page takes it."""
    simulation = create_simulation(experiment)
    server, events = simulation.server, list[list[Any]]()
    submit, accepted = simulation.engine.submit, set[Job]()

    def note_accepted(job: Job) -> bool:
        is_accepted = submit(job)
        if is_accepted:  # else its worker is away
            accepted.add(job)
        return is_accepted

    def observe(event: Arrival | Change, decision: Decision, staleness: int, before: Tensor) -> None:
        if isinstance(event, Arrival):
            job = event.job
            events.append([job.worker, job.version, staleness, decision, event.time, event.started])
        for job in server.cancelled:
            if job not in accepted:
                continue
            is_lost = isinstance(event, Change) and job.worker == event.worker
            begun = None if is_lost else simulation.engine.started[job.worker]
            ended = "lost" if is_lost else "cancelled"
            events.append([job.worker, job.version, server.staleness(job), ended, event.time, begun])

    program = server.program
    with use_one_thread(), patch.object(simulation.engine, "submit", note_accepted):
        train(server, simulation.engine, Budget(gradients=EVENTS), observe)
    return events, describe_simulation(experiment, program.bytes_up, program.bytes_down)


def compare_events(page: Page, experiments: list[Experiment]) -> None:
    expected, settings = zip(*map(list_events, experiments), strict=True)
    simulated = page.evaluate(SIMULATE, [[each, EVENTS] for each in json.loads(json.dumps(settings))])
    for experiment, real, events in zip(experiments, expected, simulated, strict=True):
        assert isinstance(events, list), f"{experiment.to_toml()}: {events}"
        for number, (ours, theirs) in enumerate(zip(events, real, strict=False)):
            assert ours[:4] == theirs[:4], (
                f"{experiment.to_toml()}: event {number}: {ours} instead of {theirs}"
            )
            known = 6 if theirs[5] is not None else 5  # the simulator forgets when lost jobs started
            assert ours[4:known] == pytest.approx(theirs[4:known], rel=1e-11, abs=1e-11)
        assert len(events) == len(real) >= EVENTS / 25  # a message of local steps counts as several gradients


SELDOM = ("random times", "churn")  # like "one slow worker" and "churn with grace"


@pytest.mark.parametrize(
    "cluster", [pytest.param(name, marks=pytest.mark.chaos) if name in SELDOM else name for name in CLUSTERS]
)
def test_every_method_has_the_same_events(page: Page, cluster: str) -> None:
    base = {"dataset": "quadratic"} | CLUSTERS[cluster]
    compare_events(
        page, [Experiment(**base, method=method, lr=0.01) for method in OFFERED if fits(base, method)]
    )


def fits(settings: dict[str, Any], method: str) -> bool:
    """Return whether a method works with this number of workers."""
    try:
        return bool(Experiment(**settings, method=method, lr=0.01))
    except ValueError:
        return False


@pytest.mark.parametrize("cluster", ["equal workers", "one slow worker", "churn"])
def test_other_settings_of_methods_have_the_same_events(page: Page, cluster: str) -> None:
    base = {"dataset": "quadratic"} | CLUSTERS[cluster]
    compare_events(page, [Experiment(**base, lr=0.01, **settings) for settings in MORE_SETTINGS])


def test_every_law_has_the_same_events(page: Page) -> None:
    base = {"dataset": "quadratic", "workers": 5, "lr": 0.01, "method": "ssp"}
    clusters: list[dict[str, Any]] = [{"compute": law} for law in COMPUTE_LAWS]
    clusters += [{"compute": "gamma(1, 0.3)", "delay": [law]} for law in DELAY_LAWS]
    clusters += [{"compute": "gamma(1, 0.3)", "churn": [law]} for law in CHURN_LAWS]
    compare_events(page, [Experiment(**base | each, seed=seed) for each in clusters for seed in (0, 12345)])
    tested = {law.split("(")[0] for law in [*COMPUTE_LAWS, *DELAY_LAWS, *CHURN_LAWS]} | {"gamma"}
    assert tested == {*DELAYS.built_in, *CHURN.built_in} - LEFT_OUT
    offered = list_choices()["cluster"]
    assert {*offered["compute"], *offered["delay"], *offered["churn"]} == tested


DRAW = """([kinds, seed, count]) => kinds.map((kind) => {
    const rng = new playground.Generator(seed, "a stream", 3, 9);
    return Array.from({ length: count }, () => (kind === "gamma" ? rng.gamma(2.5) : rng[kind]()));
})"""


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_generator_draws_the_same_numbers(page: Page, seed: int) -> None:
    """Enough draws that all layers and the tails are reached."""
    count = 40_000
    uniform, normal, exponential, gamma = page.evaluate(
        DRAW, [["random", "normal", "exponential", "gamma"], seed, count]
    )

    def rng() -> np.random.Generator:
        return addressed_rng(seed, "a stream", 3, 9)

    assert uniform == rng().random(count).tolist()
    for ours, theirs in (
        (normal, rng().standard_normal(count)),
        (exponential, rng().standard_exponential(count)),
        (gamma, rng().standard_gamma(2.5, count)),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-13)
