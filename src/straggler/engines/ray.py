"""Real time on a Ray cluster: an actor per worker, wherever there is room, the server here."""

import math
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import ray
import torch
from ray._private import ray_constants
from ray._private import utils as ray_utils
from ray._private import worker as ray_worker
from ray.exceptions import RayError, RayTaskError
from torch import Tensor

from straggler.config.registry import InputError
from straggler.core import Arrival, Gradient, Problem
from straggler.engines import EngineSetup
from straggler.engines.pool.interrupts import interrupts_later
from straggler.engines.pool.tensor_pickle import Bytes, flatten, restore
from straggler.engines.ray_errors import check_reachable, wrong_address
from straggler.engines.real_time import RealTimeEngine, Running, WorkerError
from straggler.running.allocator import tune_allocator

# Ray sends what is below 100 kB along with a call, and the rest through its object store. A vector in a few
# small pieces is there twice as fast as through the store; beyond half a megabyte the store is faster.
PIECE, ALONG = 90_000, 500_000
CPU = {"CPU": 1.0}
PATIENCE = 10.0  # seconds that calls have to tidy up when they are ended


class Worker:
    """Inside an actor: the problem, on memory that all actors of a node share."""

    def __init__(self, packed: tuple[bytes, list[Bytes]], path: list[str]) -> None:
        torch.set_num_threads(1)
        tune_allocator()
        sys.path.extend(folder for folder in path if folder not in sys.path)  # the user's own modules
        self.packed = packed

    def begin(self) -> tuple[str | None, int, str]:
        """The error, if there is one, and where this is."""
        error = None
        try:
            self.problem: Problem = restore(*self.packed)
            self.dtype = self.problem.initial_model()[0].dtype
        except Exception:
            error = traceback.format_exc()
        return error, os.getpid(), str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    def gradient(self, worker: int, index: int, buffers: bytes, *model: Any) -> list[Any]:
        """What was found, or the error; then the gradient, sent as the model was."""
        began = time.perf_counter()
        try:
            x = received(model, self.dtype)
            found = self.problem.gradient(x, received([buffers], self.dtype), worker, index)
            outcome = (found.loss, time.perf_counter() - began, found.buffers.numpy().tobytes())
        except Exception:
            return [traceback.format_exc(), *[b""] * len(model)]
        along = isinstance(model[0], bytes)
        return [outcome, *(in_pieces(found.vector) if along else [found.vector.numpy()])]


def in_pieces(vector: Tensor) -> list[bytes]:
    """Small enough to travel with a call, and as bytes, which Ray sends as they are."""
    whole = vector.numpy().data.cast("B")
    return [bytes(whole[start : start + PIECE]) for start in range(0, len(whole), PIECE)]


def received(pieces: Sequence[Any], dtype: torch.dtype) -> Tensor:
    """A vector from its pieces; or where the object store has it, which is read-only, as gradients are."""
    if not isinstance(pieces[0], bytes):
        with warnings.catch_warnings(action="ignore"):  # torch has no vectors that are read-only
            return torch.from_numpy(pieces[0])
    whole = bytearray().join(pieces)
    return torch.frombuffer(whole, dtype=dtype) if whole else torch.empty(0, dtype=dtype)


@dataclass
class ActorSlot:
    """The actor of a worker. It is asked one thing at a time, so that it computes nothing out of date."""

    actor: Any
    answers: list[Any]  # to what it was asked, all coming at once; empty: it is idle
    launch: int = -1  # the job that it was asked for
    ready: bool = False
    pid: int = 0
    node: str = ""


