"""HOW: optimizers that treat the model as matrices instead of one flat vector."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from straggler.core import Optimizer, Shapes

QUINTIC = (3.4445, -4.7750, 2.0315)  # moves every singular value in (0, 1] to about 0.7 … 1.2 in five steps
SMALL = 1e-7  # keeps a zero matrix at zero


def orthogonalise(matrix: Tensor, steps: int) -> Tensor:
    """Return about UVᵀ of a matrix USVᵀ, by Newton–Schulz iterations.

    An iteration is X ← aX + (bA + cA²)X with A = XXᵀ, starting from the matrix divided by its Frobenius norm.
    """
    a, b, c = QUINTIC
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / (torch.linalg.vector_norm(x) + SMALL)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x


def move_tensor(momentum: Tensor, shape: tuple[int, ...], steps: int) -> Tensor:
    """Return the direction for one flat tensor: orthogonal if it is a matrix, otherwise of norm 1."""
    if len(shape) < 2 or momentum.numel() == 0:
        return torch.div(momentum, torch.linalg.vector_norm(momentum) + SMALL)
    matrix = momentum.reshape(shape[0], -1)
    rows, columns = matrix.shape
    return orthogonalise(matrix, steps).mul(math.sqrt(max(1.0, rows / columns))).reshape(-1)


@dataclass
class MatrixMomentum:
    """The momentum of Muon, and the tensors it consists of."""

    velocity: Tensor
    shapes: list[tuple[int, ...]]


class Muon(Optimizer):
    """Orthogonalise the momentum of every matrix. Jordan et al. 2024 (Muon).

    v ← μv + g; d = g + μv (nesterov) or v; x ← (1 − ηλ)x − η·√max(1, rows/columns)·UVᵀ, where d = USVᵀ.
    A tensor with more dimensions is a matrix of the first × the rest. One with fewer moves by d/‖d‖.
    `velocity` is None, since v does not have the size of a step, which gap-aware needs.
    """

    name: ClassVar[str] = "muon"
    momentum: float = Field(0.95, ge=0, lt=1)
    nesterov: bool = True
    ns_steps: int = Field(5, ge=1)  # Newton–Schulz iterations
    weight_decay: float = Field(0.0, ge=0)  # decoupled
    _state: MatrixMomentum = PrivateAttr()

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._state = MatrixMomentum(torch.zeros_like(x), [tuple(shape) for shape in shapes.values()])

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int, version: int) -> Tensor:
        state = self._state
        momentum = state.velocity.mul_(self.momentum).add_(direction)
        if self.nesterov:
            momentum = direction.add(momentum, alpha=self.momentum)
        parts = torch.split(momentum, [math.prod(shape) for shape in state.shapes])
        moves = [
            move_tensor(part, shape, self.ns_steps) for part, shape in zip(parts, state.shapes, strict=True)
        ]
        kept = x * (1 - lr * self.weight_decay) if self.weight_decay else x
        return kept.add(torch.cat(moves), alpha=-lr)
