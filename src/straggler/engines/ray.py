"""Real time on a Ray cluster: an actor per worker on any node with room; the server runs in this process."""

import math
import os
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import ray
import torch
from ray.exceptions import RayError
from torch import Tensor

from straggler.core import Arrival, Gradient, Problem
from straggler.engines import EngineSetup
from straggler.engines.pool.shared_memory import Bytes, pack_buffers, unpack_buffers
from straggler.engines.ray_cluster import ONE_CPU, RayConnection, check_room
from straggler.engines.real_time import RealTimeEngine, RunningJob, WorkerError
from straggler.running.allocator import tune_allocator

# Ray sends arguments below 100 kB with the call, and larger ones through its object store. Up to half a
# megabyte, a vector in small pieces arrives twice as fast as through the store; larger vectors do not.
PIECE_BYTES, MAX_BYTES_IN_PIECES = 90_000, 500_000


class RayWorker:
    """The actor of a worker. The actors of a node share the memory of the problem's arrays."""

    def __init__(self, packed: tuple[bytes, list[Bytes]], path: list[str]) -> None:
        torch.set_num_threads(1)
        tune_allocator()
        sys.path.extend(folder for folder in path if folder not in sys.path)  # custom modules
        self.packed = packed

    def load(self) -> tuple[str | None, int, str]:
        """Unpack the problem; return the traceback if that failed, the process id and the node."""
        error = None
        try:
            self.problem: Problem = unpack_buffers(*self.packed)
            self.dtype = self.problem.initial_model()[0].dtype
        except Exception:
            error = traceback.format_exc()
        return error, os.getpid(), str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    def gradient(self, worker: int, index: int, buffers: bytes, *model: Any) -> list[Any]:
        """Return (loss, seconds, buffers) or a traceback, then the gradient in the form of the model."""
        began = time.perf_counter()
        try:
            x = join_pieces(model, self.dtype)
            gradient = self.problem.gradient(x, join_pieces([buffers], self.dtype), worker, index)
            outcome = (gradient.loss, time.perf_counter() - began, gradient.buffers.numpy().tobytes())
        except Exception:
            return [traceback.format_exc(), *[b""] * len(model)]
        in_pieces = isinstance(model[0], bytes)
        return [outcome, *(split_vector(gradient.vector) if in_pieces else [gradient.vector.numpy()])]


def split_vector(vector: Tensor) -> list[bytes]:
    """Split a vector into pieces that are small enough to travel with a call."""
    whole = vector.numpy().data.cast("B")
    return [bytes(whole[start : start + PIECE_BYTES]) for start in range(0, len(whole), PIECE_BYTES)]


def join_pieces(pieces: Sequence[Any], dtype: torch.dtype) -> Tensor:
    """Join a vector from its pieces, or wrap an array of the object store, which must not be modified."""
    if not isinstance(pieces[0], bytes):
        with warnings.catch_warnings(action="ignore"):  # torch warns about read-only arrays
            return torch.from_numpy(pieces[0])
    whole = bytearray().join(pieces)
    return torch.frombuffer(whole, dtype=dtype) if whole else torch.empty(0, dtype=dtype)


@dataclass
class ActorSlot:
    """The actor of a worker. It gets one call at a time, so that it never computes an outdated job."""

    actor: Any
    answers: list[Any]  # references to the answers of the current call; empty if the actor is idle
    launch: int = -1  # launch number of the job that the actor computes
    is_ready: bool = False
    pid: int = 0
    node: str = ""


