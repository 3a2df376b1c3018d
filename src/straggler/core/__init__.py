"""Messages, interfaces, server and loop."""

from straggler.core.interfaces import Correction, Diverged, Engine, Optimizer, Policy
from straggler.core.messages import Arrival, Change, Decision, Gradient, Job
from straggler.core.server import Server

__all__ = [
    "Arrival",
    "Change",
    "Correction",
    "Decision",
    "Diverged",
    "Engine",
    "Gradient",
    "Job",
    "Optimizer",
    "Policy",
    "Server",
]
