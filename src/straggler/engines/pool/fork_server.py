"""Fork server: a process that has imported torch and forks workers from itself, in milliseconds each."""

import ctypes
import errno
import itertools
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from typing import NoReturn

from straggler.config.registry import InputError
from straggler.running.allocator import tune_allocator

SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1"}  # a process without threads can be forked safely
PRELOADED = (
    "straggler.engines.pool.gradient_pool",
    "straggler.engines.processes",
    "straggler.problems.models",
    "cloudpickle",
)
MAX_FILES = 200  # file descriptors in one message
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
ANSWER_SECONDS = 30.0  # without an answer, the fork server counts as hung


class ForkServer:
    """The parent's side of the fork server, which dies with this process; its children die with it."""

    def __init__(self) -> None:
        if not hasattr(os, "fork"):
            raise InputError(
                "Worker processes require Linux or macOS. On this system use engine='simulator' with jobs=1."
            )
        ours, theirs = socket.socketpair()
        limit_waiting(ours)
        # The kernel would end the server with the thread that started it; the main thread ends last.
        owner = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        command = (  # this process handles stop signals, even while the fork server still imports
            "from signal import SIG_IGN, SIGHUP, SIGINT, signal\n"
            "signal(SIGINT, SIG_IGN), signal(SIGHUP, SIG_IGN)\n"
            f"from straggler.engines.pool.fork_server import serve_forks; "
            f"serve_forks({theirs.fileno()}, {owner})"
        )
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, "-c", command],
            pass_fds=[theirs.fileno()],
            env=os.environ | SINGLE_THREADED | path,
        )
        theirs.close()
        self.owner = os.getpid()
        self._socket, self._connection = ours, Connection(os.dup(ours.fileno()))
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def is_usable(self) -> bool:
        """Return whether the server is alive and was started by this process, not by its parent."""
        return self.owner == os.getpid() and self.process.poll() is None

    def fork(self, main: Callable[..., None], arguments: Sequence[int], fds: Sequence[int]) -> int:
        """Fork a child that calls a function and has these files open under the same numbers.

        Return the child's number.
        """
        files = [1, 2, *fds]
        with self._lock:
            number = next(self._numbers)
            name = (main.__module__, main.__qualname__)
            self._connection.send((number, name, arguments, files, sys.path, dict(os.environ)))
            for start in range(0, len(files), MAX_FILES):
                socket.send_fds(self._socket, [b"."], files[start : start + MAX_FILES])
        return number

    def kill_child(self, number: int) -> int:
        """Kill a child, unless it has ended, and return its exit code."""
        try:
            with self._lock:
                self._connection.send(number)
                answered, code = self._receive_answer()
                while answered != number:  # skip an answer that an interrupt prevented us from reading
                    answered, code = self._receive_answer()
                return code
        except (EOFError, OSError):
            return -signal.SIGKILL  # it died with the fork server

    def kill(self) -> None:
        """Kill the server; its children die with it."""
        self.process.kill()
        self.process.wait()

    def _receive_answer(self) -> tuple[int, int]:
        """Return the next answer; a server that does not answer is killed, and its children die with it."""
        answered = False
        try:
            answered = self._connection.poll(ANSWER_SECONDS)
        finally:
            if not answered:  # or Ctrl-C: nothing waits for this server again
                self.kill()
        number, code = self._connection.recv()
        return int(number), int(code)


_fork_server: ForkServer | None = None


def get_fork_server() -> ForkServer:
    """Return the fork server of this process, started on first use."""
    global _fork_server
    if _fork_server is None or not _fork_server.is_usable():
        _fork_server = ForkServer()
    return _fork_server


def fork_child(
    main: Callable[..., None], arguments: Sequence[int], fds: Sequence[int]
) -> tuple[ForkServer, int]:
    """Fork a child from the fork server, restarting the server if it has died."""
    parent = get_fork_server()
    try:
        return parent, parent.fork(main, arguments, fds)
    except OSError:
        parent.kill()
        return (parent := get_fork_server()), parent.fork(main, arguments, fds)


def limit_waiting(line: socket.socket) -> None:
    """Let sending and receiving fail if the process at the other end stops in the middle of a message."""
    seconds = struct.pack("@ll", int(ANSWER_SECONDS), int(ANSWER_SECONDS % 1 * 1e6))
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        line.setsockopt(socket.SOL_SOCKET, option, seconds)


# The functions below run in the fork server and in its children.


def serve_forks(fd: int, owner: int = 0) -> None:
    """Fork and kill children on request, until the parent closes its end of the connection.

    If the owner is given, this process dies with it, even while it is stopped.
    """
    if owner:
        die_with_parent(owner)
    for module in PRELOADED:
        import_module(module)
    connection, files = Connection(fd), socket.socket(fileno=os.dup(fd))
    pids: dict[int, int] = {}
    while True:
        try:
            request = connection.recv()
            if isinstance(request, int):
                connection.send((request, kill_and_reap(pids.pop(request))))
                continue
            number, main, arguments, wanted, path, environment = request
            received = receive_files(files, len(wanted))
        except (EOFError, OSError):
            return  # the children die with this process
        pids[number] = os.fork()
        if pids[number] == 0:
            connection.close()
            files.close()
            run_child(main, arguments, dict(zip(wanted, received, strict=True)), path, environment)
        for file in received:
            os.close(file)


def kill_and_reap(pid: int) -> int:
    """Kill a child and return its exit code. Its pid cannot be reused before it is waited for."""
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def receive_files(files: socket.socket, count: int) -> list[int]:
    """Receive file descriptors; raise EOFError if the sender was killed before it sent all of them.

    Without free descriptors the kernel drops the rest: that ends the fork server too.
    """
    received: list[int] = []
    while len(received) < count:
        data, fds, flags, _ = socket.recv_fds(files, 1, MAX_FILES)
        if not data or flags & socket.MSG_CTRUNC:
            raise EOFError
        received += fds
    return received


def run_child(
    main: tuple[str, str],
    arguments: Sequence[int],
    files: dict[int, int],
    path: list[str],
    environment: dict[str, str],
) -> NoReturn:
    """Call a function in a new child, with the files, path and environment of the requesting process."""
    code = 1
    try:
        die_with_parent(os.getppid())
        renumber_files(files)
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)
        tune_allocator()
        module, function = main
        name_process(function)
        getattr(import_module(module), function)(*arguments)
        code = 0
    except BaseException as error:
        if not (isinstance(error, OSError) and error.errno == errno.EMFILE):  # the parent reports this one
            traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)  # without the exit handlers of the fork server


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies (PR_SET_PDEATHSIG, Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    """Show the name of a function instead of `python` in `top` (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def renumber_files(files: dict[int, int]) -> None:
    """Move open files (values) to new numbers (keys), by way of numbers that are in neither."""
    import fcntl  # Windows does not have it

    free = max(*files, *files.values()) + 1
    moved = {wanted: fcntl.fcntl(received, fcntl.F_DUPFD, free) for wanted, received in files.items()}
    for received in files.values():
        os.close(received)
    for wanted, temporary in moved.items():
        os.dup2(temporary, wanted)
        os.close(temporary)
