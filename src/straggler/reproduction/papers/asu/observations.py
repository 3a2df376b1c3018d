"""The observations that the ASU report makes of its tables 7 to 12, accuracy only, as claims.

What it says of time is of five workers on four cores (two for Fashion-MNIST): in virtual time, where each
worker has its own machine, most of it follows from the counts. Of that only the most striking are judged, in
asu_claims.
"""

import math
from typing import NamedTuple

from straggler.analysis.claims import Claim, Evidence
from straggler.reproduction.papers.asu.statistics import ASYNC, SYNC, gain


class Observation(NamedTuple):
    """A changed run against a baseline, each a table and a row, and where the difference must lie."""

    key: str
    statement: str
    changed: tuple[str, str]
    baseline: tuple[str, str]
    least: float = -math.inf
    most: float = math.inf
    comment: str = ""
    constructed: bool = False  # the two are one and the same run here

    def claim(self) -> Claim:
        """As coded; where the statistics are untrained, with the trained ones as evidence."""
        table, row = self.changed
        beside = "statistics that nobody updated, " if self.baseline[0] == "6" else ""
        trained = Evidence(
            "the same weights with the statistics that the workers had",
            gain(table, row, self.baseline, fact="test_accuracy"),
        )
        return Claim(
            self.key,
            self.statement,
            f"Table {table}",
            f"accuracy of `{row}` minus {self.baseline[1]}, {beside}as coded",
            gain(table, row, self.baseline),
            self.least,
            self.most,
            constructed=self.constructed,
            causes=(trained,) if beside else (),
            comment=self.comment,
        )


NEVER_ACTS = (
    "Among equally fast workers nobody gets ten ahead: the rule never acts, and the runs are the same."
)
HALF = "Half the batch for the same number of iterations is half the work."

