"""HOW: optimizers whose momentum takes account of stale messages.

The learning rate is outside every buffer, as in torch: v ← μv + g, x ← x − ηv. Only `predict` has a
`velocity`; the buffers of the others do not have the size of a step, which gap-aware needs.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from straggler.core import Optimizer, Shapes


def divide_up(number: int, size: int) -> int:
    """Return ⌈number/size⌉."""
    return -(-number // size)


@dataclass
class OrderedState:
    """The momentum of OrMo."""

    velocity: Tensor
    bucket: int  # gradients per bucket
    steps: int = 0


class OrMo(Optimizer):
    """Put each gradient where its version belongs in the momentum. Shi et al. 2024 (OrMo).

    Versions are divided into buckets of N. Step k is in bucket ⌈k/N⌉, and the gradient's bucket is
    a = ⌈k/N⌉ − ⌈version/N⌉ buckets old. The first step of a bucket does v ← μv, x ← x − ηv. Every step does
    v ← v + μᵃg, x ← x − η(1 + μ + … + μᵃ)g. The paper keeps η in v; both agree while η is constant.
    With a staleness weight, use `scale=gradient`, which scales the gradient's share of v as in OrMo-DA.
    """

    name: ClassVar[str] = "ormo"
    per_worker: ClassVar[bool] = True  # the mean of several messages would have no single version
    momentum: float = Field(0.9, ge=0, lt=1)
    bucket: int | None = Field(None, ge=1)  # gradients per bucket; none: the number of workers
    _state: OrderedState = PrivateAttr()

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._state = OrderedState(torch.zeros_like(x), self.bucket or workers)

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int, version: int) -> Tensor:
        state, momentum = self._state, self.momentum
        current = divide_up(state.steps, state.bucket)
        age = current - divide_up(version, state.bucket)
        if momentum and current > divide_up(state.steps - 1, state.bucket):
            state.velocity.mul_(momentum)
            x = x.add(state.velocity, alpha=-lr)
        state.velocity.add_(direction, alpha=momentum**age)
        state.steps += 1
        return x.add(direction, alpha=-lr * ((1 - momentum ** (age + 1)) / (1 - momentum)))


@dataclass
class DelayedState:
    """The momentum of Delayed Nesterov."""

    velocity: Tensor
    total: Tensor  # of the gradients since the last momentum step
    every: int
    held: int = 0  # gradients in the total


class DelayedNesterov(Optimizer):
    """Apply 1/N of each gradient on arrival, and the momentum at every N-th. Liu et al. 2024.

    x ← x − ηg/N; at every N-th step also v ← μv + mean of the N gradients, x ← x − ημv. N steps equal one
    Nesterov step on the mean of their gradients.
    """

    name: ClassVar[str] = "delayed-nesterov"
    momentum: float = Field(0.9, ge=0, lt=1)
    every: int | None = Field(None, ge=1)  # N; none: the number of workers
    _state: DelayedState = PrivateAttr()

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._state = DelayedState(torch.zeros_like(x), torch.zeros_like(x), self.every or workers)

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int, version: int) -> Tensor:
        state = self._state
        x = x.add(direction, alpha=-lr / state.every)
        state.total.add_(direction)
        state.held += 1
        if state.held == state.every:
            state.velocity.mul_(self.momentum).add_(state.total, alpha=1 / state.every)
            state.total.zero_()
            state.held = 0
            if self.momentum:
                x.add_(state.velocity, alpha=-lr * self.momentum)
        return x


@dataclass
class CycleState:
    """The momentum of SMEGA²."""

    velocity: Tensor
    total: Tensor  # of the gradients in this cycle
    workers: int
    held: int = 0  # steps in this cycle


class Smega2(Optimizer):
    """SMEGA²: one momentum for all workers, updated once per N steps. Cohen et al. 2022.

    x ← x − η(g + μv); after every N-th step v ← μv + mean of the N gradients. A worker receives the model
    after N more steps without gradients: x − ημ[(N − c + cμ)v + (c/N)G], where c of the current N steps are
    done and G is the sum of their gradients.
    """

    name: ClassVar[str] = "smega2"
    momentum: float = Field(0.9, ge=0, lt=1)
    _state: CycleState = PrivateAttr()

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._state = CycleState(torch.zeros_like(x), torch.zeros_like(x), workers)

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int, version: int) -> Tensor:
        state = self._state
        moved = x.add(direction, alpha=-lr)
        if self.momentum:
            moved.add_(state.velocity, alpha=-lr * self.momentum)
        state.total.add_(direction)
        state.held += 1
        if state.held == state.workers:
            state.velocity.mul_(self.momentum).add_(state.total, alpha=1 / state.workers)
            state.total.zero_()
            state.held = 0
        return moved

    def send(self, x: Tensor, lr: float, worker: int) -> Tensor:
        state, ahead = self._state, -lr * self.momentum
        if not self.momentum:
            return x
        weight = state.workers - state.held + state.held * self.momentum
        x = x.add(state.velocity, alpha=ahead * weight)
        return x.add_(state.total, alpha=ahead * state.held / state.workers) if state.held else x


@dataclass
class PredictionState:
    """The velocity of SGD, and how far ahead to predict."""

    velocity: Tensor
    steps: int


class Predict(Optimizer):
    """SGD with momentum that sends workers the model predicted for the time of their arrival.

    lookahead: x − ημv (Ajanthan et al. 2025). spectrain: x − sηv, for s steps at the current velocity
    (Chen et al. 2018). msnag: x − η(μ + … + μˢ)v, for s steps without new gradients (Eliad et al. 2021).
    """

    name: ClassVar[str] = "predict"
    momentum: float = Field(0.9, ge=0, lt=1)
    rule: Literal["lookahead", "spectrain", "msnag"] = "lookahead"
    steps: int | None = Field(None, ge=0)  # s; none: workers − 1, the mean staleness. Not used by lookahead
    weight_decay: float = Field(0.0, ge=0)
    _state: PredictionState = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Raise ValueError for a number of steps that the rule does not use."""
        if self.rule == "lookahead" and self.steps is not None:
            raise ValueError(
                f"steps={self.steps} has no effect with rule=lookahead. Use rule=spectrain or rule=msnag."
            )

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._state = PredictionState(torch.zeros_like(x), workers - 1 if self.steps is None else self.steps)

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int, version: int) -> Tensor:
        if self.weight_decay:
            direction = direction.add(x, alpha=self.weight_decay)
        return x.add(self._state.velocity.mul_(self.momentum).add_(direction), alpha=-lr)

    def distance(self, steps: int) -> float:
        """Return how far the model is predicted ahead, in multiples of ηv."""
        momentum = self.momentum
        if self.rule == "spectrain":
            return float(steps)
        powers = 1 if self.rule == "lookahead" else steps
        return (momentum - momentum ** (powers + 1)) / (1 - momentum)

    def send(self, x: Tensor, lr: float, worker: int) -> Tensor:
        state = self._state
        distance = self.distance(state.steps)
        return x.add(state.velocity, alpha=-lr * distance) if distance else x

    def velocity(self) -> Tensor | None:
        return self._state.velocity

    def decay(self) -> float:
        return self.weight_decay


