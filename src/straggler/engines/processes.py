"""Real time on this machine: a process per worker, with models and gradients in shared memory."""

import os
import select
import time
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from struct import Struct

from straggler.core import Arrival
from straggler.core.program import fetch_memory
from straggler.engines.pool.child_process import ChildProcess, ChildRuntime, SlotLayout
from straggler.engines.pool.shared_memory import SharedMemory, pack_shared
from straggler.engines.real_time import RealTimeEngine, RunningJob, WorkerError

SLOTS = 2  # so that a newer job does not overwrite the model of the job being computed
# Messages are structs: pickling would take longer than copying a small model.
JOB = Struct("<qqqd?")  # launch, worker, index, seconds of injected delay, whether there is a memory
RESULT = Struct("<qdd?")  # launch, loss, seconds of compute, success; if False a traceback follows
MAX_QUEUED_JOBS = 64  # read at once; only the newest counts


class ProcessEngine(RealTimeEngine):
    """Engine whose workers are child processes; the death of a process closes its connection."""

    def _open(self) -> None:
        self._selector = DefaultSelector()
        self._children: dict[int, ChildProcess] = {}
        self._unsent: set[int] = set()  # workers whose newest job is not sent yet
        self._packed: list[SharedMemory] = []  # the program
        self._layout = SlotLayout.of(self.program)
        self._packed = pack_shared(self.program)

    def close(self) -> None:
        for child in self._children.values():
            child.close()
        for memory in self._packed:
            memory.close()
        self._selector.close()

    def _start_worker(self, worker: int) -> None:
        child = ChildProcess(run_worker, self._packed, self._layout, SLOTS, self.program.place(worker))
        self._selector.register(child.connection, EVENT_READ, worker)
        self._children[worker] = child
        self._unsent.discard(worker)

    def _kill_worker(self, worker: int) -> str:
        child = self._children[worker]
        self._selector.unregister(child.connection)
        child.close()
        code = child.exit_code
        return f"was killed (signal {-code})" if code < 0 else f"exited with code {code}"

    def _is_ready(self, worker: int) -> bool:
        return self._children[worker].is_ready

    def _has_unread_message(self, worker: int) -> bool:
        return self._children[worker].connection.poll()

    def _send(self, running: RunningJob) -> None:
        job = running.job
        child = self._children[job.worker]
        if not child.is_writable:  # hundreds of jobs are unread; `_receive_from` sends the newest later
            self._unsent.add(job.worker)
            return
        self._unsent.discard(job.worker)
        memory = fetch_memory(job.memory)
        child.slots[job.launch % SLOTS].write_inputs(job.x, job.buffers, memory)
        message = JOB.pack(job.launch, job.worker, job.index, running.delay, memory is not None)
        with suppress(OSError):  # the process died: `_receive_from` notices
            os.write(child.connection.fileno(), message)

    def _receive(self, timeout: float) -> Arrival | None:
        for key, _ in self._selector.select(timeout):
            arrival = self._receive_from(key.data)
            if arrival is not None:
                return arrival
        return None

    def _receive_from(self, worker: int) -> Arrival | None:
        """Process one message of a worker: it is ready, it has a result, or its connection is closed."""
        child, running = self._children[worker], self._running.get(worker)
        try:
            if not child.is_ready:
                child.pid = child.connection.recv()
                self._mark_ready(worker)
                return None
            launch, loss, compute, success = RESULT.unpack(read_last(child.connection.fileno(), RESULT.size))
            if not success:
                error = child.connection.recv()
                raise WorkerError(f"Worker {worker} failed in the custom model or data:\n{error}")
        except (EOFError, OSError):
            self._restart(worker)
            return None
        if running is None:
            return None
        if running.job.launch != launch:  # the result of an abandoned job shows that the worker is alive
            running.since = self.now
            if worker in self._unsent:
                self._send(running)
            return None
        message = child.slots[launch % SLOTS].read_message(self.program, worker, running.job.index, loss)
        return self._make_arrival(worker, message, compute, lent=True)


def read_last(fd: int, size: int, count: int = 1) -> bytes:
    """Read up to `count` messages of `size` bytes and return the last; wait for one if there is none."""
    messages = os.read(fd, size * count)
    while len(messages) % size:
        more = os.read(fd, size - len(messages) % size)
        messages = messages + more if more else b""
    if not messages:
        raise EOFError
    return messages[-size:]


def run_worker(connection_fd: int, memory_fd: int) -> None:
    """Run a worker process: compute the newest job, wait for its delay unless a newer job comes, deliver."""
    with suppress(EOFError, OSError), ChildRuntime(connection_fd, memory_fd) as runtime:
        while True:
            newest = read_last(connection_fd, JOB.size, MAX_QUEUED_JOBS)
            launch, worker, index, delay, has_memory = JOB.unpack(newest)
            began = time.perf_counter()
            outcome = runtime.compute(launch % SLOTS, ("message", worker, index), has_memory)
            compute = time.perf_counter() - began
            if delay > 0:
                select.select([connection_fd], [], [], delay)
            # Results of outdated jobs are sent too: they show that this worker is alive.
            if isinstance(outcome, float):
                os.write(connection_fd, RESULT.pack(launch, outcome, compute, True))
            else:
                os.write(connection_fd, RESULT.pack(launch, 0.0, compute, False))
                runtime.connection.send(outcome)