class RayEngine(RealTimeEngine):
    """A worker's death, or its node's, is an error instead of an answer.

    The server holds a finished gradient back for its injected delay; the worker is idle meanwhile, and a
    newer job begins at once.
    """

    @classmethod
    def create(cls, setup: EngineSetup) -> Self:
        setup.report(f"Joining Ray at {setup.address}." if setup.address else "Starting Ray on this machine.")
        where: dict[str, Any] = {"address": setup.address, "resources": setup.worker_resources}
        shared = (setup.compute.problem, setup.durations, setup.workers, setup.min_workers)
        return cls(*shared, setup.worker_timeout, setup.report_failure, **where)

    def __init__(
        self,
        *arguments: Any,
        address: str | None = None,
        resources: Mapping[str, float] | None = None,
        **more: Any,
    ) -> None:
        self._address, self._resources = address, CPU | dict(resources or {})
        super().__init__(*arguments, **more)

    def _open(self) -> None:
        x, _ = self.problem.initial_model()
        self._dtype, self._by_store = x.dtype, x.nbytes > ALONG
        self._pieces = 1 if self._by_store else -(-x.nbytes // PIECE)
        self._seats: dict[int, ActorSlot] = {}
        self._held: dict[int, tuple[float, Gradient, float]] = {}  # finished, not to arrive before a time
        self._models: list[tuple[Tensor, Any]] = []  # those in the object store
        self._joined = False  # until it has
        self._joined = join(self._address, self.workers, self._resources)
        check_room(self.least, self._resources)
        self._actor = actor_class(self._resources)
        self._problem = ray.put(flatten(self.problem))

    def close(self) -> None:
        for seat in self._seats.values():
            ray.kill(seat.actor)
        if self._joined:
            ray.shutdown()

    def _ready(self, worker: int) -> bool:
        return self._seats[worker].ready

    def _begin(self, worker: int) -> None:
        actor = self._actor.remote(self._problem, list(filter(None, sys.path)))
        self._seats[worker] = ActorSlot(actor, [actor.begin.remote()])

    def _end(self, worker: int) -> str:
        seat = self._seats[worker]
        ray.kill(seat.actor)
        return f"process {seat.pid} on {seat.node}" if seat.ready else "before it was up"

    def _spoke(self, worker: int) -> bool:
        answers = self._seats[worker].answers
        return bool(answers and ray.wait(answers[:1], timeout=0)[0])

    def _send(self, running: Running) -> None:
        job, seat = running.job, self._seats[running.job.worker]
        self._held.pop(job.worker, None)
        if seat.answers:
            return  # `_listen` sends it when they are here
        running.since, seat.launch = self.now, job.launch
        ask = seat.actor.gradient.options(num_returns=1 + self._pieces)
        buffers = job.buffers.numpy().tobytes()
        seat.answers = ask.remote(job.worker, job.index, buffers, *self._model(job.x))

    def _model(self, x: Tensor) -> list[Any]:
        """A model as it is sent: in pieces, or by its place in the object store, where it is put once."""
        if not self._by_store:
            return in_pieces(x)
        needed = {id(x), *(id(running.job.x) for running in self._running.values())}
        self._models = [(model, ref) for model, ref in self._models if id(model) in needed]
        for model, ref in self._models:
            if model is x:
                return [ref]
        self._models.append((x, ray.put(x.numpy())))
        return [self._models[-1][1]]

    def _hear(self, patience: float | None) -> Arrival | None:
        due = min((time for time, *_ in self._held.values()), default=math.inf) - self.now
        wait = max(0.0, min(due, math.inf if patience is None else patience))
        asked = {seat.answers[0]: worker for worker, seat in self._seats.items() if seat.answers}
        if asked:
            answered, _ = ray.wait(list(asked), timeout=None if math.isinf(wait) else wait)
            for ref in answered:
                self._listen(asked[ref])
        else:
            time.sleep(wait)
        return self._due()

    def _due(self) -> Arrival | None:
        """The first of those that were held back long enough."""
        worker = min(self._held, key=lambda worker: self._held[worker][0], default=None)
        if worker is None or self._held[worker][0] > self.now:
            return None
        _, gradient, compute = self._held.pop(worker)
        return self._arrive(worker, gradient, compute)

    def _listen(self, worker: int) -> None:
        """The answer of a worker: it is up, or it has a result; or its end."""
        seat, running = self._seats[worker], self._running.get(worker)
        try:
            outcome, *pieces = ray.get(seat.answers)
        except RayError:
            self._replace(worker, "died")
            return
        seat.answers = []
        if not seat.ready:
            outcome, seat.pid, seat.node = outcome
            seat.ready = True
            self._is_up(worker)
        if isinstance(outcome, str):
            raise WorkerError(f"worker {worker} failed in the user's model or data:\n{outcome}")
        if running is None:
            return
        if outcome is None or seat.launch != running.job.launch:
            self._send(running)
        else:
            self._hold(worker, outcome, pieces)

    def _hold(self, worker: int, found: tuple[float, float, bytes], pieces: list[Any]) -> None:
        """Keep a gradient until its injected delay is over."""
        running, (loss, compute, buffers) = self._running[worker], found
        gradient = Gradient(received(pieces, self._dtype), loss, received([buffers], self._dtype))
        self._held[worker] = (self.now + running.delay, gradient, compute)
        running.since = math.inf  # nobody waits for the worker now


def join(address: str | None, workers: int, resources: Mapping[str, float]) -> bool:
    """Join a cluster, or start Ray here; False if this process has one already, which it keeps."""
    if ray.is_initialized():
        return False
    if address is not None:
        check_reachable(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray_worker.print_to_stdstream = lambda *said, **how: None  # a death is reported by the run, once
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    with on_loopback(address is None), interrupts_later():
        if address is None:
            cpus = max(1, math.ceil(workers * resources["CPU"]))
            ray.init("local", num_cpus=cpus, include_dashboard=False, **quiet)
            return True
        try:
            ray.init(address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise wrong_address(address, error) from None
    return True


@contextmanager
def on_loopback(wanted: bool) -> Iterator[None]:
    """A Ray that is started meanwhile is for this machine only, and leaves its hands off our signals."""
    before, handle = ray_constants.ENABLE_RAY_CLUSTER, ray_utils.set_sigterm_handler
    ray_constants.ENABLE_RAY_CLUSTER = before and not wanted
    ray_utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER, ray_utils.set_sigterm_handler = before, handle


def places(resources: Mapping[str, float], most: int) -> int:
    """How many workers who need so much find room on the cluster; `most` if they need nothing."""
    wanted = {name: amount for name, amount in resources.items() if amount > 0}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    return sum(
        min((int(node.get(name, 0) / amount + 1e-9) for name, amount in wanted.items()), default=most)
        for node in nodes
    )


def check_room(workers: int, resources: Mapping[str, float]) -> None:
    """Refuse what could only wait for ever."""
    room = places(resources, workers)
    if room < workers:
        each = ", ".join(f"{amount:g} {name}" for name, amount in resources.items() if amount > 0)
        raise InputError(
            f"{workers} workers of {each} each do not fit on a cluster with room for {room}; "
            f"use fewer, or less for each (--worker-resources CPU=0.5)"
        )


def actor_class(resources: Mapping[str, float]) -> Any:
    """Worker as an actor that needs so much, spread over the nodes."""
    custom = dict(resources)
    cpus, gpus = custom.pop("CPU"), custom.pop("GPU", 0.0)
    ask = ray.remote(num_cpus=cpus, num_gpus=gpus, resources=custom, scheduling_strategy="SPREAD")
    # Ray would keep a history of its own of every gradient, which takes a tenth of the time.
    return ask(Worker).options(enable_task_events=False)


@dataclass(frozen=True)
class Lost:
    """In place of what a call would have said: its process or its node is no more."""

    reason: str


class Calls:
    """A function called many times, wherever a cluster has a CPU free; each call says things on its way."""

    def __init__(self, function: Callable[..., Iterator[Any]], address: str | None, room: int) -> None:
        self._joined = join(address, room, CPU)
        ask = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming", scheduling_strategy="SPREAD")
        self._call = ask(function)
        self._names: dict[Any, str] = {}

    def __len__(self) -> int:
        return len(self._names)

    @property
    def room(self) -> int:
        """Calls that can be computed at the same time; nodes come and go."""
        return places(CPU, 0)

    def shared(self, value: Any) -> Any:
        """An argument of many calls: every node fetches it once."""
        return ray.put(value)

    def begin(self, name: str, *arguments: Any) -> None:
        self._names[self._call.remote(*arguments)] = name

    def hear(self) -> tuple[str, Any]:
        """The next thing that one of them says, after its name; None when it has ended."""
        call: Any = ray.wait(list(self._names))[0][0]
        try:
            return self._names[call], ray.get(next(call))
        except StopIteration:
            return self._names.pop(call), None
        except RayError as error:
            return self._names.pop(call), Lost(reason_of(error))

    def close(self) -> None:
        """End those that are still at work, and leave the cluster."""
        if self._names:
            ends = [call.completed() for call in self._names]
            for call in self._names:
                ray.cancel(call)
            ray.wait(ends, num_returns=len(ends), timeout=PATIENCE)
            self._names = {}
        if self._joined:
            ray.shutdown()
            self._joined = False


def reason_of(error: RayError) -> str:
    """In a few words: the error itself if the function raised it, else the first sentence that Ray says."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip() if isinstance(error, RayTaskError) else lines[0].split(". ")[0].rstrip(".")
