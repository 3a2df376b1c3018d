"""Addressed randomness: the same address gives the same draws, in any order and in any process."""

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def addressed_rng(seed: int, stream: str, worker: int = 0, index: int = 0) -> np.random.Generator:
    """Return the numpy generator at an address: the stream is the purpose, the index counts its uses."""
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, stream, worker, index)))


def torch_seed(seed: int, stream: str, worker: int = 0, index: int = 0) -> int:
    """Return a seed for torch's generator at an address (initial weights, dropout)."""
    return int(seed_sequence(seed, stream, worker, index).generate_state(1, np.uint64)[0])


def seed_sequence(seed: int, stream: str, worker: int, index: int) -> np.random.SeedSequence:
    """Return numpy's seed sequence of an address."""
    numbers = (seed, zlib.crc32(stream.encode()), worker, index)
    # numpy converts an array faster than a tuple; a seed of 2³² or more does not fit into a uint32
    return np.random.SeedSequence(np.array(numbers, np.uint32) if seed < 2**32 else numbers)


def seed_global_generators(seed: int, device: torch.device | None = None) -> None:
    """Seed the global generators of torch, random and numpy, which models and transforms may use.

    With an accelerator as the device, also seed the generators of its type.
    """
    torch.default_generator.manual_seed(seed)
    if device is not None and device.type != "cpu":
        module: Any = torch.get_device_module(device)
        (getattr(module, "manual_seed_all", None) or module.manual_seed)(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002


@contextmanager
def preserve_global_generators() -> Iterator[None]:
    """Restore the states of the global generators of torch, random and numpy on exit."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
