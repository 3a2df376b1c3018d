"""A process that computes gradients, seen from outside (ChildProcess) and inside (Inside)."""

import os
import pickle
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from select import POLLOUT, poll
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from straggler.core import EvaluationChunk, Gradient, Problem
from straggler.engines.pool.fork_server import fork_child
from straggler.engines.pool.shared_memory import SharedMemory, attach, tensor_in


def perform(
    problem: Problem, call: tuple[Any, ...], x: Tensor, buffers: Tensor
) -> Gradient | EvaluationChunk:
    kind, *where = call
    return (
        problem.gradient(x, buffers, *where) if kind == "gradient" else problem.evaluate(x, buffers, *where)
    )


class Layout(NamedTuple):
    """What one seat holds: a model, its buffers, and room for a gradient."""

    size: int
    buffers: int
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return 2 * (self.size + self.buffers) * self.dtype.itemsize

    def tensors(self, memory: Any, number: int) -> list[Tensor]:
        """The model and its buffers, then the gradient and the buffers after it, of one seat."""
        start, tensors = number * self.bytes, []
        for count in (self.size, self.buffers, self.size, self.buffers):
            tensors.append(tensor_in(memory, start, count, self.dtype))
            start += count * self.dtype.itemsize
        return tensors


@dataclass(eq=False)
class SharedSlot:
    """Shared memory for one task at one process."""

    process: "ChildProcess"
    number: int
    x: Tensor
    buffers: Tensor
    gradient: Tensor
    buffers_after: Tensor
    task: Any = None  # what it is computing


class ChildProcess:
    """One process of the pool, with its connection and its seats."""

    def __init__(
        self,
        main: Callable[[int, int], None],
        problem: SharedMemory,
        inherited: list[int],
        layout: Layout,
        depth: int,
    ) -> None:
        memory = SharedMemory(depth * layout.bytes)
        ours, theirs = socket.socketpair()
        arguments = (theirs.fileno(), memory.fd)
        self._fork_server, self._number = fork_child(main, arguments, [*arguments, problem.fd, *inherited])
        self.pid: int | None = None  # until it is ready
        self.exit_code = 0  # until it has ended
        theirs.close()
        self.connection = Connection(ours.detach())
        self.connection.send((problem.fd, layout, depth))
        self.seats = [
            SharedSlot(self, number, *layout.tensors(memory.bytes, number)) for number in range(depth)
        ]
        memory.close()

    @property
    def ready(self) -> bool:
        return self.pid is not None

    @property
    def listens(self) -> bool:
        """Whether a message can be sent without waiting until it reads."""
        line = poll()
        line.register(self.connection.fileno(), POLLOUT)
        return bool(line.poll(0))

    @property
    def load(self) -> float:
        return sum(seat.task is not None for seat in self.seats) if self.ready else len(self.seats)

    def close(self) -> None:
        if not self.connection.closed:
            self.connection.close()
            self.exit_code = self._fork_server.end(self._number)  # it holds nothing that could be lost


class Inside:
    """What a child has: its end of the connection, the problem, its seats."""

    def __init__(self, connection_fd: int, memory_fd: int) -> None:
        torch.set_num_threads(1)
        self.connection = Connection(connection_fd)
        problem_fd, layout, depth = self.connection.recv()
        self.problem: Problem = pickle.loads(attach(problem_fd))
        memory = attach(memory_fd)
        self.seats = [layout.tensors(memory, number) for number in range(depth)]
        self.connection.send(os.getpid())  # ready

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()

    def answer(self, number: int, call: tuple[Any, ...]) -> float | EvaluationChunk | str:
        """Perform a task on its seat: a gradient goes to the shared memory, the rest is small."""
        x, buffers, gradient, buffers_after = self.seats[number]
        try:
            outcome = perform(self.problem, call, x, buffers)
        except Exception:
            return traceback.format_exc()
        if isinstance(outcome, EvaluationChunk):
            return outcome
        gradient.copy_(outcome.vector)
        buffers_after.copy_(outcome.buffers)
        return outcome.loss
