"""BatchNorm statistics on the server: the mean of every worker's latest."""

import torch
from torch import Tensor

__all__ = ["MeanOfLatest"]


class MeanOfLatest:
    """Workers that have not reported do not count; until one has, it is what the model began with."""

    def __init__(self, first: Tensor) -> None:
        self.mean = first
        self._latest: dict[int, Tensor] = {}
        self._sum = torch.zeros_like(first, dtype=torch.float64)  # so that putting and taking leaves no trace

    def put(self, worker: int, latest: Tensor) -> Tensor:
        """A worker's newest; the mean that follows."""
        if latest.numel():
            before = self._latest.get(worker)
            before = torch.zeros_like(latest) if before is None else before
            # what did not change adds nothing, infinities (an attention mask) included
            change = torch.where(latest == before, 0.0, latest.double() - before)
            self._sum, self._latest[worker] = self._sum + change, latest
            self.mean = (self._sum / len(self._latest)).to(latest.dtype)
        return self.mean
