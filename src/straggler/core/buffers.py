"""BatchNorm statistics on the server: the mean of every worker's latest."""

import torch
from torch import Tensor


class BufferAverage:
    """Workers that have not reported, or are gone, do not count; without any the mean stays as it was."""

    def __init__(self, first: Tensor) -> None:
        self.mean = first
        self._latest: dict[int, Tensor] = {}
        self._gone: list[int] = []
        self._sum = torch.zeros_like(first, dtype=torch.float64)  # so that putting and taking leaves no trace

    def put(self, worker: int, latest: Tensor) -> Tensor:
        """A worker's newest; the mean that follows."""
        if latest.numel() and worker not in self._gone:
            before = self._latest.get(worker)
            before = torch.zeros_like(latest) if before is None else before
            # what did not change adds nothing, infinities (an attention mask) included
            change = torch.where(latest == before, 0.0, latest.double() - before)
            self._sum, self._latest[worker] = self._sum + change, latest
            self.mean = (self._sum / len(self._latest)).to(latest.dtype)
        return self.mean

    def left(self, worker: int) -> Tensor:
        """A worker is gone, and so are its statistics, which would else hold on to the mean for ever."""
        self._gone.append(worker)
        self._latest.pop(worker, None)
        self._sum = sum(self._latest.values(), start=torch.zeros_like(self._sum))
        if self._latest:
            self.mean = (self._sum / len(self._latest)).to(self.mean.dtype)
        return self.mean

    def joined(self, worker: int) -> None:
        """A worker came, perhaps one that was gone."""
        if worker in self._gone:
            self._gone.remove(worker)
