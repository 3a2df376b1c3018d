"""Where each method ends if workers differ in speed and data: `python examples/quadratic_ends.py [METHOD …]`.

Four workers take 1, 2, 5 and 10 seconds per gradient. Worker i minimises aᵢ(x − bᵢ)²/2. Runs start at 1 and
take 6,000 updates at lr=0.002, or 1,500 at the own learning rate of a method. The result is the mean model of
the last fifth of a run.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from straggler.algorithms.methods import METHODS
from straggler.core import Message
from straggler.experiment import Experiment
from straggler.problems.quadratic import QuadraticProblem
from straggler.running.simulation import create_simulation

CURVATURES, MINIMA = (1.0, 2.0, 3.0, 1.0), (-3.0, 1.0, 5.0, 19.0)  # of the four workers
SPEEDS = (1.0, 1 / 2, 1 / 5, 1 / 10)


class FourQuadratics(QuadraticProblem):
    """Worker i minimises aᵢ(x − bᵢ)²/2, so the workers' minima differ."""

    def gradient(self, x: Tensor, buffers: Tensor, worker: int, index: int) -> Message:
        return Message(CURVATURES[worker] * (x - MINIMA[worker]), 0.0, buffers)


def find_end(method: str, updates: int = 6000, lr: float = 0.002, **settings: Any) -> float:
    """Return the mean model of the last fifth of a run."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "times.csv"
        trace.write_text("worker,seconds\n0,1\n1,2\n2,5\n3,10\n")
        timing = {"workers": 4, "compute": f"trace('{trace}')", "updates": updates, "lr": lr}
        experiment = Experiment(dataset="quadratic(dimension=1)", method=method, **timing, **settings)
        simulation = create_simulation(experiment, FourQuadratics(experiment.dataset, 4, 32, 0))
        models: list[float] = []
        budget = experiment.budget(simulation.problem)
        simulation.run(budget, lambda *event: models.append(float(simulation.server.x)))
    last = models[-(len(models) // 5) :]
    return sum(last) / len(last)


def find_end_of_row(method: str) -> float:
    """Return the end of a method with the settings of its row."""
    own = METHODS[method].lr
    return find_end(method) if own is None else find_end(method, updates=1500, lr=own)


def main() -> None:
    for method in sys.argv[1:] or [name for name in METHODS if not METHODS[name].single]:
        print(f"| `{method}` | {find_end_of_row(method):.2f} |".replace("-0.00", "0.00"), flush=True)


if __name__ == "__main__":
    main()
