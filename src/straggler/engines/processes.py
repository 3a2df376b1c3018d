"""Real time on this machine: a process per worker, models and gradients in shared memory, the server here."""

import os
import time
from contextlib import suppress
from select import select
from selectors import EVENT_READ, DefaultSelector
from struct import Struct
from typing import Any

from straggler.core import Arrival, Gradient
from straggler.engines.child import Child, Inside, Layout
from straggler.engines.real_time import RealTime, Running, WorkerError
from straggler.engines.shared_memory import SharedMemory, pack

__all__ = ["Processes", "work"]

SEATS = 2  # a newer job does not overwrite what an older one is still computed from
JOB = Struct("<qqqd")  # launch, worker, index, injected delay; pickles would cost more than the copies
RESULT = Struct("<qdd?")  # launch, loss, seconds of computing, or False: a traceback follows


class Processes(RealTime):
    """Workers are child processes: a death is an end of file."""

    def _open(self, **where: Any) -> None:
        self._selector = DefaultSelector()
        self._children: dict[int, Child] = {}
        self._memory: list[SharedMemory] = []  # the packed problem, then what it refers to
        x, buffers = self.problem.initial()
        self._layout = Layout(x.numel(), buffers.numel(), x.dtype)
        payload, shared = pack(self.problem)
        self._memory = [SharedMemory(len(payload)), *shared]
        self._memory[0].bytes[: len(payload)] = payload

    def close(self) -> None:
        for child in self._children.values():
            child.close()
        for memory in self._memory:
            memory.close()
        self._selector.close()

    def _begin(self, worker: int) -> None:
        packed, *shared = self._memory
        child = Child("processes:work", packed, [memory.fd for memory in shared], self._layout, SEATS)
        self._selector.register(child.connection, EVENT_READ, worker)
        self._children[worker] = child

    def _end(self, worker: int) -> str:
        child = self._children[worker]
        self._selector.unregister(child.connection)
        child.close()
        return f"exit code {child.process.returncode}"

    def _ready(self, worker: int) -> bool:
        return self._children[worker].ready

    def _spoke(self, worker: int) -> bool:
        return self._children[worker].connection.poll()

    def _send(self, running: Running) -> None:
        job = running.job
        child = self._children[job.worker]
        seat = child.seats[job.launch % SEATS]
        seat.x.copy_(job.x)
        if len(job.buffers):
            seat.buffers.copy_(job.buffers)
        with suppress(OSError):  # it died: `_listen` finds out
            os.write(child.connection.fileno(), JOB.pack(job.launch, job.worker, job.index, running.delay))

    def _hear(self, patience: float | None) -> Arrival | None:
        for key, _ in self._selector.select(patience):
            arrival = self._listen(key.data)
            if arrival is not None:
                return arrival
        return None

    def _listen(self, worker: int) -> Arrival | None:
        """One message of a worker: ready, a result, or its end."""
        child, running = self._children[worker], self._running.get(worker)
        try:
            if not child.ready:
                child.ready = child.connection.recv() is None
                self._is_up(worker)
                return None
            launch, loss, compute, fine = RESULT.unpack(receive(child.connection.fileno(), RESULT.size))
            if not fine:
                error = child.connection.recv()
                raise WorkerError(f"worker {worker} failed in the user's model or data:\n{error}")
        except (EOFError, OSError):
            self._replace(worker, "died")
            return None
        if running is None or running.job.launch != launch:
            return None  # of a job that was abandoned
        seat = child.seats[launch % SEATS]
        buffers = seat.buffers_after.clone() if len(seat.buffers_after) else seat.buffers_after
        return self._arrive(worker, Gradient(seat.gradient.clone(), loss, buffers), compute)


def receive(fd: int, size: int) -> bytes:
    """So many bytes from the other end; what is written at once nearly always comes at once."""
    message = os.read(fd, size)
    while 0 < len(message) < size:
        more = os.read(fd, size - len(message))
        message = message + more if more else b""
    if not message:
        raise EOFError
    return message


def work(connection_fd: int, memory_fd: int) -> None:
    """A worker: compute the newest job, wait its delay unless a newer one comes, deliver."""
    with suppress(EOFError, OSError), Inside(connection_fd, memory_fd) as inside:
        while True:
            launch, worker, index, delay = JOB.unpack(receive(connection_fd, JOB.size))
            if newer(connection_fd, 0.0):
                continue
            began = time.perf_counter()
            outcome = inside.answer(launch % SEATS, ("gradient", worker, index))
            compute = time.perf_counter() - began
            if newer(connection_fd, delay):
                continue
            if isinstance(outcome, float):
                os.write(connection_fd, RESULT.pack(launch, outcome, compute, True))
            else:
                os.write(connection_fd, RESULT.pack(launch, 0.0, compute, False))
                inside.connection.send(outcome)


def newer(fd: int, seconds: float) -> bool:
    """Whether another job comes within so many seconds."""
    return bool(select([fd], [], [], seconds)[0])
