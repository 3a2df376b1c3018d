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
from ray.exceptions import GetTimeoutError, RayError
from torch import Tensor

from straggler.core import Arrival, Message, WorkerProgram
from straggler.core.devices import Placement
from straggler.core.messages import LostMemoryError, Memory
from straggler.core.program import fetch_memory
from straggler.engines import EngineSetup
from straggler.engines.pool.shared_memory import Bytes, pack_buffers, unpack_buffers
from straggler.engines.ray_cluster import ONE_CPU, RayConnection, check_room
from straggler.engines.real_time import RealTimeEngine, RunningJob, WorkerError
from straggler.running.allocator import tune_allocator

# Ray sends arguments below 100 kB with the call, and larger ones through its object store. Up to half a
# megabyte, a vector in small pieces arrives twice as fast as through the store; larger vectors do not.
PIECE_BYTES, MAX_BYTES_IN_PIECES = 90_000, 500_000
FETCH_SECONDS = 10.0  # that a replacement waits to find out whether its memory still exists


class RayWorker:
    """The actor of a worker. The actors of a node share the arrays of the problem."""

    def __init__(self, packed: tuple[bytes, list[Bytes]], path: list[str], placement: Placement) -> None:
        tune_allocator()
        sys.path.extend(folder for folder in path if folder not in sys.path)  # custom modules
        self.packed, self.placement = packed, placement

    def load(self) -> tuple[str | None, int, str]:
        """Unpack the worker's program; return the traceback if that failed, the process id and the node."""
        error = None
        try:
            self.program: WorkerProgram = unpack_buffers(*self.packed)
            self.device = self.placement.prepare()
            self.program.move_to(self.device)
        except Exception:
            error = traceback.format_exc()
        return error, os.getpid(), str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    def compute(
        self, worker: int, index: int, buffers: bytes, memory: Any, pieces: int, *model: Any
    ) -> list[Any]:
        """Return (loss, seconds, buffers) or a traceback, then the encoded message in `pieces`.

        A worker that remembers something returns its memory last: it stays on this node, and comes back with
        the next job.
        """
        began, program = time.perf_counter(), self.program
        try:
            x = join_pieces(model).view(program.model_dtype).to(self.device, program.dtype)
            before = None if memory is None else wrap_array(memory).to(self.device)
            here = join_pieces([buffers]).view(program.dtype).to(self.device)
            message = program.encode(x, here, before, worker, index)
            buffers, encoded = message.buffers.cpu().numpy().tobytes(), message.encoded.cpu()
            outcome = (message.loss, time.perf_counter() - began, buffers)
        except Exception:
            return [traceback.format_exc(), *[b""] * (pieces + bool(self.program.memory))]
        kept = [] if message.memory is None else [message.memory.cpu().numpy()]
        return [outcome, *split_bytes(encoded), *kept]


def split_bytes(whole: Tensor) -> list[Any]:
    """Return bytes in pieces that are small enough to travel with a call, or as one array for the store."""
    if whole.numel() > MAX_BYTES_IN_PIECES:
        return [whole.numpy()]
    data = whole.numpy().data
    return [bytes(data[start : start + PIECE_BYTES]) for start in range(0, max(len(data), 1), PIECE_BYTES)]


