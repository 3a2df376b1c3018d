"""Problems without data: quadratics with a known optimum, and a problem whose gradients cost nothing."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from straggler.config.registry import CatalogueEntry
from straggler.core import EvaluationChunk, Message, Split
from straggler.core.devices import CPU
from straggler.core.randomness import addressed_rng
from straggler.problems.memory import MAX_NUMBERS, check_size

EPOCH_BATCHES = 1000  # a quadratic has no samples, so the length of its epoch is a convention


class QuadraticData(CatalogueEntry):
    """Quadratics with a known optimum: condition number, gradient noise, and minima that differ by worker."""

    name: ClassVar[str] = "quadratic"
    dimension: int = Field(10, ge=1, le=MAX_NUMBERS)
    condition: float = Field(10.0, ge=1)
    noise: float = Field(0.0, ge=0)
    spread: float = Field(0.0, ge=0)


class QuadraticProblem:
    """Worker i minimises ½ Σⱼ λⱼ (xⱼ − bᵢⱼ)² with noisy gradients; the optimum of all is mean(bᵢ)."""

    classes: tuple[str, ...] = ()

    def __init__(
        self, shape: QuadraticData, workers: int, batch_size: int | Sequence[int], seed: int
    ) -> None:
        dimension = shape.dimension
        check_size(f"quadratic(dimension={dimension}) with {workers} workers", dimension * workers)
        self.noise, self.seed, self.shapes = shape.noise, seed, {"x": (dimension,)}
        self.batch_sizes = [batch_size] * workers if isinstance(batch_size, int) else list(batch_size)
        self.samples = EPOCH_BATCHES * max(1, round(sum(self.batch_sizes) / workers))
        smallest = -float(np.log10(shape.condition))
        self.curvature = torch.logspace(0, smallest, dimension, dtype=torch.float64)
        generators = [addressed_rng(seed, "minimum", worker) for worker in range(workers)]
        minima = np.array([generator.standard_normal(dimension) for generator in generators])
        self.minima = shape.spread * torch.from_numpy(minima)
        self.optimum = self.minima.mean(dim=0)
        self.device = CPU

    def move_to(self, device: torch.device) -> None:
        self.device = device
        tensors = self.curvature, self.minima, self.optimum
        self.curvature, self.minima, self.optimum = (tensor.to(device) for tensor in tensors)

    def initial_model(self) -> tuple[Tensor, Tensor]:
        return torch.ones_like(self.curvature), self.curvature[:0]

    def count_batches(self, worker: int) -> int:
        return EPOCH_BATCHES

    def batch_samples(self, worker: int, index: int) -> int:
        return self.batch_sizes[worker]

    def gradient(self, x: Tensor, buffers: Tensor, worker: int, index: int) -> Message:
        distance = x - self.minima[worker]
        gradient = self.curvature * distance
        loss = 0.5 * float(gradient @ distance)
        if self.noise:
            noise = addressed_rng(self.seed, "noise", worker, index).standard_normal(len(x))
            gradient = gradient + self.noise * torch.from_numpy(noise).to(self.device)
        return Message(gradient, loss, buffers)

    def count_chunks(self, split: Split) -> int:
        return 0 if split == "validation" else 1

    def evaluate(self, x: Tensor, buffers: Tensor, split: Split, chunk: int) -> EvaluationChunk:
        """Return how far the mean of all workers' objectives is above its minimum."""
        distance = x - self.optimum
        return EvaluationChunk(0.5 * float((self.curvature * distance) @ distance), 1)

    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        return {"x": x}


class NullProblem:
    """A problem whose gradients cost nothing, to measure or simulate everything else."""

    classes: tuple[str, ...] = ()
    samples = 10**9  # no epoch ends
    device = CPU

    def __init__(self, size: int = 1) -> None:
        self.zero, self.shapes = torch.zeros(size), {"x": (size,)}
        self.result = Message(self.zero, 0.0, torch.empty(0))

    def move_to(self, device: torch.device) -> None:
        """Stay on the CPU: there is nothing to compute."""

    def initial_model(self) -> tuple[Tensor, Tensor]:
        return self.zero, self.result.buffers

    def batch_samples(self, worker: int, index: int) -> int:
        return 1

    def count_batches(self, worker: int) -> int:
        return 1

    def gradient(self, x: Tensor, buffers: Tensor, worker: int, index: int) -> Message:
        return self.result

    def count_chunks(self, split: Split) -> int:
        return 0

    def evaluate(self, x: Tensor, buffers: Tensor, split: Split, chunk: int) -> EvaluationChunk:
        return EvaluationChunk(0.0, 1)

    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        return {}
