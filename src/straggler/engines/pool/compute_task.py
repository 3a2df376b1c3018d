"""A task for a process that computes."""

from typing import Any

import torch
from torch import Tensor

from straggler.core import EvaluationChunk, Message
from straggler.engines.pool.child_process import SharedSlot

NO_TENSOR = torch.empty(0)


class PoolError(RuntimeError):
    """Raised if the processes of a pool keep dying. The run resumes from its last checkpoint."""

    exit_code = 1


class ComputeTask:
    """A message or an evaluation to compute once: ahead of time, or when its result is needed."""

    __slots__ = ("abandoned", "buffers", "call", "error", "hung", "memory", "result", "slot", "x")

    def __init__(
        self, call: tuple[Any, ...], x: Tensor, buffers: Tensor, memory: Tensor | None = None
    ) -> None:
        self.call, self.x, self.buffers, self.memory = call, x, buffers, memory
        self.slot: SharedSlot | None = None
        self.result: Message | EvaluationChunk | None = None
        self.error: str | None = None
        self.abandoned = self.hung = False  # hung: a process got it and sent nothing for too long

    def abandon(self) -> None:
        """Declare that the result is not needed, and free the model."""
        self.abandoned, self.x, self.buffers, self.memory = True, NO_TENSOR, NO_TENSOR, None

    @property
    def done(self) -> bool:
        return self.result is not None or self.error is not None
