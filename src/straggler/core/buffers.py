"""Averages the workers' BatchNorm statistics on the server."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


def widest_type(device: torch.device) -> torch.dtype:
    """Return the most exact type of a device: Apple's GPUs have no double precision."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass
class BufferAverage:
    """Mean of each active worker's latest buffers; it does not change until an active worker reports."""

    mean: Tensor
    latest: dict[int, Tensor] = field(default_factory=dict)
    inactive: list[int] = field(default_factory=list)  # workers that left
    total: Tensor = field(default_factory=lambda: torch.zeros(0))

    def __post_init__(self) -> None:
        if not self.latest:  # double precision, so that removing a value leaves no rounding error
            self.total = torch.zeros_like(self.mean, dtype=widest_type(self.mean.device))

    def put(self, worker: int, latest: Tensor) -> Tensor:
        """Replace a worker's buffers and return the new mean."""
        if latest.numel() and worker not in self.inactive:
            before = self.latest.get(worker)
            before = torch.zeros_like(latest) if before is None else before
            # unchanged values add nothing, even infinite ones (an attention mask)
            change = torch.where(latest == before, 0.0, latest.to(self.total.dtype) - before)
            self.total, self.latest[worker] = self.total + change, latest
            self.mean = (self.total / len(self.latest)).to(latest.dtype)
        return self.mean

    def left(self, worker: int) -> Tensor:
        """Remove the buffers of a worker that left and return the new mean."""
        self.inactive.append(worker)
        self.latest.pop(worker, None)
        self.total = sum(self.latest.values(), start=torch.zeros_like(self.total))
        if self.latest:
            self.mean = (self.total / len(self.latest)).to(self.mean.dtype)
        return self.mean

    def joined(self, worker: int) -> None:
        """Include a worker again that left earlier."""
        if worker in self.inactive:
            self.inactive.remove(worker)
