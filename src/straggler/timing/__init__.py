"""How long a job takes: what the gradient takes (compute), plus any number of delays; each is a law."""

from straggler.timing.durations import DurationError, Durations
from straggler.timing.laws import (
    BLOCK,
    DELAYS,
    Constant,
    Exponential,
    Gamma,
    GammaMachines,
    Gaussian,
    Law,
    LogNormal,
    Memoryless,
    OnOff,
    Pareto,
    Power,
    Spikes,
    Term,
    Trace,
    Uniform,
)

__all__ = [
    "BLOCK",
    "DELAYS",
    "Constant",
    "DurationError",
    "Durations",
    "Exponential",
    "Gamma",
    "GammaMachines",
    "Gaussian",
    "Law",
    "LogNormal",
    "Memoryless",
    "OnOff",
    "Pareto",
    "Power",
    "Spikes",
    "Term",
    "Trace",
    "Uniform",
]
