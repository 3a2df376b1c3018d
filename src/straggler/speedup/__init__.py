"""How much faster a cluster is than one worker, without computing a gradient."""

from straggler.speedup.clusters import MACHINES, Repetition, densities, mean_seconds, policy_of, speedups
from straggler.speedup.tallies import Tally, tally, through_policy

__all__ = [
    "MACHINES",
    "Repetition",
    "Tally",
    "densities",
    "mean_seconds",
    "policy_of",
    "speedups",
    "tally",
    "through_policy",
]
