"""Foundations of the channels: vectors as bytes, error feedback, and compression to low rank."""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from straggler.core import Channel, Shapes


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a tensor as bytes."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def from_bytes(encoded: Tensor, dtype: torch.dtype) -> Tensor:
    """Return bytes as a tensor; they are copied if their address does not suit the type."""
    if encoded.storage_offset() % dtype.itemsize:
        encoded = encoded.clone()
    return encoded.view(dtype)


@dataclass
class VectorLayout:
    """The flat vector that a channel encodes."""

    size: int
    dtype: torch.dtype
    shapes: list[tuple[int, ...]]

    def split(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of a flat vector that are the model's tensors."""
        return torch.split(vector, [math.prod(shape) for shape in self.shapes])


class VectorChannel(Channel):
    """Base of all channels: they know the size, the type and the tensors of the vector."""

    _layout: VectorLayout = PrivateAttr()

    def prepare(self, x: Tensor, shapes: Shapes) -> int:
        self._layout = VectorLayout(x.numel(), x.dtype, list(shapes.values()))
        return 0


class Compressor(VectorChannel):
    """Base of the lossy channels. With `feedback` the worker adds to a message what the last ones left out.

    The worker remembers the residual: sent + kept = computed + kept before. Seide et al. 2014.
    """

    if TYPE_CHECKING:  # a setting of every subclass; here it would come before the subclass's own settings
        feedback: bool

    @abstractmethod
    def compress(self, vector: Tensor, seed: int) -> Tensor:
        """Return the encoded vector."""

    def prepare(self, x: Tensor, shapes: Shapes) -> int:
        super().prepare(x, shapes)
        return x.numel() if self.feedback else 0

    def encode(self, vector: Tensor, memory: Tensor | None, seed: int) -> tuple[Tensor, Tensor | None]:
        total = vector if memory is None else vector + memory
        encoded = self.compress(total, seed)
        return encoded, self.subtract_sent(total, encoded, seed) if self.feedback else None

    def subtract_sent(self, total: Tensor, encoded: Tensor, seed: int) -> Tensor:
        """Return what a message left out."""
        return total - self.decode(encoded, seed)


class PowerSGD(VectorChannel):
    """Every matrix M as P Qᵀ of low `rank`, by one power iteration from the last Q. Vogels et al. 2019.

    Tensors are matrices of rows × the rest. Vectors, and matrices that P and Q would not make smaller, travel
    unchanged.
    """

    name: ClassVar[str] = "powersgd"
    is_random: ClassVar[bool] = True
    rank: int = Field(2, ge=1)
    feedback: bool = True

    def plan(self) -> Iterator[tuple[int, int, int]]:
        """Yield the size, rows and columns of every tensor; rows 0 if it travels unchanged."""
        for shape in self._layout.shapes:
            size = math.prod(shape)
            rows = shape[0] if len(shape) > 1 and size else 0
            columns = size // rows if rows else 0
            is_smaller = rows and (rows + columns) * self.rank < size
            yield (size, rows, columns) if is_smaller else (size, 0, 0)

    def prepare(self, x: Tensor, shapes: Shapes) -> int:
        super().prepare(x, shapes)
        return (x.numel() if self.feedback else 0) + self.rank * sum(columns for _, _, columns in self.plan())

    def count_bytes(self, x: Tensor, shapes: Shapes) -> int:
        self._layout = VectorLayout(x.numel(), x.dtype, list(shapes.values()))
        numbers = ((rows + columns) * self.rank if rows else size for size, rows, columns in self.plan())
        return sum(numbers) * x.dtype.itemsize

    def encode(self, vector: Tensor, memory: Tensor | None, seed: int) -> tuple[Tensor, Tensor | None]:
        size = self._layout.size if self.feedback else 0
        generator = torch.Generator().manual_seed(seed)
        total = vector + memory[:size] if memory is not None and self.feedback else vector
        last = None if memory is None else memory[size:]
        numbers, factors, position, start = list[Tensor](), list[Tensor](), 0, 0
        for count, rows, columns in self.plan():
            part = total[position : position + count]
            position += count
            if not rows:
                numbers.append(part)
                continue
            matrix, width = part.view(rows, columns), columns * self.rank
            if last is None:
                right = torch.randn(columns, self.rank, generator=generator, dtype=vector.dtype)
                right = right.to(vector.device)
            else:
                right = last[start : start + width].view(columns, self.rank)
            start += width
            left, _ = torch.linalg.qr(matrix @ right)
            right = matrix.T @ left
            numbers += [left.reshape(-1), right.reshape(-1)]
            # a zero matrix has no direction to start the next iteration from
            factors.append((right if bool(right.any()) else torch.ones_like(right)).reshape(-1))
        encoded = as_bytes(torch.cat(numbers))
        kept = [total - self.decode(encoded, seed)] if self.feedback else []
        kept += factors
        return encoded, torch.cat(kept) if kept else None

    def decode(self, encoded: Tensor, seed: int) -> Tensor:
        numbers, position, parts = encoded.view(self._layout.dtype), 0, list[Tensor]()
        for count, rows, columns in self.plan():
            if not rows:
                parts.append(numbers[position : position + count])
                position += count
                continue
            split, end = position + rows * self.rank, position + (rows + columns) * self.rank
            left, right = numbers[position:split].view(rows, -1), numbers[split:end].view(columns, -1)
            parts.append((left @ right.T).reshape(-1))
            position = end
        return torch.cat(parts)
