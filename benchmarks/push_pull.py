"""How fast models and gradients travel, as ratios, interleaved in one run: `make bench` on a quiet machine.

1. Push-pulls per second of two workers and plain SGD, gradients that cost nothing: our processes, our Ray, a
   textbook server on torch.distributed.rpc, a plain Ray actor, and the limit: processes that only copy models
   and gradients through shared memory and wake each other.
2. Training on two processes against a bare torch loop on one, and against two such loops at once.
3. From the death of a worker to its next arrival.
"""

import argparse
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from typing import Any

import ray
import torch
from rich.console import Console
from simulator import BareLoops, bare_loop, lenet
from torch.distributed import rpc

from straggler.algorithms.work import gradient_program
from straggler.analysis.tables import build_table
from straggler.core import Arrival
from straggler.core.loop import Budget, train
from straggler.engines.processes import ProcessEngine
from straggler.engines.ray import RayEngine
from straggler.engines.ray_cluster import RayConnection
from straggler.engines.real_time import RealTimeEngine
from straggler.experiment import Experiment
from straggler.problems.quadratic import NullProblem
from straggler.problems.supervised import use_one_thread
from straggler.timing import Durations

console = Console()
WORKERS = 2
ENGINES: dict[str, type[RealTimeEngine]] = {"processes": ProcessEngine, "ray": RayEngine}


def no_delay(workers: int = WORKERS) -> Durations:
    experiment = Experiment()
    return Durations(experiment.compute, [], workers, 0)


class Ours:
    """One of our engines, up and warm; asked again, it goes on."""

    def __init__(self, kind: str, size: int) -> None:
        problem = NullProblem(size)
        self.engine: Any = ENGINES[kind](gradient_program(problem), no_delay(), WORKERS)
        self.server = Experiment(workers=WORKERS, lr=1e-6, momentum=0).server(problem)
        self(8)  # memory that is touched for the first time costs more than the copy

    def __call__(self, count: int) -> float:
        started = time.perf_counter()
        until = self.server.gradients + count
        train(self.server, self.engine, Budget(gradients=until), lambda *seen: None)
        return count / (time.perf_counter() - started)

    def close(self) -> None:
        self.engine.close()


class RpcServer:
    """The server of the textbook: a worker pushes a gradient and is answered with the model."""

    def __init__(self, size: int) -> None:
        self.x, self.lock = torch.zeros(size), threading.Lock()

    def push(self, gradient: torch.Tensor) -> torch.Tensor:
        with self.lock:
            self.x = self.x - 1e-6 * gradient
            return self.x


HELD: dict[str, RpcServer] = {}


def push(gradient: torch.Tensor) -> torch.Tensor:
    return HELD["server"].push(gradient)


