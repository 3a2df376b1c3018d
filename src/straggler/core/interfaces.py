"""The vocabulary. A server turns arrivals into jobs; an engine turns jobs into arrivals."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from straggler.config.registry import CatalogueEntry
from straggler.core.messages import Arrival, Change, Gradient, Job

if TYPE_CHECKING:
    from straggler.core.server import Server


Split = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class EvaluationChunk:
    """What one part of an evaluation found."""

    loss: float  # summed over the samples
    samples: int
    predictions: NDArray[np.int64] | None = None  # None where there are no classes
    varied: bool = True  # the outputs are not all the same


class Problem(Protocol):
    """What is minimised. Everything it answers is a function of the arguments and the seed."""

    samples: int  # size of the training set: one epoch
    classes: tuple[str, ...]  # empty where there are none

    def initial_model(self) -> tuple[Tensor, Tensor]:
        """The first model and its buffers."""

    def batch_samples(self, worker: int, index: int) -> int:
        """How many samples a worker's batch has."""

    def count_batches(self, worker: int) -> int:
        """How many batches one pass over a worker's own data has."""

    def gradient(self, x: Tensor, buffers: Tensor, worker: int, index: int) -> Gradient: ...

    def count_chunks(self, split: Split) -> int: ...

    def evaluate(self, x: Tensor, buffers: Tensor, split: Split, chunk: int) -> EvaluationChunk: ...

    def labels(self, split: Split) -> NDArray[np.int64] | None: ...

    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """The model by name, as its owner would load it."""


class Engine(Protocol):
    """Where and when jobs run: virtual time, processes, a cluster."""

    @property
    def now(self) -> float:
        """Seconds since the start."""

    def submit(self, job: Job) -> None:
        """Start a job; a worker that is busy abandons what it was doing."""

    def next(self) -> Arrival | Change | None:
        """Wait for, or jump to, the next finished job or change of workers; None if nobody works."""

    def close(self) -> None: ...


def remembered(name: str) -> property:
    """A private attribute, found at once: pydantic's own search takes longer than many a policy."""

    def recall(piece: "Component") -> Any:
        return (piece.__pydantic_private__ or {})[name]

    return property(recall)


class Component(CatalogueEntry):
    """One of the three that decide; what it remembers of a run is in its private attributes."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for name in cls.__private_attributes__:
            setattr(cls, name, remembered(name))

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep: tensors, numbers, lists and dictionaries of them."""
        within = {name: value.state() for name, value in self if isinstance(value, Component)}
        return dict(self.__pydantic_private__ or {}) | within

    def restore(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            if name in type(self).model_fields:
                getattr(self, name).restore(value)
            else:
                setattr(self, name, value)


class Policy(Component):
    """WHEN the server steps, and who starts again. Sees counts and times, never tensors."""

    def check(self, workers: int) -> None:
        """Refuse what cannot work with so many workers."""

    def merges(self, workers: int) -> bool:
        """Whether a step may be made of several gradients."""
        return False

    def reset(self, server: "Server") -> None:
        """Forget the last run."""

    def begin(self, server: "Server") -> Iterable[int]:
        """Who starts at the beginning."""
        return tuple(server.active)

    @abstractmethod
    def receive(self, server: "Server", arrival: Arrival) -> Iterable[int]:
        """Merge the arrival (or ignore it), perhaps step; answer who starts now."""

    def joined(self, server: "Server", worker: int) -> Iterable[int]:
        """A worker came: answer who starts now."""
        return (worker,)

    def left(self, server: "Server", worker: int) -> Iterable[int]:
        """A worker is gone, and nobody waits for it: answer who starts now."""
        return ()

    def view(self, server: "Server", worker: int) -> tuple[int, Tensor]:
        """The version and the model that a worker is given."""
        return server.k, server.optimizer.send(server.x, server.lr, worker)


class Correction(Component):
    """WHAT is done to a stale gradient before it is used."""

    def check(self, policy: Policy, optimizer: "Optimizer") -> None:
        """Refuse what cannot work with these."""

    def begin(self, x: Tensor, workers: int) -> None:
        """Forget the last run."""

    @abstractmethod
    def correct(self, gradient: Tensor, arrival: Arrival, server: "Server") -> tuple[Tensor, float]:
        """The gradient to use, and a factor for the learning rate (not the same thing under momentum)."""

    def stepped(self, server: "Server", before: Tensor, lr: float) -> None:
        """Told after each server step: the model before it, and its learning rate."""


class Optimizer(Component):
    """HOW the model moves, and what a worker is sent. The learning rate stays outside the velocity."""

    per_worker: ClassVar[bool] = False  # keeps something for each worker, so a step must be one worker's

    def begin(self, x: Tensor, workers: int) -> None:
        """Forget the last run."""

    @abstractmethod
    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int) -> Tensor:
        """The next model, in new memory: jobs in flight keep theirs."""

    def send(self, x: Tensor, lr: float, worker: int) -> Tensor:
        """What the worker computes at: the model, or a look-ahead."""
        return x

    def left(self, worker: int) -> None:
        """A worker is gone: forget what was kept for it."""

    def velocity(self) -> Tensor | None:
        """The momentum buffer of the last step, if there is one."""
        return None

    def decay(self) -> float:
        """Weight decay that the step adds to the gradient (not the decoupled kind)."""
        return 0.0


class Diverged(ArithmeticError):
    """The run is lost: a loss that is not a finite number, or a network that does not tell inputs apart."""
