"""How long a job takes: a law for its gradient (compute) plus any number of delays."""

from straggler.timing.durations import DurationError, Durations
from straggler.timing.laws import DELAYS, Law, Memoryless

__all__ = ["DELAYS", "DurationError", "Durations", "Law", "Memoryless"]
