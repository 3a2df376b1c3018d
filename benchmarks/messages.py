"""What messages cost: `make bench` on a quiet machine. Without an option, both parts run.

--channels: push-pulls per second of a large model on Ray, by channel, as ratios to the exact channel. The
            channels take turns in every round.
--scale:    10,000 workers with links, a shared server link and churn, training LeNet-5 in virtual time on all
            cores: time, peak memory of the main process and events.
"""

import argparse
import os
import statistics
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import torch
from rich.console import Console

from straggler.analysis.tables import build_table
from straggler.core import Arrival, Change, Message
from straggler.core.loop import Budget, train
from straggler.engines.pool.gradient_pool import create_computer
from straggler.engines.ray import RayEngine
from straggler.engines.simulator import Simulator
from straggler.experiment import Experiment
from straggler.problems.quadratic import NullProblem
from straggler.problems.supervised import use_one_thread
from straggler.running.allocator import tune_allocator

console = Console()
CHANNELS = ("exact", "bf16(down=bf16)", "top-k(0.01)")


class RandomGradients(NullProblem):
    """A problem whose gradient is one random vector: choosing the largest of equal numbers would be easy."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        gradient = torch.randn(size, generator=torch.Generator().manual_seed(0))
        self.result = Message(gradient, 0.0, torch.empty(0))


def measure_channel(channel: str, size: int, workers: int, count: int) -> float:
    """Return the push-pulls per second of one channel, after a warm-up."""
    experiment = Experiment(workers=workers, channel=channel, lr=1e-6, momentum=0)
    problem = RandomGradients(size)
    server = experiment.server(problem)
    with closing(RayEngine(experiment.program(problem), experiment.durations(), workers)) as engine:
        # The first messages touch new memory, which costs more than the copy.
        train(server, engine, Budget(gradients=4 * workers), lambda *seen: None)
        started, done = time.perf_counter(), server.gradients
        train(server, engine, Budget(gradients=done + count), lambda *seen: None)
        return (server.gradients - done) / (time.perf_counter() - started)


def compare_channels(size: int, workers: int, count: int, rounds: int) -> None:
    """Print the push-pulls per second of every channel, as ratios to the first."""
    rates: dict[str, list[float]] = {channel: [] for channel in CHANNELS}
    for _ in range(rounds):
        for channel, measured in rates.items():
            measured.append(measure_channel(channel, size, workers, count))
    rows = []
    for channel, measured in rates.items():
        program = Experiment(channel=channel).program(NullProblem(size))
        ratios = [rate / exact for rate, exact in zip(measured, rates[CHANNELS[0]], strict=True)]
        megabytes = (program.bytes_up / 1e6, program.bytes_down / 1e6)
        rows.append(
            [
                channel,
                *(f"{number:,.1f} MB" for number in megabytes),
                f"{statistics.median(measured):.2f} /s",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            ]
        )
    title = f"Push-pulls of {size:,} floats on Ray, {workers} workers, median of {rounds} rounds"
    console.print(build_table(title, ["channel", "up", "down", "rate", "× exact", "range"], rows))


def read_status(key: str) -> float:
    """Return a line of this process's status in MiB (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(key))) / 1024


def simulate_many_workers(workers: int, updates: int, dataset: str) -> None:
    """Train with links and churn in virtual time; print seconds, memory and events."""
    experiment = Experiment(
        dataset=dataset,
        model="lenet5",
        lr=1e-4,
        workers=workers,
        batch_size=min(32, max(1, 60_000 // workers)) if dataset == "fashion-mnist" else 1,
        partition="shared" if dataset == "digits" else "iid",
        compute="gamma(mean=1, cv=0.2)",
        link="link(latency=0.05, up=1e6, down=4e6)",
        server_link="link(up=1e9, down=1e9)",
        churn="exponential-churn(up=200, down=20)",
        updates=updates,
        eval_every=0,
    )
    problem = experiment.problem()
    before = read_status("VmRSS")
    server, events = experiment.server(problem), Counter[str]()
    cores = os.cpu_count() or 1

    def count(event: Arrival | Change, decision: str, *more: object) -> None:
        events["arrivals" if isinstance(event, Arrival) else decision] += 1

    with closing(create_computer(server.program, cores)) as computer:
        simulator = Simulator(computer, *experiment.timing(server.program))
        started = time.perf_counter()
        diverged = train(server, simulator, Budget(updates=updates), count)
        seconds = time.perf_counter() - started
    rows = [
        ["cores", str(cores)],
        ["wall-clock time", f"{seconds:,.1f} s"],
        ["virtual time", f"{simulator.now:,.1f} s"],
        ["updates", f"{server.k:,}"],
        ["events", f"{events.total():,}"],
        *([f"  {name}", f"{number:,}"] for name, number in sorted(events.items())),
        ["memory before training", f"{before:,.0f} MiB"],
        ["peak memory", f"{read_status('VmHWM'):,.0f} MiB"],
        ["sent", f"{(server.bytes_up + server.bytes_down) / 1e9:,.2f} GB"],
    ]
    if diverged:
        rows.append(["diverged", str(diverged)])
    console.print(build_table(f"LeNet-5 on {dataset}, {workers:,} workers, links and churn", ["", ""], rows))


def main() -> None:
    tune_allocator()  # as in the processes that Straggler starts
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--channels", action="store_true", help="only this part (or both, if both are given)")
    parser.add_argument("--scale", action="store_true", help="only this part (or both, if both are given)")
    parser.add_argument("--size", type=int, default=25_000_000, help="parameters of the large model")
    parser.add_argument("--ray-workers", type=int, default=2)
    parser.add_argument("--count", type=int, default=20, help="push-pulls per channel and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=10_000, help="workers in virtual time")
    parser.add_argument("--updates", type=int, default=10_000, help="updates in virtual time")
    parser.add_argument("--dataset", choices=["fashion-mnist", "digits"], default="fashion-mnist")
    given = parser.parse_args()
    runs_all = not (given.channels or given.scale)
    with use_one_thread():
        if given.scale or runs_all:  # first, because peak memory includes everything before
            simulate_many_workers(given.workers, given.updates, given.dataset)
        if given.channels or runs_all:
            compare_channels(given.size, given.ray_workers, given.count, given.rounds)


if __name__ == "__main__":
    main()
