"""Real time on this machine: a process per worker, models and gradients in shared memory, the server here."""

import os
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector

from straggler.core import Arrival, Gradient
from straggler.engines.pool.child_process import ChildProcess, Layout
from straggler.engines.pool.shared_memory import SharedMemory, pack
from straggler.engines.pool.worker_main import JOB, RESULT, SEATS, receive, work
from straggler.engines.real_time import RealTimeEngine, Running, WorkerError


class ProcessEngine(RealTimeEngine):
    """Workers are child processes: a death is an end of file."""

    def _open(self) -> None:
        self._selector = DefaultSelector()
        self._children: dict[int, ChildProcess] = {}
        self._unsent: set[int] = set()  # workers that could not be sent their newest job
        self._memory: list[SharedMemory] = []  # the packed problem, then what it refers to
        x, buffers = self.problem.initial_model()
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
        child = ChildProcess(work, packed, [memory.fd for memory in shared], self._layout, SEATS)
        self._selector.register(child.connection, EVENT_READ, worker)
        self._children[worker] = child
        self._unsent.discard(worker)

    def _end(self, worker: int) -> str:
        child = self._children[worker]
        self._selector.unregister(child.connection)
        child.close()
        return f"exit code {child.exit_code}"

    def _ready(self, worker: int) -> bool:
        return self._children[worker].ready

    def _spoke(self, worker: int) -> bool:
        return self._children[worker].connection.poll()

    def _send(self, running: Running) -> None:
        job = running.job
        child = self._children[job.worker]
        if not child.listens:  # it has not read hundreds of jobs; `_listen` sends the newest when it speaks
            self._unsent.add(job.worker)
            return
        self._unsent.discard(job.worker)
        seat = child.seats[job.launch % SEATS]
        seat.x.copy_(job.x)
        if self._layout.buffers:
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
                child.pid = child.connection.recv()
                self._is_up(worker)
                return None
            launch, loss, compute, fine = RESULT.unpack(receive(child.connection.fileno(), RESULT.size))
            if not fine:
                error = child.connection.recv()
                raise WorkerError(f"worker {worker} failed in the user's model or data:\n{error}")
        except (EOFError, OSError):
            self._replace(worker, "died")
            return None
        if running is None:
            return None
        if running.job.launch != launch:  # of a job that was abandoned, but a sign of life
            running.since = self.now
            if worker in self._unsent:
                self._send(running)
            return None
        seat = child.seats[launch % SEATS]
        buffers = seat.buffers_after.clone() if self._layout.buffers else seat.buffers_after
        return self._arrive(worker, Gradient(seat.gradient, loss, buffers), compute, lent=True)
