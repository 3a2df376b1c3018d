"""Straggler: what happens to SGD when workers are not equally fast."""

import os
from ctypes import CDLL
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from straggler.config.registry import InputError
    from straggler.core import Arrival, Correction, Engine, Gradient, Job, Optimizer, Policy, Server
    from straggler.experiment import Experiment
    from straggler.record import Record

__all__ = [
    "Arrival",
    "Correction",
    "Engine",
    "Experiment",
    "Gradient",
    "InputError",
    "Job",
    "Optimizer",
    "Policy",
    "Record",
    "Server",
]

# Every step has a model in new memory: in huge pages a large one is there three times as fast.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# glibc gives what a gradient frees back to the system, and the next one asks for it anew, page by page. It is
# told to keep up to 1 GiB (M_TRIM_THRESHOLD), in pieces of up to 32 MiB (M_MMAP_THRESHOLD, its limit).
if mallopt := getattr(CDLL(None), "mallopt", None):  # others than glibc have none
    mallopt(-1, 1 << 30)
    mallopt(-3, 32 << 20)

_HOMES = {"Experiment": "experiment", "Record": "record", "InputError": "config.registry"}


def __getattr__(name: str) -> Any:
    """Import on first use: a process that only computes gradients does without the rest."""
    if name not in __all__:
        raise AttributeError(f"module 'straggler' has no attribute {name!r}")
    return getattr(import_module(f"straggler.{_HOMES.get(name, 'core')}"), name)
