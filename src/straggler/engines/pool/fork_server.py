"""A process that has imported what workers need and forks them from itself: each is there in milliseconds."""

import ctypes
import fcntl
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from typing import NoReturn

from straggler.running.allocator import tune_allocator

ALONE = {"OPENBLAS_NUM_THREADS": "1"}  # a process without threads can be forked safely
PRELOADED = (
    "straggler.engines.pool.gradient_pool",
    "straggler.engines.pool.worker_main",
    "straggler.problems.models",
    "cloudpickle",
)
MOST = 200  # file descriptors in one message
PR_SET_PDEATHSIG = 1


class ForkServer:
    """Seen from the process that has children; they die with it, and it with us."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = (  # Ctrl-C is ours to handle, also while it still imports
            "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            f"from straggler.engines.pool.fork_server import tend; tend({theirs.fileno()})"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", command],
            pass_fds=[theirs.fileno()],
            env=os.environ | ALONE | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        theirs.close()
        self.owner = os.getpid()
        self._socket, self._line = ours, Connection(os.dup(ours.fileno()))
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def alive(self) -> bool:
        """Whether it can have children of this very process."""
        return self.owner == os.getpid() and self.process.poll() is None

    def fork(self, main: Callable[..., None], arguments: Sequence[int], fds: Sequence[int]) -> int:
        """Begin a child that calls a function and sees these files under our numbers; the child's number."""
        wanted = [1, 2, *fds]
        with self._lock:
            number = next(self._numbers)
            name = (main.__module__, main.__qualname__)
            self._line.send((number, name, arguments, wanted, sys.path, dict(os.environ)))
            for start in range(0, len(wanted), MOST):
                socket.send_fds(self._socket, [b"."], wanted[start : start + MOST])
        return number

    def end(self, number: int) -> int:
        """Kill a child, unless it is dead; its exit code."""
        try:
            with self._lock:
                self._line.send(number)
                whose, code = self._line.recv()
                while whose != number:  # an answer that an interrupt kept us from reading
                    whose, code = self._line.recv()
                return int(code)
        except (EOFError, OSError):
            return -signal.SIGKILL  # they died together


_fork_server: ForkServer | None = None


def get_fork_server() -> ForkServer:
    """The one of this process, begun when it is needed for the first time."""
    global _fork_server
    if _fork_server is None or not _fork_server.alive():
        _fork_server = ForkServer()
    return _fork_server


def fork_child(
    main: Callable[..., None], arguments: Sequence[int], fds: Sequence[int]
) -> tuple[ForkServer, int]:
    """A child of this process's fork server, or of the next one if it is just dying."""
    parent = get_fork_server()
    try:
        return parent, parent.fork(main, arguments, fds)
    except OSError:
        parent.process.kill()
        parent.process.wait()
        return (parent := get_fork_server()), parent.fork(main, arguments, fds)


# From here on inside it.


def tend(fd: int) -> None:
    """Fork and bury children until nobody is there to ask for it."""
    for module in PRELOADED:
        import_module(module)
    line, files = Connection(fd), socket.socket(fileno=os.dup(fd))
    pids: dict[int, int] = {}
    while True:
        try:
            request = line.recv()
            if isinstance(request, int):
                line.send((request, bury(pids.pop(request))))
                continue
            number, main, arguments, wanted, path, environment = request
            received = received_files(files, len(wanted))
        except (EOFError, OSError):
            return  # and the children with us
        pids[number] = os.fork()
        if pids[number] == 0:
            line.close()
            files.close()
            grow_up(main, arguments, dict(zip(wanted, received, strict=True)), path, environment)
        for one in received:
            os.close(one)


def bury(pid: int) -> int:
    os.kill(pid, signal.SIGKILL)  # until it is waited for, the number is its own
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def received_files(files: socket.socket, count: int) -> list[int]:
    received: list[int] = []
    while len(received) < count:
        data, fds, *_ = socket.recv_fds(files, 1, MOST)
        if not data:
            raise EOFError
        received += fds
    return received


def grow_up(
    main: tuple[str, str],
    arguments: Sequence[int],
    files: dict[int, int],
    path: list[str],
    environment: dict[str, str],
) -> NoReturn:
    """The life of a child, with the files, path and environment of the process that wants it."""
    code = 1
    try:
        die_with(os.getppid())
        renumber(files)
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)
        tune_allocator()
        module, function = main
        getattr(import_module(module), function)(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)  # what the fork server has open is not ours to tidy up


def die_with(parent: int) -> None:
    """Have the system kill us when the fork server dies, even while we are stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def renumber(files: dict[int, int]) -> None:
    """Move open files to their wanted numbers; by way of numbers that are neither's."""
    free = max(*files, *files.values()) + 1
    away = {wanted: fcntl.fcntl(received, fcntl.F_DUPFD, free) for wanted, received in files.items()}
    for received in files.values():
        os.close(received)
    for wanted, there in away.items():
        os.dup2(there, wanted)
        os.close(there)
