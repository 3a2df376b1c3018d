"""HOW: any `torch.optim` class on the flat vector, and learning rates over the epochs."""

import inspect
import re
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from pydantic import ConfigDict, Field, PrivateAttr, create_model
from torch import Tensor
from torch.optim import lr_scheduler

from straggler.catalogue import split_call, suggestion
from straggler.core import Optimizer

__all__ = ["OPTIMIZERS", "LearningRate", "TorchOptimizer"]

# Set elsewhere (lr) or about speed on other hardware; they are not part of what an optimizer is.
HIDDEN = {"params", "lr", "foreach", "maximize", "capturable", "differentiable", "fused"}


class TorchOptimizer(Optimizer):
    """A class of torch.optim on the whole model as one vector."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    torch_class: ClassVar[type[torch.optim.Optimizer]]
    _parameter: torch.nn.Parameter = PrivateAttr()
    _torch: torch.optim.Optimizer = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Try it once, so that what torch refuses is refused now."""
        try:
            self.begin(torch.zeros(2), workers=1)
            self.step(torch.zeros(2), torch.ones(2), lr=0.1, worker=0)
        except Exception as error:
            raise ValueError(f"torch.optim.{self.torch_class.__name__} refuses it: {error}") from None

    def begin(self, x: Tensor, workers: int) -> None:
        self._parameter = torch.nn.Parameter(x.clone())
        settings = {key: tupled(getattr(self, key)) for key in type(self).model_fields}
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
        self._torch.step()
        return moved


def tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value  # torch unpacks betas as a tuple


def from_torch(torch_class: type[torch.optim.Optimizer]) -> type[TorchOptimizer]:
    """A catalogue entry with the arguments of a torch.optim class."""
    parameters = inspect.signature(torch_class).parameters.values()
    fields: dict[str, Any] = {p.name: (Any, listed(p.default)) for p in parameters if p.name not in HIDDEN}
    if "momentum" in fields:
        fields["momentum"] = (float, Field(0.0, gt=-1, lt=1))
    entry = create_model(torch_class.__name__, __base__=TorchOptimizer, **fields)
    entry.name, entry.torch_class = torch_class.__name__.lower(), torch_class
    entry.__doc__ = f"torch.optim.{torch_class.__name__} on the flat vector."
    return entry


def listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


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


OPTIMIZERS: dict[str, type[Optimizer]] = {
    name.lower(): from_torch(candidate)
    for name, candidate in sorted(vars(torch.optim).items(), key=lambda item: (item[0] != "SGD", item[0]))
    if usable(candidate)
}


class LearningRate:
    """The learning rate over the epochs: linear warm-up from lr/workers, then any torch scheduler.

    Goyal et al. 2017. Schedules are written like entries: `exponential(gamma=0.9)` is ExponentialLR.
    """

    def __init__(self, lr: float, schedule: str = "constant", warmup: float = 0.0, workers: int = 1) -> None:
        self.lr, self.warmup, self.workers = lr, warmup, workers
        self._scheduler = scheduler(schedule, lr)
        self._epoch, self._now = 0, self._scheduled()

    def __call__(self, epochs: float) -> float:
        while self._epoch < int(epochs):
            self._scheduler.optimizer.step()
            self._scheduler.step()
            self._epoch += 1
            self._now = self._scheduled()
        if epochs < self.warmup:
            start = 1 / self.workers
            return self._now * (start + (1 - start) * epochs / self.warmup)
        return self._now

    def _scheduled(self) -> float:
        return float(self._scheduler.get_last_lr()[0])


def scheduler(text: str, lr: float) -> lr_scheduler.LRScheduler:
    """The torch scheduler a text names, on an optimizer of its own that trains nothing."""
    name, positional, settings = split_call(text)
    known = schedulers()
    short = re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("lr")
    if short not in known:
        raise ValueError(f"unknown schedule {name!r}; {suggestion(short, known)}")
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
