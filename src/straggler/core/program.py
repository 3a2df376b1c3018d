"""The program of a worker: a problem, the work of a job, and the channel that encodes its message."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from straggler.core.devices import DEFAULT_PLACEMENT, Placement
from straggler.core.interfaces import Channel, Problem, Work
from straggler.core.messages import Job, Memory, Message
from straggler.core.randomness import torch_seed


@dataclass(frozen=True)
class EncodedMessage:
    """A message on its way to the server."""

    encoded: Tensor  # uint8
    loss: float
    buffers: Tensor
    memory: Tensor | None


class WorkerProgram:
    """Everything that a worker needs to compute the messages of its jobs."""

    def __init__(
        self,
        problem: Problem,
        work: Work,
        channel: Channel,
        seed: int = 0,
        batches: Sequence[int] | None = None,  # of each worker's jobs; None: one
    ) -> None:
        self.problem, self.work, self.channel, self.seed, self.batches = problem, work, channel, seed, batches
        self.placements: Sequence[Placement] = (DEFAULT_PLACEMENT,)  # of the workers in turn, in real time
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key[0] != "_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    def _prepare(self) -> None:
        problem, channel = self.problem, self.channel
        x, buffers = problem.initial_model()
        self.dtype, self.size, self.buffers = x.dtype, x.numel(), buffers.numel()
        self.model_dtype = channel.model_dtype(x.dtype)  # in which the model travels to the worker
        work_memory = self.work.prepare(x, problem.shapes)
        self._work_memory, self.memory = work_memory, work_memory + channel.prepare(x, problem.shapes)
        self._is_plain = self.work.is_gradient and channel.is_exact
        self.encoded_bytes = channel.count_bytes(x, problem.shapes)
        self.bytes_up = self.encoded_bytes + buffers.nbytes
        self.bytes_down = self.size * self.model_dtype.itemsize + buffers.nbytes

    def place(self, process: int) -> Placement:
        """Return where a worker computes; the process that evaluates has the number after the workers."""
        return self.placements[process % len(self.placements)]

    def move_to(self, device: torch.device) -> None:
        """Compute on another device from now on."""
        if device != self.problem.device:
            self.problem.move_to(device)
            self._prepare()

    def count_batches(self, worker: int) -> int:
        """Return the number of batches in each of a worker's jobs."""
        return 1 if self.batches is None else self.batches[worker]

    def list_batches(self, worker: int, index: int) -> range:
        """Return the numbers of the batches that a job uses."""
        count = self.count_batches(worker)
        return range(index * count, (index + 1) * count)

    def count_samples(self, worker: int, index: int) -> int:
        """Return the number of samples in the batches of a job."""
        if self.batches is None:
            return self.problem.batch_samples(worker, index)
        return sum(self.problem.batch_samples(worker, each) for each in self.list_batches(worker, index))

    def encode(
        self, x: Tensor, buffers: Tensor, memory: Tensor | None, worker: int, index: int
    ) -> EncodedMessage:
        """Compute a job and return its message as it travels to the server."""
        kept, residual = (None, None) if memory is None else self._split_memory(memory)
        message = self.work.compute(self.problem, x, buffers, kept, worker, self.list_batches(worker, index))
        encoded, residual = self.channel.encode(message.vector, residual, self._seed(worker, index))
        if encoded.nbytes != self.encoded_bytes:
            raise ValueError(
                f"{self.channel} encoded {encoded.nbytes} bytes, but its count_bytes returned "
                f"{self.encoded_bytes}. The size of a message must not depend on its values."
            )
        parts = [part for part in (message.memory, residual) if isinstance(part, Tensor)]
        memory = (parts[0] if len(parts) == 1 else torch.cat(parts)) if self.memory else None
        return EncodedMessage(encoded, message.loss, message.buffers, memory)

    def _split_memory(self, memory: Tensor) -> list[Tensor | None]:
        """Return what the work and the channel remember; None for one that remembers nothing."""
        parts = memory[: self._work_memory], memory[self._work_memory :]
        return [part if part.numel() else None for part in parts]

    def decode(self, encoded: Tensor, worker: int, index: int) -> Tensor:
        """Return the vector that the server uses."""
        return self.channel.decode(encoded, self._seed(worker, index)).to(self.dtype)

    def compute(self, job: Job) -> Message:
        """Compute the message of a job in this process."""
        if self._is_plain:
            return self.problem.gradient(job.x, job.buffers, job.worker, job.index)
        done = self.encode(job.x, job.buffers, fetch_memory(job.memory), job.worker, job.index)
        vector = self.decode(done.encoded, job.worker, job.index)
        return Message(vector, done.loss, done.buffers, done.memory)

    def _seed(self, worker: int, index: int) -> int:
        return torch_seed(self.seed, "channel", worker, index) if self.channel.is_random else 0


def fetch_memory(memory: Memory | None) -> Tensor | None:
    """Return a worker's memory as a tensor, wherever it is."""
    return memory if memory is None or isinstance(memory, Tensor) else memory.fetch()


def with_memory_here(job: Job) -> Job:
    """Return a job whose memory is a tensor, for a checkpoint."""
    is_here = job.memory is None or isinstance(job.memory, Tensor)
    return job if is_here else replace(job, memory=fetch_memory(job.memory))