@dataclass
class MomentsState:
    """The moments of AMSGrad."""

    mean: Tensor
    square: Tensor
    largest: Tensor  # of the mean squares
    steps: int = 0


class Fadas(Optimizer):
    """AMSGrad with the learning rate divided by the largest staleness of a step. Wang et al. 2024 (FADAS).

    m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g², v̂ ← max(v̂, v), and after the t-th step
    x ← x − η·m/(1 − β₁ᵗ) / (√(v̂/(1 − β₂ᵗ)) + ε), where η becomes η/τ if τ > tau_c.
    """

    name: ClassVar[str] = "fadas"
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = Field(1e-8, ge=0)
    tau_c: int = Field(1, ge=1)  # largest staleness at the full learning rate
    _state: MomentsState = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Raise ValueError for betas outside [0, 1)."""
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be at least 0 and below 1, got {list(self.betas)}")

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._state = MomentsState(torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x))

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int, version: int) -> Tensor:
        state, (first, second) = self._state, self.betas
        staleness = state.steps - version
        state.steps += 1
        state.mean.lerp_(direction, 1 - first)
        state.square.mul_(second).addcmul_(direction, direction, value=1 - second)
        torch.maximum(state.largest, state.square, out=state.largest)
        root = state.largest.sqrt().div_((1 - second**state.steps) ** 0.5).add_(self.eps)
        rate = lr / staleness if staleness > self.tau_c else lr
        return x.addcdiv(state.mean, root, value=-rate / (1 - first**state.steps))
