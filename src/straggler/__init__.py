"""Straggler: what happens to SGD when workers are not equally fast."""

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

_HOMES = {"Experiment": "experiment", "Record": "record", "InputError": "config.registry"}


def __getattr__(name: str) -> Any:
    """Import on first use: a process that only computes gradients does without the rest."""
    if name not in __all__:
        raise AttributeError(f"module 'straggler' has no attribute {name!r}")
    return getattr(import_module(f"straggler.{_HOMES.get(name, 'core')}"), name)
