"""How much did the times of batches vary in the EPFL report's runs? What its log of total times can say.

The log has no times of single batches. But the runs of a network, with or without a split, did equally many
batches in nearly the same time. If batch times were independent, the coefficient of variation (cv) of a batch
would be that of a run's total, times the square root of the number of batches. Runs also differ for other
reasons, such as other programs, so this is an upper bound. The last worker to finish ends a run. Two extremes
are printed: a core for each worker, and one queue for the batches of all workers.
"""

import math
from collections import defaultdict

import numpy as np
from scipy import stats

from straggler.reproduction import load_study
from straggler.reproduction.study import read_numbers

WORKERS, EPOCHS, BATCH, SAMPLES = 5, 6, 32, 60_000
MAX_OF_FIVE = 0.669  # standard deviation of the largest of five normal numbers of deviation 1


def count_batches(split: str) -> int:
    """Return the number of batches of one worker: a tenth is for validation if the data are not split."""
    share = 0.9 * SAMPLES if split == "no split" else SAMPLES / WORKERS
    return EPOCHS * math.ceil(share / BATCH)


def main() -> None:
    """Print the bounds of each network and split, and of all together."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in read_numbers(load_study("epfl").folder):
        if row["table"].startswith("log"):
            same_work = "no split" if row["split"] == "no split" else "split"
            times[row["model"], same_work].append(math.log(row["host_seconds"]))
    print(
        "network  split     runs  batches  cv of the total  of a batch: own cores  one queue  95 % interval"
    )
    for (model, split), logs in sorted(times.items()):
        batches = count_batches(split)
        total, degrees = float(np.std(logs, ddof=1)), len(logs) - 1
        own = total / MAX_OF_FIVE * math.sqrt(batches)
        shared = total * math.sqrt(WORKERS * batches)
        low, high = (math.sqrt(degrees / stats.chi2.ppf(p, degrees)) for p in (0.975, 0.025))
        print(
            f"{model:8} {split:9} {len(logs):4} {batches:8,} {100 * total:14.2f} % {own:21.2f} {shared:10.2f}"
            f"  × {low:.2f} to {high:.2f}"
        )


if __name__ == "__main__":
    main()
