"""A worker of the processes engine, from inside: the newest job, its delay, a result."""

import os
import time
from contextlib import suppress
from select import select
from struct import Struct

from straggler.engines.pool.child_process import Inside

SEATS = 2  # a newer job does not overwrite what an older one is still computed from
JOB = Struct("<qqqd")  # launch, worker, index, injected delay; pickles would cost more than the copies
QUEUE = 64  # jobs that are read at once: only the newest counts
RESULT = Struct("<qdd?")  # launch, loss, seconds of computing, or False: a traceback follows


def receive(fd: int, size: int, most: int = 1) -> bytes:
    """The last of the messages of so many bytes that are there; it waits for one, and for its end."""
    messages = os.read(fd, size * most)
    while len(messages) % size:
        more = os.read(fd, size - len(messages) % size)
        messages = messages + more if more else b""
    if not messages:
        raise EOFError
    return messages[-size:]


def work(connection_fd: int, memory_fd: int) -> None:
    """A worker: compute the newest job, wait its delay unless a newer one comes, deliver."""
    with suppress(EOFError, OSError), Inside(connection_fd, memory_fd) as inside:
        while True:
            launch, worker, index, delay = JOB.unpack(receive(connection_fd, JOB.size, QUEUE))
            began = time.perf_counter()
            outcome = inside.answer(launch % SEATS, ("gradient", worker, index))
            compute = time.perf_counter() - began
            if delay > 0:
                wait_for_newer(connection_fd, delay)
            # Also what a newer job has made out of date: it says that this worker is alive.
            if isinstance(outcome, float):
                os.write(connection_fd, RESULT.pack(launch, outcome, compute, True))
            else:
                os.write(connection_fd, RESULT.pack(launch, 0.0, compute, False))
                inside.connection.send(outcome)


def wait_for_newer(fd: int, seconds: float) -> None:
    """Until another job comes, or so many seconds have passed."""
    select([fd], [], [], seconds)
