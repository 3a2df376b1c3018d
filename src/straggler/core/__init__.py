"""Messages, interfaces, the server and the event loop."""

from straggler.core.interfaces import (
    Aggregation,
    Channel,
    Correction,
    Diverged,
    Engine,
    EvaluationChunk,
    Optimizer,
    Policy,
    Problem,
    Shapes,
    Split,
    Work,
)
from straggler.core.messages import Arrival, Change, Decision, Job, Message
from straggler.core.program import WorkerProgram
from straggler.core.server import Server

__all__ = [
    "Aggregation",
    "Arrival",
    "Change",
    "Channel",
    "Correction",
    "Decision",
    "Diverged",
    "Engine",
    "EvaluationChunk",
    "Job",
    "Message",
    "Optimizer",
    "Policy",
    "Problem",
    "Server",
    "Shapes",
    "Split",
    "Work",
    "WorkerProgram",
]