def count_pieces(size: int) -> int:
    """Return the number of pieces in which `split_bytes` sends this many bytes."""
    return 1 if size > MAX_BYTES_IN_PIECES else max(1, -(-size // PIECE_BYTES))


def join_pieces(pieces: Sequence[Any]) -> Tensor:
    """Join bytes from their pieces, or wrap an array of the object store, which must not be modified."""
    if not isinstance(pieces[0], bytes):
        return wrap_array(pieces[0])
    whole = bytearray().join(pieces)
    return torch.frombuffer(whole, dtype=torch.uint8) if whole else torch.empty(0, dtype=torch.uint8)


def wrap_array(array: Any) -> Tensor:
    """Return a tensor on an array of the object store, which must not be modified."""
    with warnings.catch_warnings(action="ignore"):  # torch warns about read-only arrays
        return torch.from_numpy(array)


@dataclass(frozen=True)
class NodeMemory:
    """A worker's memory in the object store of its node."""

    reference: Any

    def fetch(self) -> Tensor:
        """Copy the memory to this process; raise LostMemoryError if its node died."""
        try:
            return wrap_array(ray.get(self.reference)).clone()
        except RayError as error:
            raise LostMemoryError(f"The node that held a worker's memory is lost ({error}).") from error

    def is_lost(self) -> bool:
        """Return whether the memory is gone, because its node died."""
        try:
            ray.get(self.reference, timeout=FETCH_SECONDS)
        except GetTimeoutError:  # a slow connection, or Ray has not noticed yet that the node died
            return False
        except RayError:
            return True
        return False


@dataclass
class ActorSlot:
    """The actor of a worker. It gets one call at a time, so that it never computes an outdated job."""

    actor: Any
    call: Any  # its method `compute`, with the number of objects that it returns
    answers: list[Any]  # references to what the current call returns; empty if the actor is idle
    memory: Any = None  # reference to the memory that the current call returns
    launch: int = -1  # launch number of the job that the actor computes
    is_ready: bool = False
    is_held_back: bool = False  # whether a job waits until the actor has answered
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
        where |= {"seconds": setup.seconds, "should_stop": setup.should_stop, "report": setup.report}
        shared = (setup.compute.program, setup.durations, setup.workers, setup.min_workers)
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
        self._uses_store = self.program.size * self.program.model_dtype.itemsize > MAX_BYTES_IN_PIECES
        self._pieces = count_pieces(self.program.encoded_bytes)
        self._slots: dict[int, ActorSlot] = {}
        self._outdated = 0  # messages of cancelled jobs that came since the last arrival
        self._unsent = 0  # jobs that were cancelled while they were held back, since then
        # By worker: time of arrival, message, compute time.
        self._delayed: dict[int, tuple[float, Message, float]] = {}
        self._models: list[tuple[Tensor, Any]] = []  # models in the object store
        self._connection: RayConnection | None = None
        self._connection = RayConnection(self._address, self.workers, self._resources)
        check_room(self.min_workers, self._resources)
        self._actor_class = make_actor_class(self._resources)
        self._packed = ray.put(pack_buffers(self.program))

    def close(self) -> None:
        if self._connection is None:
            return
        if self._connection.watch.is_reachable():  # otherwise Ray would wait for it; the nodes end the actors
            for slot in self._slots.values():
                ray.kill(slot.actor)
        self._connection.close()

    def _start_worker(self, worker: int) -> None:
        path = list(filter(None, sys.path))
        actor = self._actor_class.remote(self._packed, path, self.program.place(worker))
        call = actor.compute.options(num_returns=1 + self._pieces + bool(self.program.memory))
        self._slots[worker] = ActorSlot(actor, call, [actor.load.remote()])

    def _kill_worker(self, worker: int) -> str:
        slot = self._slots[worker]
        ray.kill(slot.actor)
        return f"died (process {slot.pid} on {slot.node})" if slot.is_ready else "died before it was ready"

    def _is_ready(self, worker: int) -> bool:
        return self._slots[worker].is_ready

    def _has_unread_message(self, worker: int) -> bool:
        answers = self._slots[worker].answers
        return bool(answers and ray.wait(answers[-1:], timeout=0)[0])

    def _send(self, running: RunningJob) -> None:
        job, slot = running.job, self._slots[running.job.worker]
        if self._delayed.pop(job.worker, None) is not None:
            self._outdated += 1
        if slot.answers and slot.launch == job.launch:  # issued again: it is computed already
            return
        if slot.answers:  # `_receive_from` sends the job after the answer to the previous call
            self._unsent += slot.is_held_back
            slot.is_held_back = True
            if self.program.encoded_bytes > MAX_BYTES_IN_PIECES:
                del slot.answers[1:]  # leave the outdated message in the object store of its node
            return
        slot.is_held_back = False
        running.since, slot.launch = self.now, job.launch
        before, model = pack_memory(job.memory), self._pack_model(job.x)
        buffers = job.buffers.numpy().tobytes()
        slot.answers = slot.call.remote(job.worker, job.index, buffers, before, self._pieces, *model)
        slot.memory = slot.answers.pop() if self.program.memory else None

    def _pack_model(self, x: Tensor) -> list[Any]:
        """Return a model in pieces, or a reference to the object store, which holds every model once."""
        if not self._uses_store:
            return split_bytes(self._encode_model(x))
        needed = {id(x), *(id(running.job.x) for running in self._running.values())}
        self._models = [(model, reference) for model, reference in self._models if id(model) in needed]
        for model, reference in self._models:
            if model is x:
                return [reference]
        self._models.append((x, ray.put(self._encode_model(x).numpy())))
        return [self._models[-1][1]]

    def _encode_model(self, x: Tensor) -> Tensor:
        """Return the bytes of a model as they travel."""
        return x.to(self.program.model_dtype).view(torch.uint8)

    def _restart(self, worker: int, reason: str = "") -> None:
        """Restart a worker. If its memory died with its node, it leaves and joins again without one."""
        assert self._connection is not None
        running = self._running.get(worker)
        if reason and not self._slots[worker].is_ready and not self._connection.watch.is_reachable():
            if running is not None:  # no actor can start or be killed now
                running.since = self.now
            return
        memory = None if running is None else running.job.memory
        lost = isinstance(memory, NodeMemory) and memory.is_lost()
        if lost:
            self._running.pop(worker)
        super()._restart(worker, reason)
        if lost and worker not in self._absent:
            self.report_failure(self.now, worker, f"Worker {worker} lost its memory with its node")
            self._changes.extend([(worker, False), (worker, True)])

    def _receive(self, timeout: float) -> Arrival | None:
        due = min((time for time, *_ in self._delayed.values()), default=math.inf) - self.now
        wait = max(0.0, min(due, timeout))
        # The last object is the vector. Ray fetches a large one while the driver serves other workers.
        called = {slot.answers[-1]: worker for worker, slot in self._slots.items() if slot.answers}
        if called:
            assert self._connection is not None
            for reference in self._connection.wait(list(called), wait):
                self._receive_from(called[reference])
        else:
            time.sleep(wait)
        return self._pop_due_arrival()

    def _pop_due_arrival(self) -> Arrival | None:
        """Return the first arrival whose injected delay is over."""
        worker = min(self._delayed, key=lambda worker: self._delayed[worker][0], default=None)
        if worker is None or self._delayed[worker][0] > self.now:
            return None
        _, message, compute = self._delayed.pop(worker)
        arrival = self._make_arrival(worker, message, compute)
        arrival.outdated, arrival.unsent = self._outdated, self._unsent
        self._outdated = self._unsent = 0
        return arrival

    def _receive_from(self, worker: int) -> None:
        """Process an answer of a worker: it is ready, it has a result, or it died."""
        slot, running = self._slots[worker], self._running.get(worker)
        is_outdated = slot.is_ready and (running is None or slot.launch != running.job.launch)
        try:
            outcome, *pieces = ray.get(slot.answers)
        except RayError:
            self._restart(worker)
            return
        slot.answers = []
        self._outdated += is_outdated and bool(pieces)
        if not slot.is_ready:
            outcome, slot.pid, slot.node = outcome
            slot.is_ready = True
            self._mark_ready(worker)
        if isinstance(outcome, str):
            raise WorkerError(f"Worker {worker} failed in the custom model or data:\n{outcome}")
        if running is None:
            return
        if outcome is None or is_outdated:
            self._send(running)
        else:
            self._delay_message(worker, outcome, pieces, NodeMemory(slot.memory) if slot.memory else None)

    def _delay_message(
        self, worker: int, outcome: tuple[float, float, bytes], pieces: list[Any], memory: Memory | None
    ) -> None:
        """Keep a message until its injected delay is over."""
        running, (loss, compute, buffers) = self._running[worker], outcome
        vector = self.program.decode(join_pieces(pieces), worker, running.job.index)
        message = Message(vector, loss, join_pieces([buffers]).view(self.program.dtype), memory)
        self._delayed[worker] = (self.now + running.delay, message, compute)
        running.since = math.inf  # the worker is idle, so it cannot hang


def pack_memory(memory: Memory | None) -> Any:
    """Return a worker's memory as an argument of its next call."""
    if isinstance(memory, NodeMemory):
        return memory.reference
    here = fetch_memory(memory)
    return None if here is None else here.numpy()


def make_actor_class(resources: Mapping[str, float]) -> Any:
    """Return RayWorker as an actor class that reserves these resources, spread over the nodes."""
    custom = dict(resources)
    cpus, gpus = custom.pop("CPU"), custom.pop("GPU", 0.0)
    remote = ray.remote(num_cpus=cpus, num_gpus=gpus, resources=custom, scheduling_strategy="SPREAD")
    # Ray's record of every call would take a tenth of the time.
    return remote(RayWorker).options(enable_task_events=False)