OBSERVED = (
    Observation(
        "tolerance-helps-mnist",
        "staleness_tolerance = 10 improves asynchronous MNIST.",
        ("8", "tolerance = 10"),
        ("4", ASYNC),
        least=0.2,
        comment=NEVER_ACTS,
        constructed=True,
    ),
    Observation(
        "pull-2-harms-mnist",
        "pull_weights_interval_rule = 2 harms the accuracy of synchronous MNIST.",
        ("7", "pull = 2"),
        ("4", SYNC),
        most=0,
    ),
    Observation(
        "best-sync-mnist",
        "The best synchronous change on MNIST (six workers, batch 64) is as accurate as the baseline.",
        ("7", "workers = 6, k = 6, batch_size = 64"),
        ("4", SYNC),
        least=-1,
        most=1,
    ),
    Observation(
        "tolerance-helps-cifar",
        "staleness_tolerance = 10 slightly improves asynchronous CIFAR-10.",
        ("10", "tolerance = 10"),
        ("5", ASYNC),
        least=0.2,
        comment=NEVER_ACTS,
        constructed=True,
    ),
    Observation(
        "six-workers-like-five-cifar",
        "With six workers synchronous CIFAR-10 is as accurate as the baseline.",
        ("9", "workers = 6, k = 6"),
        ("5", SYNC),
        least=-1,
        most=1,
    ),
    Observation(
        "four-workers-cost-cifar",
        "With four workers synchronous CIFAR-10 is less accurate than baseline asynchronous.",
        ("9", "workers = 4, k = 4"),
        ("5", ASYNC),
        most=0,
        comment="Four workers do a fifth less work, and four summed gradients are a shorter step.",
    ),
    Observation(
        "rate-changes-nothing-cifar",
        "A learning rate of .05 keeps the accuracy of synchronous CIFAR-10.",
        ("9", "lr = 0.05"),
        ("5", SYNC),
        least=-1,
        most=1,
    ),
    Observation(
        "k2-like-sync-cifar",
        "With num_workers_ps_update = 2 asynchronous CIFAR-10 is as accurate as baseline synchronous.",
        ("10", "k = 2"),
        ("5", SYNC),
        least=-1,
        most=1,
    ),
    Observation(
        "higher-rate-helps-cifar",
        "A learning rate of .05 makes asynchronous CIFAR-10 more accurate.",
        ("10", "lr = 0.05"),
        ("5", ASYNC),
        least=0,
    ),
    Observation(
        "batch-64-costs-sync-cifar",
        "With batch 64 synchronous CIFAR-10 is less accurate than baseline asynchronous.",
        ("9", "batch_size = 64"),
        ("5", ASYNC),
        most=0,
        comment=HALF,
    ),
    Observation(
        "batch-64-costs-async-cifar",
        "Batch 64 makes asynchronous CIFAR-10 less accurate.",
        ("10", "batch_size = 64"),
        ("5", ASYNC),
        most=0,
        comment=HALF,
    ),
    Observation(
        "pull-2-harms-cifar",
        "With pull_weights_interval_rule = 2 synchronous CIFAR-10 is less accurate than asynchronous.",
        ("9", "pull = 2"),
        ("5", ASYNC),
        most=0,
    ),
    Observation(
        "fashion-four-workers",
        "With four workers synchronous Fashion-MNIST is as accurate as the baseline.",
        ("11", "workers = 4, k = 4"),
        ("6", SYNC),
        least=-5,
        most=5,
    ),
    Observation(
        "fashion-lower-rate-sync",
        "A learning rate of .01 improves synchronous Fashion-MNIST.",
        ("11", "lr = 0.01"),
        ("6", SYNC),
        least=0,
    ),
    Observation(
        "fashion-batch-64-sync",
        "Batch 64 greatly improves synchronous Fashion-MNIST.",
        ("11", "batch_size = 64"),
        ("6", SYNC),
        least=5,
    ),
    Observation(
        "fashion-pull-3",
        "pull_weights_interval_rule = 3 improves synchronous Fashion-MNIST.",
        ("11", "pull = 3"),
        ("6", SYNC),
        least=0,
    ),
    Observation(
        "fashion-best-sync",
        "The best hybrid of the synchronous baseline on Fashion-MNIST beats it.",
        ("11", "batch_size = 64, workers = 4, k = 4, lr = 0.01, pull = 2"),
        ("6", SYNC),
        least=0,
    ),
    Observation(
        "fashion-k-4",
        "num_workers_ps_update = 4 makes asynchronous Fashion-MNIST better than synchronous.",
        ("12", "k = 4"),
        ("6", SYNC),
        least=0,
    ),
    Observation(
        "fashion-tolerance",
        "staleness_tolerance = 100 does not improve asynchronous Fashion-MNIST.",
        ("12", "tolerance = 100"),
        ("6", ASYNC),
        most=0,
        comment="Nobody gets a hundred ahead: the rule never acts, and the runs are the same.",
        constructed=True,
    ),
    Observation(
        "fashion-lower-rate",
        "A learning rate of .01 greatly improves asynchronous Fashion-MNIST.",
        ("12", "lr = 0.01"),
        ("6", ASYNC),
        least=10,
        comment="Weights that moved less fit the initial statistics better.",
    ),
    Observation(
        "fashion-batch-64-async",
        "Batch 64 worsens asynchronous Fashion-MNIST.",
        ("12", "batch_size = 64"),
        ("6", ASYNC),
        most=0,
    ),
    Observation(
        "fashion-pull-3-async",
        "pull_weights_interval_rule = 3 improves asynchronous Fashion-MNIST.",
        ("12", "pull = 3"),
        ("6", ASYNC),
        least=0,
    ),
    Observation(
        "fashion-best-async",
        "The best hybrid of the asynchronous baseline on Fashion-MNIST is much better than synchronous.",
        ("12", "workers = 4, k = 3, lr = 0.01, pull = 3"),
        ("6", SYNC),
        least=10,
    ),
)

OBSERVATIONS = tuple(each.claim() for each in OBSERVED)
