"""What simulating costs, as ratios, interleaved in one run: `make bench` on a quiet machine.

1. The simulator on one core and on two against a bare torch loop over the same gradients, and against two
   bare loops at once: what this machine's two cores can do at most.
2. Arrivals per second without gradients, for 10 to 10,000 workers.
3. Memory of 1,000 LeNet-5 workers.
4. The server's cost per arrival of every method, in units of one axpy over the model.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console

from straggler.algorithms.methods import METHODS
from straggler.analysis.tables import build_table
from straggler.core import Arrival, Message, Server
from straggler.core.loop import Budget, train
from straggler.engines.pool.gradient_pool import GradientComputer, GradientPool, create_computer
from straggler.engines.simulator import Simulator
from straggler.experiment import Experiment
from straggler.problems.quadratic import NullProblem
from straggler.problems.supervised import SupervisedProblem, use_one_thread
from straggler.running.allocator import tune_allocator
from straggler.timing import Durations

console = Console()


def lenet(**settings: object) -> Experiment:
    return Experiment(
        dataset="fashion-mnist", model="lenet5", lr=0.005, momentum=0.9, eval_every=0, **settings
    )


def bare_loop(workers: int, gradients: int) -> float:
    """Seconds of a plain torch loop on the batches of a simulation with so many workers."""
    problem = lenet(workers=workers).problem()
    assert isinstance(problem, SupervisedProblem)
    module = problem.model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.005, momentum=0.9)
    started = time.perf_counter()
    for number in range(gradients):
        batch = problem.batch(number % workers, number // workers)
        inputs, targets = problem.splits["train"].fetch(batch)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()
    return time.perf_counter() - started


class BareLoops:
    """Two plain loops at once that share nothing: what two cores of this machine can do at most."""

    def __init__(self) -> None:
        self.pool = get_context("spawn").Pool(2, initializer=torch.set_num_threads, initargs=(1,))

    def __call__(self, workers: int, gradients: int) -> float:
        """Seconds until both have done their half."""
        return max(self.pool.starmap(bare_loop, [(workers, gradients // 2)] * 2, chunksize=1))

    def close(self) -> None:
        self.pool.terminate()


def simulated(
    experiment: Experiment, gradients: int, jobs: int, ready: Callable[[], None] = lambda: None
) -> float:
    """Seconds of the loop in the simulator, as a run without a record."""
    problem = experiment.problem()
    compute = create_computer(experiment.program(problem), jobs)
    try:
        if isinstance(compute, GradientPool):
            compute.wait_until_ready()
        server = experiment.server(problem)
        durations = Durations(experiment.compute, experiment.delay, experiment.workers, experiment.seed)
        ready()
        started = time.perf_counter()
        train(server, Simulator(compute, durations), Budget(gradients=gradients), lambda *seen: None)
        return time.perf_counter() - started
    finally:
        compute.close()


def against_a_bare_loop(gradients: int, rounds: int) -> None:
    experiment = lenet(workers=8, compute="gamma(mean=1, cv=0.2)")
    limit = BareLoops()
    ways: dict[str, Callable[[], float]] = {
        "bare torch loop": lambda: bare_loop(experiment.workers, gradients),
        "two bare loops": lambda: limit(experiment.workers, gradients),
        "simulator, 1 core": lambda: simulated(experiment, gradients, 1),
        "simulator, 2 cores": lambda: simulated(experiment, gradients, 2),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with closing(limit):
        for _ in range(rounds):
            for name, way in ways.items():
                seconds[name].append(way())
    bare = seconds["bare torch loop"]
    rows = []
    for name, times in seconds.items():
        ratios = [b / t for b, t in zip(bare, times, strict=True)]
        rows.append(
            [
                name,
                f"{1000 * statistics.median(times) / gradients:.2f} ms",
                f"{statistics.median(ratios):.3f}",
            ]
        )
    title = (
        f"LeNet-5, batch 32, 8 asynchronous workers, {gradients} gradients, median of {rounds} interleaved"
    )
    console.print(build_table(title, ["", "per gradient", "speed against the bare loop"], rows))


def arrivals_per_second(arrivals: int) -> None:
    rows = []
    first = 0.0
    for workers in (10, 1_000, 10_000):
        experiment = Experiment(dataset="quadratic", workers=workers, compute="exponential(mean=1)")
        problem = NullProblem()
        compute = GradientComputer(experiment.program(problem))
        simulator = Simulator(compute, Durations(experiment.compute, [], workers, 0))
        server = experiment.server(problem)
        started = time.perf_counter()
        train(server, simulator, Budget(gradients=arrivals + workers), lambda *seen: None)
        cost = (time.perf_counter() - started) / (arrivals + workers)
        first = first or cost
        rows.append([f"{workers:,}", f"{1 / cost:,.0f} /s", f"{1e6 * cost:.1f} µs", f"{cost / first:.2f}"])
    console.print(
        build_table("Arrivals without gradients", ["workers", "rate", "each", "against 10 workers"], rows)
    )


def memory(workers: int) -> None:
    """What training with so many workers takes at its peak, above what the data and libraries take."""
    grown = {}
    for count in (1, workers):
        command = [sys.executable, __file__, "--peak", str(count)]
        grown[count] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    model = 61_706 * 4 / 2**20
    rows = [[f"{count:,}", f"{kib / 1024:,.0f} MiB"] for count, kib in grown.items()]
    rows.append(["each, in models", f"{(grown[workers] - grown[1]) / 1024 / (workers - 1) / model:.2f}"])
    title = "Peak memory of training, LeNet-5, asynchronous, two passes over all workers"
    console.print(build_table(title, ["workers", ""], rows))


def peak(workers: int) -> None:
    """Print the KiB by which the peak in training exceeds what was there before (Linux)."""
    before = []

    def forget_the_peak() -> None:
        Path("/proc/self/clear_refs").write_text("5")
        before.append(resident("VmRSS"))

    with use_one_thread():
        simulated(lenet(workers=workers), 2 * workers, jobs=1, ready=forget_the_peak)
    print(resident("VmHWM") - before[0])


def resident(key: str) -> int:
    """A line of this process's status, in KiB."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(key)))


