"""CHANNELS: the catalogue of encodings of a message: bytes on the wire, decoded before the server uses it."""

import math
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from straggler.algorithms.compression import Compressor, PowerSGD, VectorChannel, as_bytes, from_bytes
from straggler.config.registry import Catalogue
from straggler.core import Channel, Shapes

SAMPLED = 64  # one number of so many


class Exact(VectorChannel):
    """The vector itself."""

    name: ClassVar[str] = "exact"
    is_exact: ClassVar[bool] = True

    def count_bytes(self, x: Tensor, shapes: Shapes) -> int:
        return x.nbytes

    def encode(self, vector: Tensor, memory: Tensor | None, seed: int) -> tuple[Tensor, Tensor | None]:
        return as_bytes(vector), None

    def decode(self, encoded: Tensor, seed: int) -> Tensor:
        return encoded.view(self._layout.dtype)


class Half(VectorChannel):
    """Base of the channels that round every number to 16 bits."""

    half: ClassVar[torch.dtype]

    def count_bytes(self, x: Tensor, shapes: Shapes) -> int:
        return 2 * x.numel()

    def encode(self, vector: Tensor, memory: Tensor | None, seed: int) -> tuple[Tensor, Tensor | None]:
        return as_bytes(vector.to(self.half)), None

    def decode(self, encoded: Tensor, seed: int) -> Tensor:
        return encoded.view(self.half).to(self._layout.dtype)


class BFloat16(Half):
    """16 bits per number: 8 for the exponent, 7 for the fraction."""

    name: ClassVar[str] = "bf16"
    half: ClassVar[torch.dtype] = torch.bfloat16


class Float16(Half):
    """16 bits per number: 5 for the exponent (up to 65,504), 10 for the fraction."""

    name: ClassVar[str] = "fp16"
    half: ClassVar[torch.dtype] = torch.float16


def find_largest(numbers: Tensor, count: int) -> Tensor:
    """Return the positions of the `count` largest numbers, in order.

    In a long vector, every 64th number gives a lower bound, and only larger ones are compared: this is nine
    times faster than `torch.topk` of 25 million numbers.
    """
    sample = numbers[::SAMPLED]
    likely = int(1.2 * count / SAMPLED) + 100
    if likely >= len(sample):
        return torch.topk(numbers, count, sorted=False).indices.sort().values
    bound = torch.topk(sample, likely, sorted=False).values.min()
    candidates = (numbers >= bound).nonzero().squeeze(1)
    if len(candidates) < count:  # the sample misled
        return torch.topk(numbers, count, sorted=False).indices.sort().values
    return candidates[torch.topk(numbers[candidates], count, sorted=False).indices].sort().values


