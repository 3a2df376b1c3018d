"""What an arrival costs does not depend on the number of workers."""

import time
from typing import Any

import pytest

from straggler.experiment import Experiment
from straggler.problems.quadratic import NullProblem
from straggler.running.simulation import create_simulation

MANY, FEW = 4000, 20
CASES: dict[str, dict[str, Any]] = {
    "inverse-frequency": {"aggregation": "inverse-frequency"},
    "k-batch-async": {"policy": "k-batch-async(k=2)"},
    "latest": {"aggregation": "latest"},
    "latest, limited": {"aggregation": f"latest(max_staleness={MANY // 2})"},
    "malenia": {"policy": "malenia(batch=1000000)", "aggregation": "worker-means"},
    "paced": {"policy": "paced(batch=1, staleness=9999, window=1)"},
    "ringleader": {"policy": "ringleader", "aggregation": "ringleader"},
    "ringmaster, restarting": {"policy": "ringmaster(max_delay=9999, restart=true)"},
}


def measure_arrival(workers: int, arrivals: int, settings: dict[str, Any]) -> float:
    """Return the CPU seconds of an arrival in a simulation whose gradients cost nothing."""
    experiment = Experiment(workers=workers, compute="gamma(1, 0.3)", gradients=arrivals, lr=1e-9, **settings)
    simulation = create_simulation(experiment, NullProblem(1000))
    started = time.process_time()
    simulation.run(experiment.budget(simulation.problem))
    return (time.process_time() - started) / arrivals


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_an_arrival_costs_about_the_same_with_many_workers(case: str) -> None:
    """Scanning 4,000 workers takes at least ten times as long as the arrival itself."""
    few = min(measure_arrival(FEW, 500, CASES[case]) for _ in range(3))
    assert measure_arrival(MANY, 3 * MANY, CASES[case]) < 4 * few
