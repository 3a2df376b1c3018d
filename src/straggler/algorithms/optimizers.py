"""HOW: any `torch.optim` class on the flat vector, and learning rates over the epochs."""

import inspect
import math
import re
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from pydantic import ConfigDict, Field, PrivateAttr, create_model
from torch import Tensor
from torch.optim import lr_scheduler

from straggler.config.registry import Catalogue, InputError, parse_call, suggest_name
from straggler.core import Optimizer

# Set elsewhere (lr) or about speed on other hardware; they are not part of what an optimizer is.
HIDDEN = {"params", "lr", "foreach", "maximize", "capturable", "differentiable", "fused"}
DECOUPLED = (torch.optim.AdamW, torch.optim.Adafactor)  # their weight decay does not go through the gradient


class TorchOptimizer(Optimizer):
    """A class of torch.optim on the whole model as one vector."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    torch_class: ClassVar[type[torch.optim.Optimizer]]
    bare_step: ClassVar[Callable[[torch.optim.Optimizer], Any]]  # without hooks for profilers and compilers
    _parameter: torch.nn.Parameter = PrivateAttr()
    _torch: torch.optim.Optimizer = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Try it once, so that what torch refuses is refused now."""
        if getattr(self, "nesterov", False) and not getattr(self, "momentum", 1.0):
            raise ValueError(
                "nesterov needs a momentum: give momentum=0.9, or --no-nesterov (nesterov=false)"
            )
        try:
            self.begin(torch.zeros(2), workers=1)
            self.step(torch.zeros(2), torch.ones(2), lr=0.1, worker=0)
        except Exception as error:
            raise ValueError(f"torch.optim.{self.torch_class.__name__} refuses it: {error}") from None

    def begin(self, x: Tensor, workers: int) -> None:
        self._parameter = torch.nn.Parameter(x.data)  # whose changes do not count as changes of x
        settings = {key: tupled(getattr(self, key)) for key in type(self).model_fields}
        if "foreach" in inspect.signature(self.torch_class).parameters:
            settings["foreach"] = False  # what torch chooses for one vector, after some thought at every step
        momentum = settings.get("momentum", 0.0)
        if momentum < 0:  # torch's constructors refuse what their steps can do
            settings["momentum"] = -momentum
        self._torch = self.torch_class([self._parameter], **settings)
        if momentum < 0:
            self._torch.param_groups[0]["momentum"] = momentum

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int) -> Tensor:
        moved = x.clone()
        self._parameter.data, self._parameter.grad = moved, direction
        self._torch.param_groups[0]["lr"] = lr
        with torch.no_grad():
            type(self).bare_step(self._torch)
        self._parameter.grad = None  # or the last gradient would live on
        return moved

    def velocity(self) -> Tensor | None:
        buffer: Tensor | None = self._torch.state[self._parameter].get("momentum_buffer")
        return buffer

    def decay(self) -> float:
        decoupled = self.torch_class in DECOUPLED or getattr(self, "decoupled_weight_decay", False)
        return 0.0 if decoupled else float(getattr(self, "weight_decay", 0.0))

    def state(self) -> dict[str, Any]:
        """Torch's, and what a class made from this one remembers."""
        others = {
            name: value for name, value in super().state().items() if name not in ("_parameter", "_torch")
        }
        return {"torch": self._torch.state_dict()["state"]} | others

    def restore(self, state: dict[str, Any]) -> None:
        others = dict(state)
        (known,) = others.pop("torch").values() or ({},)
        self._torch.state[self._parameter] = dict(known)  # as it is: torch's own way casts it
        super().restore(others)


def tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value  # torch unpacks betas as a tuple


def from_torch(torch_class: type[torch.optim.Optimizer]) -> type[TorchOptimizer]:
    """A catalogue entry with the arguments of a torch.optim class."""
    parameters = inspect.signature(torch_class).parameters.values()
    fields: dict[str, Any] = {p.name: setting(p.default) for p in parameters if p.name not in HIDDEN}
    if "momentum" in fields:
        fields["momentum"] = (float, Field(0.0, gt=-1, lt=1))
    entry = create_model(torch_class.__name__, __base__=TorchOptimizer, **fields)
    entry.name, entry.torch_class = torch_class.__name__.lower(), torch_class
    entry.bare_step = staticmethod(
        inspect.unwrap(torch_class.step)
    )  # around plain SGD they cost more than it
    entry.__doc__ = f"torch.optim.{torch_class.__name__} on the flat vector."
    return entry


