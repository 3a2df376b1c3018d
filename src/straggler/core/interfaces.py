"""Interfaces: an engine turns jobs into arrivals; policy, correction and optimizer decide on the server."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
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
    """The result of evaluating one part of a split."""

    loss: float  # summed over the samples
    samples: int
    predictions: NDArray[np.int64] | None = None  # class numbers; None if the outputs are not class scores
    targets: NDArray[np.int64] | None = None  # the true classes
    varied: bool = True  # whether different inputs have different outputs


class Problem(Protocol):
    """An objective to minimise. Every result is a function of the arguments and the seed alone."""

    samples: int  # size of the training set: one epoch
    classes: tuple[str, ...]  # names; empty for a regression

    def initial_model(self) -> tuple[Tensor, Tensor]:
        """Return the first model and its buffers."""

    def batch_samples(self, worker: int, index: int) -> int:
        """Return the number of samples in a worker's batch."""

    def count_batches(self, worker: int) -> int:
        """Return the number of batches in one pass over a worker's samples."""

    def gradient(self, x: Tensor, buffers: Tensor, worker: int, index: int) -> Gradient:
        """Return the gradient of a worker's batch at model `x`."""

    def count_chunks(self, split: Split) -> int:
        """Return the number of chunks in which a split is evaluated; 0 if there is no such split."""

    def evaluate(self, x: Tensor, buffers: Tensor, split: Split, chunk: int) -> EvaluationChunk:
        """Evaluate the model on one chunk of a split."""

    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """Return the model's tensors by name, as `nn.Module.load_state_dict` takes them."""


class Engine(Protocol):
    """Runs jobs: in virtual time, in processes or on a cluster."""

    @property
    def now(self) -> float:
        """Seconds since the start."""

    def submit(self, job: Job) -> None:
        """Start a job; a busy worker abandons its current job."""

    def next(self) -> Arrival | Change | None:
        """Return the next finished job or change of workers; None if no worker is busy."""

    def close(self) -> None:
        """Release processes and memory."""


class Component(CatalogueEntry):
    """A policy, correction or optimizer. Its fields are settings; its private attributes change during a run.

    Pydantic takes microseconds to look up a private attribute, so built-in components that are asked at every
    arrival keep theirs in one dataclass, `_state`, and look it up once per call.
    """

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: tensors, numbers, texts, and lists, tuples, dicts of these."""
        private = {name: as_dict(value) for name, value in (self.__pydantic_private__ or {}).items()}
        return private | {name: value.state() for name, value in self if isinstance(value, Component)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state; called after `begin` or `reset`."""
        for name, value in state.items():
            current: Any = getattr(self, name, None)
            if isinstance(current, Component):
                current.restore(value)
            else:
                setattr(self, name, replace(current, **value) if is_instance_of_dataclass(current) else value)


def is_instance_of_dataclass(value: Any) -> bool:
    """Return whether a value is an object of a dataclass, not the class itself."""
    return is_dataclass(value) and not isinstance(value, type)


def as_dict(value: Any) -> Any:
    """Return a dataclass as a dictionary of its fields (without copying them), other values unchanged."""
    if not is_instance_of_dataclass(value):
        return value
    return {field.name: getattr(value, field.name) for field in fields(value)}


class Policy(Component):
    """WHEN: decides when the server steps and which workers start. Sees counts and times, never tensors."""

    def check(self, workers: int) -> None:
        """Raise ValueError if the policy cannot work with this number of workers."""

    def merges(self, workers: int) -> bool:
        """Return whether a step may use several gradients."""
        return False

    def gradients_per_step(self, workers: int) -> int:
        """Return how many gradients a step uses; `straggler speedup` derives the number of steps from it."""
        if self.merges(workers):
            raise ValueError(
                f"{self} merges several gradients into a step. "
                f"Define {type(self).__name__}.gradients_per_step(workers) to measure its speed-up."
            )
        return 1

    def reset(self, server: "Server") -> None:
        """Create the state of a new run."""

    def begin(self, server: "Server") -> Iterable[int]:
        """Return the workers that start at the beginning."""
        return server.active

    @abstractmethod
    def receive(self, server: "Server", arrival: Arrival) -> Iterable[int]:
        """Merge the arrival or ignore it, step if it is time, and return the workers that start now."""

    def joined(self, server: "Server", worker: int) -> Iterable[int]:
        """React to a worker that joined; return the workers that start now."""
        return (worker,)

    def left(self, server: "Server", worker: int) -> Iterable[int]:
        """React to a worker that left; return the workers that start now."""
        return ()

    def view(self, server: "Server", worker: int) -> tuple[int, Tensor]:
        """Return the version and the model at which a worker computes its next gradient."""
        return server.k, server.x


class Correction(Component):
    """WHAT: changes a stale gradient before it is used."""

    def check(self, policy: Policy, optimizer: "Optimizer") -> None:
        """Raise ValueError if the correction cannot work with this policy or optimizer."""

    def begin(self, x: Tensor, workers: int) -> None:
        """Create the state of a new run."""

    @abstractmethod
    def correct(self, gradient: Tensor, arrival: Arrival, server: "Server") -> tuple[Tensor, float]:
        """Return the gradient to use and a factor for the learning rate (under momentum they differ)."""

    def stepped(self, server: "Server", before: Tensor, lr: float) -> None:
        """React to a server step, given the model before it and its learning rate."""


class Optimizer(Component):
    """HOW: moves the model and chooses what a worker receives. The velocity excludes the learning rate."""

    per_worker: ClassVar[bool] = False  # keeps state per worker, so a step must use one worker's gradient

    def begin(self, x: Tensor, workers: int) -> None:
        """Create the state of a new run."""

    @abstractmethod
    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int) -> Tensor:
        """Return the next model as a new tensor; jobs in flight still use the old one."""

    def send(self, x: Tensor, lr: float, worker: int) -> Tensor:
        """Return the point at which the worker computes its gradient: the model, or a look-ahead."""
        return x

    def left(self, worker: int) -> None:
        """Remove the state of a worker that left."""

    def velocity(self) -> Tensor | None:
        """Return the momentum buffer of the last step, if there is one."""
        return None

    def decay(self) -> float:
        """Return the weight decay that the step adds to the gradient (0 if it is decoupled)."""
        return 0.0


class Diverged(ArithmeticError):
    """Raised when a run cannot continue: the loss is not finite, or all inputs have the same output."""
