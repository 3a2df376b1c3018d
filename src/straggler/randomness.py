"""Randomness is addressed, never consumed: the same address gives the same draws, whoever asks, whenever."""

import zlib

import numpy as np

__all__ = ["rng", "torch_seed"]


def rng(seed: int, stream: str, worker: int = 0, index: int = 0) -> np.random.Generator:
    """The generator at an address: what for (stream), for whom (worker), which time (index)."""
    return np.random.Generator(np.random.PCG64(address(seed, stream, worker, index)))


def torch_seed(seed: int, stream: str, worker: int = 0, index: int = 0) -> int:
    """The same address as a seed for torch's generator (initial weights, dropout)."""
    return int(address(seed, stream, worker, index).generate_state(1, np.uint64)[0])


def address(seed: int, stream: str, worker: int, index: int) -> np.random.SeedSequence:
    numbers = (seed, zlib.crc32(stream.encode()), worker, index)
    # numpy takes a tuple to pieces number by number, an array at once; a large seed is several of its words
    return np.random.SeedSequence(np.array(numbers, np.uint32) if seed < 2**32 else numbers)