def rpc_member(rank: int, port: int, size: int, count: int) -> None:
    """Rank 0 serves, the others push; each worker prints its rate."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    if rank == 0:
        HELD["server"] = RpcServer(size)
    rpc.init_rpc(f"member{rank}", rank=rank, world_size=WORKERS + 1)
    if rank > 0:
        gradient = torch.ones(size)
        for _ in range(max(2, count // 10)):
            rpc.rpc_sync("member0", push, args=(gradient,))
        started = time.perf_counter()
        for _ in range(count // WORKERS):
            rpc.rpc_sync("member0", push, args=(gradient,))
        print(count // WORKERS / (time.perf_counter() - started))
    rpc.shutdown()


class Rpc:
    """A server and its workers, each time anew: what is timed begins when they are up."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, count: int) -> float:
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, __file__, "--rpc"]
        members = [
            subprocess.Popen(
                [*command, *map(str, (rank, port, self.size, count))],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(WORKERS + 1)
        ]
        said = [member.communicate()[0].split() for member in members]
        return sum(float(words[-1]) for words in said[1:])

    def close(self) -> None: ...


class ActorServer:
    def __init__(self, size: int) -> None:
        self.x = torch.zeros(size).numpy()

    def push(self, gradient: Any) -> None:
        self.x = self.x - 1e-6 * gradient

    def pull(self) -> Any:
        return self.x


class ActorWorker:
    def work(self, server: Any, size: int, count: int) -> None:
        gradient = torch.ones(size).numpy()
        for _ in range(count):
            server.push.remote(gradient)
            ray.get(server.pull.remote())


class PlainRay:
    """An actor that holds the model, and actors that push and pull."""

    def __init__(self, size: int) -> None:
        self.size = size
        RayConnection(address=None, workers=WORKERS, resources={"CPU": 1.0})
        self.server = ray.remote(num_cpus=0)(ActorServer).remote(size)
        self.workers = [ray.remote(num_cpus=0)(ActorWorker).remote() for _ in range(WORKERS)]
        self(4)

    def __call__(self, count: int) -> float:
        started = time.perf_counter()
        ray.get([worker.work.remote(self.server, self.size, count // WORKERS) for worker in self.workers])
        return count / (time.perf_counter() - started)

    def close(self) -> None:
        ray.shutdown()


class Limit:
    """What this machine allows: two copies and one step of SGD, and a byte each way to wake the other."""

    def __init__(self, size: int) -> None:
        context = get_context("fork")
        self.x = torch.zeros(size)
        self.models = [torch.zeros(size).share_memory_() for _ in range(WORKERS)]
        self.gradients = [torch.zeros(size).share_memory_() for _ in range(WORKERS)]
        pairs = [socket.socketpair() for _ in range(WORKERS)]
        self.ends = [ours for ours, _ in pairs]
        work = [
            (theirs, model, gradient)
            for (_, theirs), model, gradient in zip(pairs, self.models, self.gradients, strict=True)
        ]
        self.children = [context.Process(target=copy_for_ever, args=each, daemon=True) for each in work]
        for child in self.children:
            child.start()
        self(8)

    def __call__(self, count: int) -> float:
        started = time.perf_counter()
        for end in self.ends:
            end.send(b"1")
        for done in range(1, count + 1):
            for end in select.select(self.ends, [], [])[0][:1]:
                end.recv(1)
                worker = self.ends.index(end)
                self.x = self.x - 1e-6 * self.gradients[worker]
                if done + WORKERS <= count:
                    self.models[worker].copy_(self.x)
                    end.send(b"1")
        return count / (time.perf_counter() - started)

    def close(self) -> None:
        for child in self.children:
            child.kill()


def copy_for_ever(end: socket.socket, model: torch.Tensor, gradient: torch.Tensor) -> None:
    while end.recv(1):
        gradient.copy_(model)
        end.send(b"1")


WAYS: dict[str, Callable[[int], Any]] = {
    "our processes": partial(Ours, "processes"),
    "our Ray": partial(Ours, "ray"),
    "torch.distributed.rpc": Rpc,
    "plain Ray actor": PlainRay,
    "limit": Limit,
}


def push_pulls(size: int, counts: dict[str, int], rounds: int) -> None:
    """Each is started for its turn and ended after it: an idle Ray is not idle."""
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, make in WAYS.items():
            with closing(make(size)) as way:
                rates[name].append(way(counts[name]))
    rows = [
        [name, f"{statistics.median(each):,.1f} /s", *(ratio(each, rates[other]) for other in list(WAYS)[2:])]
        for name, each in rates.items()
    ]
    title = f"Push-pulls of {size:,} floats, two workers, plain SGD, median of {rounds} interleaved rounds"
    console.print(build_table(title, ["", "rate", "× rpc", "× plain Ray actor", "× limit"], rows))


def ratio(ours: list[float], theirs: list[float]) -> str:
    return f"{statistics.median(a / b for a, b in zip(ours, theirs, strict=True)):.2f}"


def training(gradients: int, rounds: int) -> None:
    """LeNet-5 on two processes against the bare loop of benchmarks/simulator.py."""
    experiment = lenet(workers=WORKERS)
    problem = experiment.problem()
    program = gradient_program(problem)
    with closing(ProcessEngine(program, no_delay(), WORKERS)) as engine, closing(BareLoops()) as limit:
        server = experiment.server(problem)
        bare, most, ours = [], [], []
        for _ in range(rounds):
            bare.append(gradients / bare_loop(WORKERS, gradients))
            most.append(gradients / limit(WORKERS, gradients))
            started = time.perf_counter()
            train(server, engine, Budget(gradients=server.gradients + gradients), lambda *seen: None)
            ours.append(gradients / (time.perf_counter() - started))
    rows = [
        ["bare torch loop", f"{statistics.median(bare):.0f} /s", "1.00"],
        ["two bare loops at once", f"{statistics.median(most):.0f} /s", ratio(most, bare)],
        ["two processes", f"{statistics.median(ours):.0f} /s", ratio(ours, bare)],
    ]
    title = f"Training LeNet-5, batch 32, {gradients} gradients, median of {rounds} interleaved rounds"
    console.print(build_table(title, ["", "gradients", "× bare loop"], rows))


def recovery(times: int) -> None:
    """Seconds from a SIGKILL to the next arrival of that worker."""
    experiment = Experiment(dataset="digits", workers=WORKERS)
    problem = experiment.problem()
    rows = []
    for kind, make in ENGINES.items():
        with closing(make(gradient_program(problem), no_delay(), WORKERS)) as engine:  # type: ignore[type-var]
            seconds = [recover(engine, experiment) for _ in range(times)]
        rows.append([kind, f"{statistics.median(seconds):.2f} s", f"{max(seconds):.2f} s"])
    console.print(build_table("From a SIGKILL to the worker's next arrival", ["", "median", "worst"], rows))


def process_of_first(engine: Any) -> int:
    return int(engine._slots[0].pid if isinstance(engine, RayEngine) else engine._children[0].pid)


class Recovered(Exception):
    """The killed worker delivered."""


def recover(engine: Any, experiment: Experiment) -> float:
    server = experiment.server(engine.program.problem)
    killed: list[float] = []

    def watch(arrival: Arrival, *more: Any) -> None:
        if not killed and server.gradients > 20 and arrival.worker == 1:
            os.kill(process_of_first(engine), signal.SIGKILL)
            killed.append(time.perf_counter())
        elif killed and engine.restarts > before and arrival.worker == 0:
            raise Recovered

    before = engine.restarts
    try:
        train(server, engine, Budget(), watch)
    except Recovered:
        return time.perf_counter() - killed[0]
    raise AssertionError("it did not come back")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: does it run at all?")
    parser.add_argument("--rpc", nargs=4, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rpc:
        return rpc_member(*arguments.rpc)
    part = 10 if arguments.quick else 1
    small = {
        "our processes": 10_000,
        "our Ray": 1_000,
        "torch.distributed.rpc": 4_000,
        "plain Ray actor": 600,
        "limit": 10_000,
    }
    with use_one_thread():
        push_pulls(61_706, {name: count // part for name, count in small.items()}, arguments.rounds)
        push_pulls(25_000_000, dict.fromkeys(small, max(4, 20 // part)), arguments.rounds)
        training(600 // part, arguments.rounds)
        recovery(times=3)
    return None


if __name__ == "__main__":
    main()