class TopK(Compressor):
    """The `share` of numbers with the largest magnitudes, with their positions. Stich et al. 2018."""

    name: ClassVar[str] = "top-k"
    share: float = Field(0.01, gt=0, le=1)
    feedback: bool = True

    def count_bytes(self, x: Tensor, shapes: Shapes) -> int:
        return count_share(self.share, x.numel()) * (x.dtype.itemsize + 4)

    def compress(self, vector: Tensor, seed: int) -> Tensor:
        places = find_largest(vector.abs(), count_share(self.share, len(vector)))
        return torch.cat([as_bytes(places.to(torch.int32)), as_bytes(vector[places])])

    def subtract_sent(self, total: Tensor, encoded: Tensor, seed: int) -> Tensor:
        return total.index_fill(0, self._split(encoded)[0], 0.0)

    def decode(self, encoded: Tensor, seed: int) -> Tensor:
        places, values = self._split(encoded)
        return values.new_zeros(self._layout.size).index_copy_(0, places, values)

    def _split(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions and the values in a message."""
        split = 4 * count_share(self.share, self._layout.size)
        places = encoded[:split].view(torch.int32).long()
        return places, from_bytes(encoded[split:], self._layout.dtype)


class RandomK(Compressor):
    """A random `share` of the numbers; the server draws the same positions, so they are not sent.

    Without feedback the numbers are divided by the share, which makes the message unbiased.
    Wangni et al. 2018.
    """

    name: ClassVar[str] = "random-k"
    is_random: ClassVar[bool] = True
    share: float = Field(0.01, gt=0, le=1)
    feedback: bool = True

    def count_bytes(self, x: Tensor, shapes: Shapes) -> int:
        return count_share(self.share, x.numel()) * x.dtype.itemsize

    def places(self, seed: int, device: torch.device) -> Tensor:
        """Return the positions of a message's numbers."""
        size = self._layout.size
        count = count_share(self.share, size)
        chosen = np.random.default_rng(seed).choice(size, count, replace=False, shuffle=False)
        return torch.from_numpy(np.sort(chosen)).to(device)

    def compress(self, vector: Tensor, seed: int) -> Tensor:
        values = vector[self.places(seed, vector.device)]
        if not self.feedback and len(values) < len(vector):
            values = values * (len(vector) / len(values))
        return as_bytes(values)

    def decode(self, encoded: Tensor, seed: int) -> Tensor:
        layout = self._layout
        values = encoded.view(layout.dtype)
        return values.new_zeros(layout.size).index_copy_(0, self.places(seed, values.device), values)


class QSGD(Compressor):
    """Random rounding to `bits` per number, relative to the largest of a bucket. Alistarh et al. 2017.

    The rounding is unbiased. With bits=32 the numbers travel unchanged.
    """

    name: ClassVar[str] = "qsgd"
    is_random: ClassVar[bool] = True
    bits: Literal[2, 4, 8, 16, 32] = 4
    bucket: int = Field(512, ge=1)  # numbers that share a scale
    feedback: bool = False

    def count_bytes(self, x: Tensor, shapes: Shapes) -> int:
        if self.bits == 32:
            return x.nbytes
        buckets = -(-x.numel() // self.bucket)
        return buckets * x.dtype.itemsize + -(-x.numel() * self.bits // 8)

    def compress(self, vector: Tensor, seed: int) -> Tensor:
        if self.bits == 32:
            return as_bytes(vector)
        most = 2 ** (self.bits - 1) - 1  # levels on each side of 0
        buckets = -(-len(vector) // self.bucket)
        table = torch.nn.functional.pad(vector, (0, buckets * self.bucket - len(vector)))
        table = table.view(buckets, self.bucket)
        scales = table.abs().amax(dim=1)
        units = table / torch.where(scales > 0, scales, torch.ones_like(scales))[:, None] * most
        noise = torch.rand(units.shape, generator=torch.Generator().manual_seed(seed), dtype=vector.dtype)
        levels = torch.floor(units + noise.to(vector.device)).clamp_(-most, most).view(-1)[: len(vector)]
        return torch.cat([as_bytes(scales), pack_levels(levels.to(torch.int32) + most, self.bits)])

    def decode(self, encoded: Tensor, seed: int) -> Tensor:
        layout, most = self._layout, 2 ** (self.bits - 1) - 1
        if self.bits == 32:
            return encoded.view(layout.dtype)
        buckets = -(-layout.size // self.bucket)
        split = buckets * layout.dtype.itemsize
        scales = encoded[:split].view(layout.dtype)
        levels = unpack_levels(encoded[split:], self.bits, layout.size).to(layout.dtype) - most
        units = (scales / most).repeat_interleave(self.bucket)[: layout.size]
        return torch.mul(levels, units)


class Sign(Compressor):
    """One bit per number, times the mean magnitude of its tensor. Karimireddy et al. 2019 (EF-signSGD)."""

    name: ClassVar[str] = "sign"
    feedback: bool = True

    def count_bytes(self, x: Tensor, shapes: Shapes) -> int:
        return len(shapes) * x.dtype.itemsize + -(-x.numel() // 8)

    def compress(self, vector: Tensor, seed: int) -> Tensor:
        parts = self._layout.split(vector)
        scales = torch.stack([part.abs().mean() if len(part) else vector.new_zeros(()) for part in parts])
        bits = torch.from_numpy(np.packbits((vector >= 0).cpu().numpy())).to(vector.device)
        return torch.cat([as_bytes(scales), bits])

    def decode(self, encoded: Tensor, seed: int) -> Tensor:
        layout = self._layout
        split = len(layout.shapes) * layout.dtype.itemsize
        scales = encoded[:split].view(layout.dtype)
        signs = torch.from_numpy(np.unpackbits(encoded[split:].cpu().numpy(), count=layout.size))
        counts = torch.tensor([math.prod(shape) for shape in layout.shapes], device=encoded.device)
        return (signs.to(encoded.device, layout.dtype) * 2 - 1) * scales.repeat_interleave(counts)


def count_share(share: float, size: int) -> int:
    """Return how many of `size` numbers a share is, at least one."""
    return max(1, min(size, round(share * size)))


def pack_levels(levels: Tensor, bits: int) -> Tensor:
    """Return whole numbers from 0 to 2^bits − 1 as bytes."""
    if bits == 16:
        return as_bytes(levels.to(torch.uint16))
    per_byte = 8 // bits
    padded = torch.nn.functional.pad(levels.to(torch.uint8), (0, -len(levels) % per_byte))
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=levels.device)
    return torch.sum(padded.view(-1, per_byte) << shifts, dim=1, dtype=torch.uint8)


def unpack_levels(encoded: Tensor, bits: int, count: int) -> Tensor:
    """Return the whole numbers that `pack_levels` packed."""
    if bits == 16:
        return from_bytes(encoded, torch.uint16).to(torch.int32)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=encoded.device)
    levels: Tensor = (encoded[:, None] >> shifts) & (2**bits - 1)
    return levels.view(-1)[:count].to(torch.int32)


CHANNELS = Catalogue(
    "channel",
    "channels",
    Channel,
    [Exact, BFloat16, Float16, TopK, RandomK, QSGD, Sign, PowerSGD],
)
