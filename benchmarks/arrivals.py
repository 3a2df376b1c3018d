"""Arrivals per second without gradients: what `straggler speedup` can count. Run on a quiet machine.

Where nobody waits and where all start together, blocks of durations at once; else the policies themselves.
"""

import argparse
import statistics
import time

from rich.console import Console

from straggler.algorithms.policies import POLICIES
from straggler.analysis.tables import build_table
from straggler.config.registry import parse_entry
from straggler.timing import DELAYS, Durations
from straggler.timing.throughput import measure_throughput, through_policy

console = Console()
SIZES = (8, 64, 1024)
BLOCKS = ("asynchronous", "k-batch-async(k={half})", "synchronous", "k-sync(k={half})")
WAITING = ("synchronous", "ssp(bound=3)", "k-async(k={half})", "k-batch-sync(k={half})")
WAITING += ("hybrid({half}, 3)",)  # k and the staleness tolerance


def rate(way, policy: str, compute: str, workers: int, arrivals: int, rounds: int) -> float:
    """Arrivals per second of one core (CPU time), the median of several runs; the draws are part of it."""
    piece = parse_entry(policy.format(half=workers // 2), POLICIES)
    seen = []
    for seed in range(rounds):
        durations = Durations(parse_entry(compute, DELAYS), [], workers, seed)
        updates = arrivals // getattr(piece, "k", getattr(piece, "num_workers_ps_update", 1))
        updates = updates // workers if piece.name == "synchronous" else updates
        started = time.process_time()
        gradients = way(piece, durations, max(1, updates)).gradients
        seen.append(gradients / (time.process_time() - started))
    return statistics.median(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arrivals", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compute", default="gamma(mean=128, cv=0.1)")
    arguments = parser.parse_args()
    for title, way, policies in (
        ("Arrivals per second, whole blocks", measure_throughput, BLOCKS),
        ("Arrivals per second, through the policy", through_policy, WAITING),
    ):
        rows = []
        for policy in policies:
            rates = [
                rate(way, policy, arguments.compute, size, arguments.arrivals, arguments.rounds)
                for size in SIZES
            ]
            rows.append([policy.replace("{half}", "N/2"), *(f"{found:,.0f}" for found in rates)])
        console.print(build_table(title, ["policy", *(f"N = {size:,}" for size in SIZES)], rows))


if __name__ == "__main__":
    main()
