"""Arrivals per second without gradients. Run on a quiet machine, for example with `taskset -c 0`.

The first table is the event loop (train, Server, Simulator, Durations) with a problem that costs nothing. The
second is `straggler speedup` where no worker waits or all start together: whole blocks of durations at once.
"""

import argparse
import time
from collections.abc import Callable

from rich.console import Console

from straggler.algorithms.policies import POLICIES
from straggler.analysis.tables import build_table
from straggler.config.registry import parse_entry
from straggler.timing.durations import Durations
from straggler.timing.laws import DELAYS
from straggler.timing.throughput import Throughput, measure_by_simulation, measure_throughput

console = Console()
SIZES = (10, 64, 1_000, 10_000)
LOOP = ("asynchronous", "synchronous", "ssp(bound=3)", "k-async(k={half})", "k-batch-sync(k={half})")
LOOP += ("hybrid({half}, 3)",)  # k and the staleness tolerance
BLOCKS = ("asynchronous", "k-batch-async(k={half})", "synchronous", "k-sync(k={half})")


def arrivals_per_second(
    measure: Callable[..., Throughput], policy: str, compute: str, workers: int, arrivals: int, rounds: int
) -> float:
    """Return the best of several rounds, in CPU time of one core; drawing the durations is included."""
    component, rates = parse_entry(policy.format(half=workers // 2), POLICIES), []
    arrivals = max(arrivals, 128 * workers)  # whole blocks of durations, and the start does not matter
    updates = max(1, arrivals // component.gradients_per_step(workers))
    for seed in range(rounds):
        durations = Durations(parse_entry(compute, DELAYS), [], workers, seed)
        started = time.process_time()
        gradients = measure(component, durations, updates).gradients
        rates.append(gradients / (time.process_time() - started))
    return max(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arrivals", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compute", default="gamma(mean=128, cv=0.1)")
    parser.add_argument("--policy", action="append", help="only these policies of the first table")
    given = parser.parse_args()
    tables = [("Arrivals per second, event loop", measure_by_simulation, given.policy or LOOP)]
    if not given.policy:
        tables.append(("Arrivals per second, whole blocks", measure_throughput, BLOCKS))
    for title, measure, policies in tables:
        rows = []
        for policy in policies:
            rates = [
                arrivals_per_second(measure, policy, given.compute, size, given.arrivals, given.rounds)
                for size in SIZES
            ]
            rows.append([policy.replace("{half}", "N/2"), *(f"{rate:,.0f}" for rate in rates)])
        console.print(build_table(title, ["policy", *(f"N = {size:,}" for size in SIZES)], rows))


if __name__ == "__main__":
    main()