def server_costs(size: int, arrivals: int = 600) -> None:
    """Time of `receive` with ready-made gradients, in axpys of the same size."""
    x, g = torch.randn(size), torch.randn(size)
    rows = []
    for name, method in METHODS.items():
        workers = 1 if method.single else 8
        experiment = Experiment(method=name, workers=workers, lr=1e-6)
        server = Server(
            x,
            x[:0],
            workers,
            experiment.policy,
            experiment.correction,
            experiment.aggregation,
            experiment.optimizer,
            lambda e: 1e-6,
            experiment.program(NullProblem(size)),
        )
        server.begin()
        axpy, receive = [], []
        for number in range(arrivals):
            started = time.perf_counter()
            torch.add(x, g, alpha=0.1)
            axpy.append(time.perf_counter() - started)
            worker = number % workers
            if worker not in server.busy:
                continue
            arrival = Arrival(server.busy[worker], 0.0, 0.0, 1, lambda job: Message(g, 1.0, x[:0]))
            started = time.perf_counter()
            server.receive(arrival)
            receive.append(time.perf_counter() - started)
        unit, cost = typical(axpy), typical(receive)
        rows.append([name, f"{1e6 * cost:.0f} µs", f"{cost / unit:.1f}"])
    console.print(
        build_table(f"Server cost per arrival, {size:,} parameters", ["method", "mean", "in axpys"], rows)
    )


def typical(seconds: list[float], block: int = 40) -> float:
    """The median over blocks of the mean within: steps of several arrivals count, disturbances do not."""
    means = [statistics.mean(seconds[i : i + block]) for i in range(block, len(seconds) - block + 1, block)]
    return statistics.median(means)


def main() -> None:
    tune_allocator()  # as in the processes that Straggler starts, for the bare loop too
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gradients", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        return peak(arguments.peak)
    with use_one_thread():
        against_a_bare_loop(arguments.gradients, arguments.rounds)
        arrivals_per_second(200_000)
        memory(1_000)
        server_costs(61_706)
        server_costs(1_000_000)
    return None


if __name__ == "__main__":
    main()