class RayEngine(RealTimeEngine):
    """Engine whose workers are Ray actors. If an actor or its node dies, `ray.get` raises an exception.

    The server delays a finished gradient by its injected delay. Meanwhile the worker is idle, so a newer job
    starts at once.
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
        **options: Any,
    ) -> None:
        self._address, self._resources = address, ONE_CPU | dict(resources or {})
        super().__init__(*arguments, **options)

    def _open(self) -> None:
        x, _ = self.problem.initial_model()
        self._dtype, self._uses_store = x.dtype, x.nbytes > MAX_BYTES_IN_PIECES
        self._pieces = 1 if self._uses_store else -(-x.nbytes // PIECE_BYTES)
        self._slots: dict[int, ActorSlot] = {}
        # By worker: time of arrival, gradient, compute time.
        self._delayed: dict[int, tuple[float, Gradient, float]] = {}
        self._models: list[tuple[Tensor, Any]] = []  # models in the object store
        self._connection: RayConnection | None = None
        self._connection = RayConnection(self._address, self.workers, self._resources)
        check_room(self.min_workers, self._resources)
        self._actor_class = make_actor_class(self._resources)
        self._problem = ray.put(pack_buffers(self.problem))

    def close(self) -> None:
        for slot in self._slots.values():
            ray.kill(slot.actor)
        if self._connection is not None:
            self._connection.close()

    def _start_worker(self, worker: int) -> None:
        actor = self._actor_class.remote(self._problem, list(filter(None, sys.path)))
        self._slots[worker] = ActorSlot(actor, [actor.load.remote()])

    def _kill_worker(self, worker: int) -> str:
        slot = self._slots[worker]
        ray.kill(slot.actor)
        return f"died (process {slot.pid} on {slot.node})" if slot.is_ready else "died before it was ready"

    def _is_ready(self, worker: int) -> bool:
        return self._slots[worker].is_ready

    def _has_unread_message(self, worker: int) -> bool:
        answers = self._slots[worker].answers
        return bool(answers and ray.wait(answers[:1], timeout=0)[0])

    def _send(self, running: RunningJob) -> None:
        job, slot = running.job, self._slots[running.job.worker]
        self._delayed.pop(job.worker, None)
        if slot.answers:
            return  # `_receive_from` sends the job after the answer to the previous call
        running.since, slot.launch = self.now, job.launch
        call = slot.actor.gradient.options(num_returns=1 + self._pieces)
        buffers = job.buffers.numpy().tobytes()
        slot.answers = call.remote(job.worker, job.index, buffers, *self._pack_model(job.x))

    def _pack_model(self, x: Tensor) -> list[Any]:
        """Return a model in pieces, or a reference to the object store, which holds every model once."""
        if not self._uses_store:
            return split_vector(x)
        needed = {id(x), *(id(running.job.x) for running in self._running.values())}
        self._models = [(model, reference) for model, reference in self._models if id(model) in needed]
        for model, reference in self._models:
            if model is x:
                return [reference]
        self._models.append((x, ray.put(x.numpy())))
        return [self._models[-1][1]]

    def _receive(self, timeout: float | None) -> Arrival | None:
        due = min((time for time, *_ in self._delayed.values()), default=math.inf) - self.now
        wait = max(0.0, min(due, math.inf if timeout is None else timeout))
        called = {slot.answers[0]: worker for worker, slot in self._slots.items() if slot.answers}
        if called:
            answered, _ = ray.wait(list(called), timeout=None if math.isinf(wait) else wait)
            for reference in answered:
                self._receive_from(called[reference])
        else:
            time.sleep(wait)
        return self._pop_due_arrival()

    def _pop_due_arrival(self) -> Arrival | None:
        """Return the first arrival whose injected delay is over."""
        worker = min(self._delayed, key=lambda worker: self._delayed[worker][0], default=None)
        if worker is None or self._delayed[worker][0] > self.now:
            return None
        _, gradient, compute = self._delayed.pop(worker)
        return self._make_arrival(worker, gradient, compute)

    def _receive_from(self, worker: int) -> None:
        """Process an answer of a worker: it is ready, it has a result, or it died."""
        slot, running = self._slots[worker], self._running.get(worker)
        try:
            outcome, *pieces = ray.get(slot.answers)
        except RayError:
            self._restart(worker)
            return
        slot.answers = []
        if not slot.is_ready:
            outcome, slot.pid, slot.node = outcome
            slot.is_ready = True
            self._mark_ready(worker)
        if isinstance(outcome, str):
            raise WorkerError(f"Worker {worker} failed in the custom model or data:\n{outcome}")
        if running is None:
            return
        if outcome is None or slot.launch != running.job.launch:
            self._send(running)
        else:
            self._delay_gradient(worker, outcome, pieces)

    def _delay_gradient(self, worker: int, outcome: tuple[float, float, bytes], pieces: list[Any]) -> None:
        """Keep a gradient until its injected delay is over."""
        running, (loss, compute, buffers) = self._running[worker], outcome
        gradient = Gradient(join_pieces(pieces, self._dtype), loss, join_pieces([buffers], self._dtype))
        self._delayed[worker] = (self.now + running.delay, gradient, compute)
        running.since = math.inf  # the worker is idle, so it cannot hang


def make_actor_class(resources: Mapping[str, float]) -> Any:
    """Return RayWorker as an actor class that reserves these resources, spread over the nodes."""
    custom = dict(resources)
    cpus, gpus = custom.pop("CPU"), custom.pop("GPU", 0.0)
    remote = ray.remote(num_cpus=cpus, num_gpus=gpus, resources=custom, scheduling_strategy="SPREAD")
    # Ray's record of every call would take a tenth of the time.
    return remote(RayWorker).options(enable_task_events=False)
