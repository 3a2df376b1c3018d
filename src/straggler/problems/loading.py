"""Prefetching: processes that load the next batches of a worker while it computes."""

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

BatchKey = tuple[int, int]  # worker, number of the batch
LoadBatch = Callable[[int, int], Any]
AHEAD = 2  # batches that each process prepares
MAX_FAILURES = 3  # after so many processes that died or hung, batches are loaded without them
PR_SET_PDEATHSIG = 1


@dataclass
class LoaderProcess:
    """A process that loads batches in the order in which it receives their keys."""

    process: Any
    connection: Connection


class BatchLoader:
    """Load batches ahead in forked processes. A batch is a function of its key, so no bit changes.

    If a process dies, fails, or does not deliver within `timeout` seconds, it is killed, and the batch is
    loaded in this process, which also raises the error of a broken data set.
    """

    def __init__(self, processes: int, timeout: float) -> None:
        self.processes, self.timeout = processes, timeout
        self._children: dict[int, LoaderProcess] = {}
        self._requested: list[BatchKey] = []  # in order; their batches are not received yet
        self._last: tuple[BatchKey, Any] | None = None  # a worker asks again for the batch of a cancelled job
        self._failures = 0

    def load(self, load_batch: LoadBatch, worker: int, index: int) -> Any:
        """Return a batch, and start loading the next ones of the worker."""
        if self._last is not None and self._last[0] == (worker, index):
            return self._last[1]
        if self._failures >= MAX_FAILURES:
            return load_batch(worker, index)
        wanted = [(worker, index + more) for more in range(AHEAD * self.processes)]
        if self._requested and self._requested[0] != wanted[0]:
            self.close()  # the batches that are being loaded are not needed
        try:
            for key in wanted[len(self._requested) :]:
                self._find_child(load_batch, key).connection.send(key)
                self._requested.append(key)
            batch = self._receive(self._find_child(load_batch, wanted[0]))
        except (OSError, EOFError) as error:
            self.close()
            self._failures += 1
            print(f"Loading batches ahead failed ({type(error).__name__}: {error}).", file=sys.stderr)
            batch = load_batch(worker, index)
        else:
            self._requested.pop(0)
        self._last = (worker, index), batch
        return batch

    def close(self) -> None:
        """Kill the processes; they have no state that could be lost."""
        for child in self._children.values():
            child.process.kill()
            child.process.join()
            child.connection.close()
        self._children, self._requested = {}, []

    def _find_child(self, load_batch: LoadBatch, key: BatchKey) -> LoaderProcess:
        """Return the process that loads a batch, and start it if necessary."""
        number = key[1] % self.processes
        if number not in self._children:
            context = multiprocessing.get_context("fork")
            ours, theirs = context.Pipe()
            arguments = (theirs, ours, load_batch, os.getpid())
            process = context.Process(target=serve_batches, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._children[number] = LoaderProcess(process, ours)
        return self._children[number]

    def _receive(self, child: LoaderProcess) -> Any:
        """Return the next batch of a process; raise OSError or EOFError if there is none."""
        if not child.connection.poll(self.timeout):
            raise TimeoutError(f"no batch for {self.timeout:g} s")
        success, content = pickle.loads(child.connection.recv_bytes())
        if not success:
            raise OSError(content)
        return content


def serve_batches(connection: Connection, parents_end: Connection, load: LoadBatch, parent: int) -> None:
    """Load batches in a forked process until its parent closes the connection or dies."""
    parents_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    with suppress(EOFError, OSError):
        while True:
            key = connection.recv()
            try:
                outcome = True, load(*key)
            except Exception:
                outcome = False, traceback.format_exc()
            connection.send_bytes(pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL))
