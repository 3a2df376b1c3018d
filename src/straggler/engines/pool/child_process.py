"""A process that computes gradients: the parent's side (ChildProcess) and the child's (ChildRuntime)."""

import os
import pickle
import select
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from straggler.core import EvaluationChunk, Gradient, Problem
from straggler.engines.pool.fork_server import fork_child
from straggler.engines.pool.shared_memory import SharedMemory, map_file, map_tensor


def compute_call(
    problem: Problem, call: tuple[Any, ...], x: Tensor, buffers: Tensor
) -> Gradient | EvaluationChunk:
    """Compute ("gradient", worker, index) or ("evaluate", split, chunk) at a model."""
    kind, *where = call
    compute = problem.gradient if kind == "gradient" else problem.evaluate
    return compute(x, buffers, *where)


class SlotLayout(NamedTuple):
    """The layout of a slot: a model, its buffers, and space for a gradient and the buffers after it."""

    size: int
    buffers: int
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return 2 * (self.size + self.buffers) * self.dtype.itemsize

    def map_slot(self, memory: Any, number: int) -> list[Tensor]:
        """Return the four tensors of a slot: model, buffers, gradient, buffers after the gradient."""
        start, tensors = number * self.bytes, []
        for count in (self.size, self.buffers, self.size, self.buffers):
            tensors.append(map_tensor(memory, start, count, self.dtype))
            start += count * self.dtype.itemsize
        return tensors


@dataclass(eq=False)
class SharedSlot:
    """Shared memory for one task of one process."""

    process: "ChildProcess"
    number: int
    x: Tensor
    buffers: Tensor
    gradient: Tensor
    buffers_after: Tensor
    task: Any = None  # the task that uses the slot


class ChildProcess:
    """The parent's side of a process that computes: its connection and its slots."""

    def __init__(
        self,
        main: Callable[[int, int], None],
        problem: list[SharedMemory],
        layout: SlotLayout,
        slots: int,
    ) -> None:
        memory = SharedMemory(slots * layout.bytes)
        ours, theirs = socket.socketpair()
        arguments = (theirs.fileno(), memory.fd)
        inherited = [shared.fd for shared in problem]  # as `pack_shared` returns them
        self._fork_server, self._number = fork_child(main, arguments, [*arguments, *inherited])
        self.pid: int | None = None  # known when the process is ready
        self.exit_code = 0  # known when the process has ended
        theirs.close()
        self.connection = Connection(ours.detach())
        self.connection.send((inherited[0], layout, slots))
        self.slots = [
            SharedSlot(self, number, *layout.map_slot(memory.bytes, number)) for number in range(slots)
        ]
        memory.close()

    @property
    def is_ready(self) -> bool:
        return self.pid is not None

    @property
    def is_writable(self) -> bool:
        """Whether a message can be sent without waiting for the process to read."""
        poll = select.poll()
        poll.register(self.connection.fileno(), select.POLLOUT)
        return bool(poll.poll(0))

    @property
    def load(self) -> int:
        """The number of slots in use; the number of all slots while the process is not ready."""
        return sum(slot.task is not None for slot in self.slots) if self.is_ready else len(self.slots)

    def close(self) -> None:
        """Kill the process. It has no state that could be lost."""
        if not self.connection.closed:
            self.connection.close()
            self.exit_code = self._fork_server.kill_child(self._number)


class ChildRuntime:
    """The child's side: its connection, the problem, and its slots."""

    def __init__(self, connection_fd: int, memory_fd: int) -> None:
        torch.set_num_threads(1)
        self.connection = Connection(connection_fd)
        problem_fd, layout, slots = self.connection.recv()
        self.problem: Problem = pickle.loads(map_file(problem_fd))
        memory = map_file(memory_fd)
        self.slots = [layout.map_slot(memory, number) for number in range(slots)]
        self.connection.send(os.getpid())  # ready

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.connection.close()

    def compute(self, number: int, call: tuple[Any, ...]) -> float | EvaluationChunk | str:
        """Compute a call at the model of a slot.

        Return the loss (the gradient is written into the slot), an evaluation, or a traceback.
        """
        x, buffers, gradient, buffers_after = self.slots[number]
        try:
            outcome = compute_call(self.problem, call, x, buffers)
        except Exception:
            return traceback.format_exc()
        if isinstance(outcome, EvaluationChunk):
            return outcome
        gradient.copy_(outcome.vector)
        buffers_after.copy_(outcome.buffers)
        return outcome.loss
