"""Randomness is addressed, never consumed: the same address gives the same draws, whoever asks, whenever."""

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def addressed_rng(seed: int, stream: str, worker: int = 0, index: int = 0) -> np.random.Generator:
    """The generator at an address: what for (stream), for whom (worker), which time (index)."""
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, stream, worker, index)))


def torch_seed(seed: int, stream: str, worker: int = 0, index: int = 0) -> int:
    """The same address as a seed for torch's generator (initial weights, dropout)."""
    return int(seed_sequence(seed, stream, worker, index).generate_state(1, np.uint64)[0])


def seed_sequence(seed: int, stream: str, worker: int, index: int) -> np.random.SeedSequence:
    numbers = (seed, zlib.crc32(stream.encode()), worker, index)
    # numpy takes a tuple to pieces number by number, an array at once; a large seed is several of its words
    return np.random.SeedSequence(np.array(numbers, np.uint32) if seed < 2**32 else numbers)


def seed_global_generators(seed: int) -> None:
    """Let the three generators that models and transforms may ask draw from this seed."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002


@contextmanager
def preserve_global_generators() -> Iterator[None]:
    """Give these generators back as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
