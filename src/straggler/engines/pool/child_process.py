"""A process that computes gradients: the parent's side (ChildProcess) and the child's (ChildRuntime)."""

import math
import os
import pickle
import select
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from straggler.core import EvaluationChunk, Message, WorkerProgram
from straggler.core.devices import DEFAULT_PLACEMENT, Placement
from straggler.core.program import EncodedMessage
from straggler.engines.pool.fork_server import fork_child, limit_waiting
from straggler.engines.pool.shared_memory import SharedMemory, map_file, map_tensor


def compute_call(
    program: WorkerProgram, call: tuple[Any, ...], x: Tensor, buffers: Tensor, memory: Tensor | None
) -> EncodedMessage | EvaluationChunk:
    """Compute ("message", worker, index) or ("evaluate", split, chunk) at a model."""
    kind, *where = call
    if kind == "message":
        return program.encode(x, buffers, memory, *where)
    return program.problem.evaluate(x, buffers, *where)


ALIGNMENT = 64  # bytes
START_SECONDS = 60.0  # time that a process may take to start, in addition to the timeout


class SlotLayout(NamedTuple):
    """The layout of a slot: a model, its buffers and a worker's memory, and space for the encoded message."""

    size: int
    buffers: int
    memory: int
    encoded: int  # bytes
    dtype: torch.dtype
    model_dtype: torch.dtype  # in which the model travels

    @classmethod
    def of(cls, program: WorkerProgram, model_dtype: torch.dtype | None = None) -> Self:
        """Return the layout for the messages of a program."""
        sizes = program.size, program.buffers, program.memory, program.encoded_bytes
        return cls(*sizes, program.dtype, model_dtype or program.model_dtype)

    @property
    def parts(self) -> list[tuple[int, torch.dtype]]:
        """The number of elements and the type of every part, in order."""
        buffers, memory = (self.buffers, self.dtype), (self.memory, self.dtype)
        return [(self.size, self.model_dtype), buffers, memory, (self.encoded, torch.uint8), buffers, memory]

    @property
    def bytes(self) -> int:
        return sum(align(count * dtype.itemsize) for count, dtype in self.parts)

    def map_slot(self, memory: Any, number: int) -> list[Tensor]:
        """Return the tensors of a slot: model, buffers, memory; then message, buffers and memory after it."""
        start, tensors = number * self.bytes, []
        for count, dtype in self.parts:
            tensors.append(map_tensor(memory, start, count, dtype))
            start += align(count * dtype.itemsize)
        return tensors


def align(count: int) -> int:
    """Return a number of bytes, rounded up so that the next part begins at a multiple of ALIGNMENT."""
    return -(-count // ALIGNMENT) * ALIGNMENT


@dataclass(eq=False)
class SharedSlot:
    """Shared memory for one task of one process."""

    process: "ChildProcess"
    number: int
    x: Tensor
    buffers: Tensor
    memory: Tensor
    encoded: Tensor
    buffers_after: Tensor
    memory_after: Tensor
    task: Any = None  # the task that uses the slot

    def write_inputs(self, x: Tensor, buffers: Tensor, memory: Tensor | None) -> None:
        """Copy a model, its buffers and a worker's memory into the slot."""
        self.x.copy_(x)
        if buffers.numel():
            self.buffers.copy_(buffers)
        if memory is not None:
            self.memory.copy_(memory)

    def read_message(self, program: WorkerProgram, worker: int, index: int, loss: float) -> Message:
        """Return the message in the slot; an exact one is not copied."""
        vector = program.decode(self.encoded, worker, index)
        buffers = self.buffers_after.clone() if program.buffers else self.buffers_after
        return Message(vector, loss, buffers, self.memory_after.clone() if program.memory else None)


class ChildProcess:
    """The parent's side of a process that computes: its connection and its slots."""

    def __init__(
        self,
        main: Callable[[int, int], None],
        program: list[SharedMemory],
        layout: SlotLayout,
        slots: int,
        placement: Placement = DEFAULT_PLACEMENT,
    ) -> None:
        memory = SharedMemory(slots * layout.bytes)
        ours, theirs = socket.socketpair()
        arguments = (theirs.fileno(), memory.fd)
        inherited = [shared.fd for shared in program]  # as `pack_shared` returns them
        self._fork_server, self._number = fork_child(main, arguments, [*arguments, *inherited])
        self.pid: int | None = None  # known when the process is ready
        self.exit_code = 0  # known when the process has ended
        self.heard = time.monotonic()  # when it last sent a message, or got a task while it was idle
        theirs.close()
        limit_waiting(ours)
        self.connection = Connection(ours.detach())
        with suppress(OSError):  # it died already: reading from it says so
            self.connection.send((inherited[0], layout, slots, placement))
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

    def deadline(self, timeout: float) -> float:
        """Return when the process counts as hung; inf if it has no task."""
        if not self.is_ready:
            return self.heard + timeout + START_SECONDS
        return self.heard + timeout if self.load else math.inf

    def close(self) -> None:
        """Kill the process. It has no state that could be lost."""
        if not self.connection.closed:
            self.connection.close()
            self.exit_code = self._fork_server.kill_child(self._number)
            for slot in self.slots:  # otherwise the memory would stay until garbage is collected
                del slot.process


class ChildRuntime:
    """The child's side: its connection, the worker's program, and its slots."""

    def __init__(self, connection_fd: int, memory_fd: int) -> None:
        self.connection = Connection(connection_fd)
        program_fd, layout, slots, placement = self.connection.recv()
        # Loading the program may import code that registers an accelerator with torch.
        self.program: WorkerProgram = pickle.loads(map_file(program_fd))
        self.device, self.dtype = placement.prepare(), layout.dtype
        self.program.move_to(self.device)
        memory = map_file(memory_fd)
        self.slots = [layout.map_slot(memory, number) for number in range(slots)]
        self.connection.send(os.getpid())  # ready

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.connection.close()

    def compute(
        self, number: int, call: tuple[Any, ...], has_memory: bool = False
    ) -> float | EvaluationChunk | str:
        """Compute a call at the model of a slot.

        Return the loss (the encoded message is written into the slot), an evaluation, or a traceback.
        """
        model, *state, encoded, buffers_after, memory_after = self.slots[number]
        try:
            x = model.to(self.device, self.dtype)
            buffers, memory = (tensor.to(self.device) for tensor in state)
            outcome = compute_call(self.program, call, x, buffers, memory if has_memory else None)
        except Exception:
            return traceback.format_exc()
        if isinstance(outcome, EvaluationChunk):
            return outcome
        encoded.copy_(outcome.encoded)
        buffers_after.copy_(outcome.buffers)
        if outcome.memory is not None:
            memory_after.copy_(outcome.memory)
        return outcome.loss
