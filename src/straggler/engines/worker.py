"""A worker of the processes engine, from inside: the newest job, its delay, a result."""

import os
import time
from contextlib import suppress
from select import select
from struct import Struct

from straggler.engines.child import Inside

__all__ = ["JOB", "RESULT", "SEATS", "receive", "work"]

SEATS = 2  # a newer job does not overwrite what an older one is still computed from
JOB = Struct("<qqqd")  # launch, worker, index, injected delay; pickles would cost more than the copies
RESULT = Struct("<qdd?")  # launch, loss, seconds of computing, or False: a traceback follows


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
