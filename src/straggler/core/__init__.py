"""Messages, interfaces, the server and the event loop."""

from straggler.core.interfaces import (
    Correction,
    Diverged,
    Engine,
    EvaluationChunk,
    Optimizer,
    Policy,
    Problem,
    Split,
)
from straggler.core.messages import Arrival, Change, Decision, Gradient, Job
from straggler.core.server import Server

__all__ = [
    "Arrival",
    "Change",
    "Correction",
    "Decision",
    "Diverged",
    "Engine",
    "EvaluationChunk",
    "Gradient",
    "Job",
    "Optimizer",
    "Policy",
    "Problem",
    "Server",
    "Split",
]
