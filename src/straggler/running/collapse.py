"""Whether a network still tells its inputs apart: one that has not for an epoch is lost, as is its run."""

from torch import Tensor

from straggler.core import Diverged, Problem

LOOKS = 4  # per epoch


class CollapseDetector:
    """Looks now and then whether some training inputs still get different outputs.

    A layer whose ReLUs are all shut passes nothing on, and no gradient back: what comes before it never moves
    again but by the momentum that is left, so that after an epoch of the same output there is no return.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.next_look, self.silent = problem, 1 / LOOKS, 0

    def check(self, epochs: float, x: Tensor, buffers: Tensor) -> Diverged | None:
        """What is wrong, if it has been for an epoch."""
        if epochs < self.next_look:
            return None
        self.next_look = (int(epochs * LOOKS) + 1) / LOOKS
        varied = self.problem.evaluate(x, buffers, "train", 0).varied
        self.silent = 0 if varied else self.silent + 1
        if self.silent <= LOOKS:
            return None
        return Diverged(f"every input has had the same output for an epoch; ended after {epochs:.2f} epochs")