def setting(default: Any) -> tuple[Any, Any]:
    """A field's type and default; a number is a float, so that 0 and 0.0 are one setting."""
    if isinstance(default, bool):  # also where a text says it: no, off, False
        return bool, default
    if isinstance(default, int | float):
        return float, float(default)
    return Any, list(default) if isinstance(default, tuple) else default


def usable(candidate: object) -> bool:
    """Dense gradients, no closure, vectors: what a parameter server can use."""
    excluded = (
        torch.optim.Optimizer,
        torch.optim.LBFGS,
        torch.optim.SparseAdam,
        getattr(torch.optim, "Muon", None),
    )
    return (
        inspect.isclass(candidate)
        and issubclass(candidate, torch.optim.Optimizer)
        and candidate not in excluded
    )


TORCH_OPTIMIZERS = [
    from_torch(candidate)
    for name, candidate in sorted(vars(torch.optim).items(), key=lambda item: (item[0] != "SGD", item[0]))
    if usable(candidate)
]


class PerWorkerMomentum(Optimizer):
    """A velocity per worker, made when the worker first delivers: v ← μv + g + λx."""

    per_worker: ClassVar[bool] = True
    momentum: float = Field(0.9, gt=-1, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    _velocities: dict[int, Tensor] = PrivateAttr(default_factory=dict)
    _last: Tensor | None = PrivateAttr(default=None)

    def begin(self, x: Tensor, workers: int) -> None:
        self._velocities, self._last = {}, None

    def decayed(self, x: Tensor, direction: Tensor) -> Tensor:
        return direction.add(x, alpha=self.weight_decay) if self.weight_decay else direction

    def accelerate(self, direction: Tensor, worker: int) -> Tensor:
        """The worker's new velocity, in place of its old one."""
        velocity = self._velocities.get(worker)
        if velocity is None:
            velocity = self._velocities[worker] = torch.zeros_like(direction)
        self._last = torch.add(direction, velocity, alpha=self.momentum, out=velocity)
        return velocity

    def left(self, worker: int) -> None:
        self._velocities.pop(worker, None)

    def velocity(self) -> Tensor | None:
        return self._last

    def decay(self) -> float:
        return self.weight_decay


class Multi(PerWorkerMomentum):
    """Multi-ASGD: every worker has its own momentum at the server. Hakimi et al. 2019; Giladi et al. 2020."""

    name: ClassVar[str] = "multi"
    nesterov: bool = False  # send a worker the model ahead along its own velocity

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int) -> Tensor:
        return x.add(self.accelerate(self.decayed(x, direction), worker), alpha=-lr)

    def send(self, x: Tensor, lr: float, worker: int) -> Tensor:
        velocity = self._velocities.get(worker)
        return x if velocity is None or not self.nesterov else x.add(velocity, alpha=-lr * self.momentum)


class Dana(PerWorkerMomentum):
    """DANA-Zero: send the model after the momentum of all workers, x − ημ Σⱼvⱼ. Hakimi et al. 2019."""

    name: ClassVar[str] = "dana"
    _sum: Tensor | None = PrivateAttr(default=None)  # Σⱼvⱼ, kept up to date in O(d)

    def begin(self, x: Tensor, workers: int) -> None:
        super().begin(x, workers)
        self._sum = torch.zeros_like(x)

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int) -> Tensor:
        assert self._sum is not None
        direction = self.decayed(x, direction)
        if worker in self._velocities:
            self._sum.add_(self._velocities[worker], alpha=self.momentum - 1)
        self._sum.add_(direction)
        return x.add(self.accelerate(direction, worker), alpha=-lr)

    def left(self, worker: int) -> None:
        """The sum is of those who will move the model."""
        if worker in self._velocities:
            assert self._sum is not None
            self._sum.sub_(self._velocities.pop(worker))

    def send(self, x: Tensor, lr: float, worker: int) -> Tensor:
        assert self._sum is not None
        return x.add(self._sum, alpha=-lr * self.momentum) if self.momentum else x


