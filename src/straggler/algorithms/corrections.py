"""WHAT: the catalogue of corrections, which change a stale gradient before it is used."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from straggler.config.registry import Catalogue, parse_entry
from straggler.core import Aggregation, Arrival, Correction, Optimizer, Policy, Server, Shapes


class Uncorrected(Correction):
    """Use the gradient as it is."""

    name: ClassVar[str] = "none"

    def correct(self, gradient: Tensor, arrival: Arrival, server: Server) -> tuple[Tensor, float]:
        return gradient, 1.0


class StalenessWeight(Correction):
    """A factor that depends only on the staleness, for the learning rate or for the gradient.

    For plain SGD the two are equal; with momentum, scaling the learning rate also scales the old velocity.
    """

    scale: Literal["lr", "gradient"] = "lr"

    @abstractmethod
    def weight(self, staleness: int) -> float:
        """Return the factor for a gradient of this staleness."""

    def correct(self, gradient: Tensor, arrival: Arrival, server: Server) -> tuple[Tensor, float]:
        weight = self.weight(server.staleness(arrival.job))
        if self.scale == "lr" or weight == 1.0:
            return gradient, weight
        return gradient * weight, 1.0


class StalenessAware(StalenessWeight):
    """Divide by the staleness: 1/max(1, τ). Zhang et al. 2016."""

    name: ClassVar[str] = "staleness-aware"

    def weight(self, staleness: int) -> float:
        return 1 / max(1, staleness)


class Polynomial(StalenessWeight):
    """(1 + τ)⁻ᵃ. Xie et al. 2019 (FedAsync), Nguyen et al. 2022 (FedBuff)."""

    name: ClassVar[str] = "polynomial"
    a: float = Field(0.5, ge=0)

    def weight(self, staleness: int) -> float:
        return math.pow(1.0 + staleness, -self.a)


class Hinge(StalenessWeight):
    """1 up to τ = b, then 1/(a(τ − b) + 1). Xie et al. 2019 (FedAsync)."""

    name: ClassVar[str] = "hinge"
    a: float = Field(10.0, ge=0)
    b: int = Field(4, ge=0)

    def weight(self, staleness: int) -> float:
        return 1.0 if staleness <= self.b else 1 / (self.a * (staleness - self.b) + 1)


class DelayAdaptive(StalenessWeight):
    """N/max(N, τ) for N workers; a fresh gradient has τ = 0. Mishchenko et al. 2022."""

    name: ClassVar[str] = "delay-adaptive"
    _workers: int = PrivateAttr(1)

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._workers = workers

    def weight(self, staleness: int) -> float:
        workers = self._workers
        return workers / max(workers, staleness)


class Mixing(Correction):
    """Measure a worker's move from the current model: g + (x − x_then). Xie et al. 2019 (FedAsync).

    If g = x_then − xᵢ, where xᵢ is the worker's model, then SGD at rate α mixes the two models:
    x − α(x − xᵢ) = (1 − α)x + αxᵢ.
    """

    name: ClassVar[str] = "mixing"

    def correct(self, gradient: Tensor, arrival: Arrival, server: Server) -> tuple[Tensor, float]:
        now, then = server.x, arrival.job.x
        return (gradient, 1.0) if now is then else (gradient + (now - then), 1.0)


class Clip(Correction):
    """Limit the norm of each gradient to `norm`: g·min(1, c/‖g‖). Erickson and Johansson 2026."""

    name: ClassVar[str] = "clip"
    norm: float = Field(gt=0)

    def correct(self, gradient: Tensor, arrival: Arrival, server: Server) -> tuple[Tensor, float]:
        length = float(torch.linalg.vector_norm(gradient))
        return (gradient * (self.norm / length), 1.0) if length > self.norm else (gradient, 1.0)


class DelayCompensation(Correction):
    """First-order estimate of the current gradient: g + λ g⊙g⊙(w − w_then). Zheng et al. 2017 (DC-ASGD-c)."""

    name: ClassVar[str] = "dc"
    lam: float = Field(0.04, ge=0)

    def correct(self, gradient: Tensor, arrival: Arrival, server: Server) -> tuple[Tensor, float]:
        moved = server.x - arrival.job.x
        return torch.addcmul(gradient, gradient.square(), moved, value=self.lam), 1.0


class AdaptiveDelayCompensation(Correction):
    """DC with λ₀/√(mean square) per parameter. Zheng et al. 2017 (DC-ASGD-a, as in its code)."""

    name: ClassVar[str] = "dc-adaptive"
    lam0: float = Field(2.0, ge=0)
    m: float = Field(0.95, ge=0, lt=1)
    shared: bool = False  # one mean square for all workers instead of one per worker
    _mean_square: dict[int, Tensor] = PrivateAttr(default_factory=dict)

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._mean_square = {}

    def correct(self, gradient: Tensor, arrival: Arrival, server: Server) -> tuple[Tensor, float]:
        square, key = gradient.square(), 0 if self.shared else arrival.worker
        mean_square = self._mean_square.setdefault(key, torch.zeros_like(square)).lerp_(square, 1 - self.m)
        moved = server.x - arrival.job.x
        compensation = square.mul_(moved).div_((mean_square + 1e-7).sqrt_())
        return gradient.add(compensation, alpha=self.lam0), 1.0

    def left(self, worker: int) -> None:
        if not self.shared:
            self._mean_square.pop(worker, None)


@dataclass
class StepStatistics:
    """Running statistics of the server's steps, which are the unit of the gap."""

    mean_square: Tensor
    root: Tensor  # of the mean square, plus epsilon
    one: Tensor
    steps: int = 0
    max_lr: float = 0.0
    bias: float = 1.0  # corrects the running mean's start at zero


