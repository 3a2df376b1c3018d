"""The definition of "did not converge".

A run did not converge if
- a loss or a weight is not finite (for a loss, the server raises Diverged, which ends the run),
- the network collapsed: it gave every input the same output for an epoch (CollapseDetector raises Diverged),
- a classifier's final test accuracy is at most CHANCE_MARGIN points above chance (for text: above the share
  of the most frequent token), or
- without classes (regression, quadratics), the final loss exceeds the loss of the initial model by more than
  EXPLOSION times its magnitude.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from straggler.core import Diverged, Problem
from straggler.running.checkpoints import register_state

CHANCE_MARGIN = 2.0  # percentage points
EXPLOSION = 10.0
CHECKS_PER_EPOCH = 4


def has_converged(
    problem: Problem, x: Tensor, scores: Mapping[str, Any], initial_loss: float | None = None
) -> bool:
    """Return whether a run that spent its budget converged.

    `scores` has the final test accuracy (None without classes) and losses; `initial_loss` is the loss of the
    initial model on the same data as the final one, needed only without classes.
    """
    if not bool(torch.isfinite(x).all()):
        return False
    if scores["test_accuracy"] is not None:
        chance = max(100 / len(problem.classes), getattr(problem, "chance", 0.0))
        return bool(scores["test_accuracy"] > chance + CHANCE_MARGIN)
    final_loss = scores.get("test_loss")
    if final_loss is None or not initial_loss:  # a loss of zero has no magnitude to compare with
        return True
    return bool(final_loss <= initial_loss + EXPLOSION * abs(initial_loss))


@register_state
@dataclass
class CollapseState:
    """The state of a CollapseDetector in a checkpoint."""

    next_check: float = 1 / CHECKS_PER_EPOCH  # epochs
    failed_checks: int = 0  # in a row


class CollapseDetector:
    """Detect a collapsed network: every quarter epoch, check that a fixed set of inputs still produces
    different outputs.

    A layer whose ReLUs are all inactive passes on neither inputs nor gradients: only momentum still moves the
    layers before it. After an epoch of constant output the network does not recover.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.state = problem, CollapseState()

    def check(self, epochs: float, x: Tensor, buffers: Tensor) -> None:
        """Raise Diverged if the output has been constant for an epoch."""
        if epochs < self.state.next_check:
            return
        self.state.next_check = (int(epochs * CHECKS_PER_EPOCH) + 1) / CHECKS_PER_EPOCH
        varied = self.problem.evaluate(x, buffers, "train", 0).varied
        self.state.failed_checks = 0 if varied else self.state.failed_checks + 1
        if self.state.failed_checks > CHECKS_PER_EPOCH:
            raise Diverged(
                f"The network collapsed: for an epoch every input gave the same output; "
                f"stopped after {epochs:.2f} epochs."
            )
