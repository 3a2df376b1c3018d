"""How long a job takes, how long models and messages travel, and when workers are present."""

from straggler.timing.churn import CHURN, Churn, ChurnLaw
from straggler.timing.durations import DurationError, Durations
from straggler.timing.laws import DELAYS, Law, Memoryless
from straggler.timing.links import LINKS, Link, Network

__all__ = [
    "CHURN",
    "DELAYS",
    "LINKS",
    "Churn",
    "ChurnLaw",
    "DurationError",
    "Durations",
    "Law",
    "Link",
    "Memoryless",
    "Network",
]