MEANS = ("mean", "by-samples", "worker-means")  # aggregations whose weights add up to 1


class GapAware(Correction):
    """Divide by the gap in units of typical steps: 1 + |w − w_then| / C. Barkai et al. 2020 (Gap-Aware).

    C is the largest learning rate so far times the root mean square of the momentum buffer (a running mean
    with bias correction), per parameter or as one number. Weight decay is divided too.
    """

    name: ClassVar[str] = "gap-aware"
    per: Literal["parameter", "model"] = "parameter"
    beta: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    _state: StepStatistics = PrivateAttr()

    def check(self, policy: Policy, aggregation: Aggregation, optimizer: Optimizer) -> None:
        if optimizer.decay() and aggregation.name not in MEANS:
            raise ValueError(
                f"{self} divides the weight decay of each gradient, which requires a mean of the step's "
                f"messages, got aggregation={aggregation}. Use aggregation='mean' or weight_decay=0."
            )

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        zero = torch.zeros_like(x if self.per == "parameter" else x[:1])
        self._state = StepStatistics(zero, torch.zeros_like(zero), torch.ones_like(x[:1]))

    def correct(self, gradient: Tensor, arrival: Arrival, server: Server) -> tuple[Tensor, float]:
        state = self._state
        if server.x is arrival.job.x or state.steps == 0:
            return gradient, 1.0
        state.max_lr = max(state.max_lr, server.lr)
        if state.max_lr == 0:  # the model has not moved yet
            return gradient, 1.0
        gap = server.x - arrival.job.x
        if self.per == "parameter":
            gap.abs_()
        else:
            gap = torch.linalg.vector_norm(gap).reshape(1) / len(gap) ** 0.5
        penalty = torch.addcdiv(state.one, gap, state.root, value=state.bias / state.max_lr, out=gap)
        decay = server.optimizer.decay()
        if decay:  # the step adds decay·w, so this leaves decay·w / penalty
            return (gradient + decay * server.x) / penalty - decay * server.x, 1.0
        out = penalty if self.per == "parameter" else None  # allocating memory costs more than the division
        return torch.div(gradient, penalty, out=out), 1.0

    def stepped(self, server: Server, before: Tensor, lr: float) -> None:
        state, velocity = self._state, server.optimizer.velocity()
        if velocity is None and lr == 0:
            return  # the model did not move, so its step has no size
        if velocity is None:  # other optimizers: the step in units of the learning rate
            velocity = (before - server.x) / lr
        if self.per == "parameter":
            state.mean_square.mul_(self.beta).addcmul_(velocity, velocity, value=1 - self.beta)
        else:
            state.mean_square.lerp_(velocity.square().mean().reshape(1), 1 - self.beta)
        state.steps += 1
        state.max_lr = max(state.max_lr, lr)
        state.bias = (1 - self.beta**state.steps) ** 0.5
        torch.sqrt(state.mean_square, out=state.root).add_(self.eps * state.bias)


class Chain(Correction):
    """Several corrections in sequence, as in `clip(norm=1) + dc`."""

    name: ClassVar[str] = "chain"
    links: tuple[Correction, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.links))

    def identity(self) -> str:
        return " + ".join(link.identity() for link in self.links)

    def check(self, policy: Policy, aggregation: Aggregation, optimizer: Optimizer) -> None:
        for link in self.links:
            link.check(policy, aggregation, optimizer)
        *before, last = self.links
        if not optimizer.decay():
            return
        if any(isinstance(link, GapAware) for link in before):
            raise ValueError(
                f"{self}: a correction after gap-aware would not leave the weight decay divided. "
                f"Put gap-aware last, or use weight_decay=0."
            )
        if (
            isinstance(last, GapAware)
            and policy.merges(2)
            and any(isinstance(link, StalenessWeight) and link.scale == "lr" for link in before)
        ):
            raise ValueError(
                f"{self}: {policy} merges several gradients, so a learning-rate factor would not leave "
                f"the weight decay divided. Use scale=gradient or weight_decay=0."
            )

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        for link in self.links:
            link.begin(x, workers, shapes)

    def correct(self, gradient: Tensor, arrival: Arrival, server: Server) -> tuple[Tensor, float]:
        total = 1.0
        for link in self.links:
            gradient, scale = link.correct(gradient, arrival, server)
            total *= scale
        return gradient, total

    def stepped(self, server: Server, before: Tensor, lr: float) -> None:
        for link in self.links:
            link.stepped(server, before, lr)

    def left(self, worker: int) -> None:
        for link in self.links:
            link.left(worker)

    def state(self) -> dict[str, Any]:
        return {str(position): link.state() for position, link in enumerate(self.links)}

    def restore(self, state: dict[str, Any]) -> None:
        for position, link in enumerate(self.links):
            link.restore(state[str(position)])


WEIGHTS: list[type[Correction]] = [StalenessAware, Polynomial, Hinge, DelayAdaptive]
CHANGES: list[type[Correction]] = [Mixing, Clip, DelayCompensation, AdaptiveDelayCompensation, GapAware]
CORRECTIONS = Catalogue("correction", "corrections", Correction, [Uncorrected, *WEIGHTS, *CHANGES])


def parse_correction(value: Any) -> Correction:
    """Return the correction that a value stands for; `a + b` and lists are chains."""
    if isinstance(value, Chain):
        return value
    texts = value.split(" + ") if isinstance(value, str) else value if isinstance(value, list) else [value]
    if not texts:
        raise ValueError("correction=[] is empty. Use none, or name a correction.")
    links = tuple(parse_entry(text, CORRECTIONS) for text in texts)
    return links[0] if len(links) == 1 else Chain(links=links)