class DanaSlim(PerWorkerMomentum):
    """DANA-Slim: the worker sends μv + g and keeps v; the server is plain ASGD. Hakimi et al. 2019.

    Here the server keeps each worker's v, so that a gradient stays a pure function of its job.
    """

    name: ClassVar[str] = "dana-slim"

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int) -> Tensor:
        direction = self.decayed(x, direction)
        ahead = direction.add(self.accelerate(direction, worker), alpha=self.momentum)
        return x.add(ahead, alpha=-lr)


OPTIMIZERS = Catalogue("optimizer", "optimizers", Optimizer, [*TORCH_OPTIMIZERS, Multi, Dana, DanaSlim])


class LearningRate:
    """The learning rate over the epochs: linear warm-up from lr/workers, then any torch scheduler.

    Goyal et al. 2017. Schedules are written like entries: `exponential(gamma=0.9)` is ExponentialLR.
    """

    def __init__(self, lr: float, schedule: str = "constant", warmup: float = 0.0, workers: int = 1) -> None:
        self.schedule, self.warmup, self.workers = schedule, warmup, workers
        self._scheduler = scheduler(schedule, lr)
        self._epoch, self._now = 0, self._scheduled()

    def __call__(self, epochs: float) -> float:
        while self._epoch < int(epochs):
            self._advance()
            self._epoch += 1
            self._now = self._scheduled()
        if epochs < self.warmup:
            start = 1 / self.workers
            return self._now * (start + (1 - start) * epochs / self.warmup)
        return self._now

    def _advance(self) -> None:
        try:
            self._scheduler.optimizer.step()
            self._scheduler.step()
        except ValueError as error:
            raise InputError(
                f"schedule={self.schedule!r} ends after {self._epoch} epochs; make it last longer ({error})"
            ) from None
        except (ArithmeticError, TypeError) as error:
            raise InputError(
                f"schedule={self.schedule!r} fails after {self._epoch} epochs: {error}; change its numbers"
            ) from None

    def _scheduled(self) -> float:
        rate = float(self._scheduler.get_last_lr()[0])
        if not 0 <= rate < math.inf:
            raise InputError(
                f"schedule={self.schedule!r} gives a rate of {rate}; it must be 0 or more, and finite"
            )
        return rate


def scheduler(text: str, lr: float) -> lr_scheduler.LRScheduler:
    """The torch scheduler a text names, on an optimizer of its own that trains nothing."""
    name, positional, settings = parse_call(text)
    known = schedulers()
    short = re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("lr")
    if short not in known:
        raise ValueError(f"unknown schedule {name!r}; {suggest_name(short, known)}")
    lists = [value for value in (*positional, *settings.values()) if isinstance(value, list)]
    if any(not isinstance(number, int | float) for each in lists for number in each):
        raise ValueError(f"schedule {text!r}: a list must hold numbers only")
    idle = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr, momentum=0.9)
    try:
        return known[short](idle, *positional, **settings)
    except Exception as error:
        raise ValueError(f"schedule {text!r}: torch refuses it: {error}") from None


def schedulers() -> dict[str, Callable[..., lr_scheduler.LRScheduler]]:
    """Those of torch that need nothing but the epoch and plain numbers."""
    excluded = {
        "LRScheduler",
        "ReduceLROnPlateau",
        "LambdaLR",
        "MultiplicativeLR",
        "SequentialLR",
        "ChainedScheduler",
    }
    classes = {name: getattr(lr_scheduler, name) for name in lr_scheduler.__all__ if name not in excluded}
    named = {name.lower().removesuffix("lr"): candidate for name, candidate in classes.items()}
    return {"constant": lambda optimizer: lr_scheduler.ConstantLR(optimizer, factor=1.0)} | {
        name: candidate for name, candidate in named.items() if name != "constant"
    }
