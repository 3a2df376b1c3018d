"""Interfaces: problems, engines, and the six stages of a message's journey, each a small catalogue."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from straggler.config.registry import CatalogueEntry
from straggler.core.messages import Arrival, Change, Job, Message

if TYPE_CHECKING:
    from straggler.core.server import Server


Split = Literal["train", "validation", "test"]
Shapes = Mapping[str, tuple[int, ...]]  # the tensors of a flat model, by name and in order


@dataclass(frozen=True)
class EvaluationChunk:
    """The result of evaluating one part of a split."""

    loss: float  # summed over the samples
    samples: int  # for sequences: tokens
    predictions: NDArray[np.int64] | None = None  # class numbers; None if the outputs are not class scores
    targets: NDArray[np.int64] | None = None  # the true classes
    varied: bool = True  # whether different inputs have different outputs
    metrics: tuple[float, ...] = ()  # summed over the samples, in the order of the problem's metrics
    correct: int | None = None  # right predictions, if there are too many to return (tokens of sequences)


class Problem(Protocol):
    """An objective to minimise. Every result is a function of the arguments and the seed alone."""

    samples: int  # size of the training set: one epoch
    classes: tuple[str, ...]  # names; empty for a regression
    device: torch.device  # where gradients are computed, and where all tensors are

    def move_to(self, device: torch.device) -> None:
        """Compute on another device from now on."""

    @property
    def shapes(self) -> Shapes:
        """The tensors that the flat model consists of, by name and in order."""

    def initial_model(self) -> tuple[Tensor, Tensor]:
        """Return the first model and its buffers."""

    def batch_samples(self, worker: int, index: int) -> int:
        """Return the number of samples in a worker's batch."""

    def count_batches(self, worker: int) -> int:
        """Return the number of batches in one pass over a worker's samples."""

    def gradient(self, x: Tensor, buffers: Tensor, worker: int, index: int) -> Message:
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

    def submit(self, job: Job) -> bool | None:
        """Start a job; a busy worker abandons its current job. Return False if the worker is away."""

    def next(self) -> Arrival | Change | None:
        """Return the next finished job or change of workers; None if no worker is busy."""

    def close(self) -> None:
        """Release processes and memory."""


class Component(CatalogueEntry):
    """One stage of a message's journey. Its fields are settings; its private attributes change during a run.

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


class Work(Component):
    """What a job computes at the worker: a gradient, several, or local steps. It keeps no state.

    Everything that a worker remembers is a value: it arrives with the job and returns with the message.
    """

    is_gradient: ClassVar[bool] = False  # whether the message is just the gradient of one batch

    @property
    def needs_speeds(self) -> bool:
        """Whether the number of batches depends on the worker's speed."""
        return False

    def count_batches(self, speed: float) -> int:
        """Return how many batches a job uses, given the worker's speed relative to the fastest worker."""
        return 1

    def prepare(self, x: Tensor, shapes: Shapes) -> int:
        """Prepare this process for the model; return how many numbers a worker remembers."""
        return 0

    @abstractmethod
    def compute(
        self,
        problem: Problem,
        x: Tensor,
        buffers: Tensor,
        memory: Tensor | None,
        worker: int,
        batches: range,
    ) -> Message:
        """Return the message of a job that starts at model `x` and uses these batches of the worker."""


class Channel(Component):
    """How a message is encoded on its way to the server, and the model on its way to the worker.

    The size of an encoded message depends on the model's tensors, not on their values.
    """

    is_exact: ClassVar[bool] = False  # whether the encoded bytes are the vector itself
    is_random: ClassVar[bool] = False  # whether encoding needs a seed
    down: Literal["exact", "bf16", "fp16"] = "exact"  # how the model travels to the workers

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        # Pydantic puts inherited fields first. With `down` last, `top-k(0.01)` means a share of 0.01.
        cls.model_fields["down"] = cls.model_fields.pop("down")

    def model_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type in which a model of type `dtype` travels to the workers."""
        return {"exact": dtype, "bf16": torch.bfloat16, "fp16": torch.float16}[self.down]

    def prepare(self, x: Tensor, shapes: Shapes) -> int:
        """Prepare this process for the model; return how many numbers a worker remembers."""
        return 0

    @abstractmethod
    def count_bytes(self, x: Tensor, shapes: Shapes) -> int:
        """Return the bytes of an encoded message."""

    @abstractmethod
    def encode(self, vector: Tensor, memory: Tensor | None, seed: int) -> tuple[Tensor, Tensor | None]:
        """Return the encoded vector (uint8) and what the worker remembers."""

    @abstractmethod
    def decode(self, encoded: Tensor, seed: int) -> Tensor:
        """Return the vector that an encoded message stands for."""


class Aggregation(Component):
    """Which messages make one direction, and how they are combined."""

    keeps_messages: ClassVar[bool] = False  # whether it stores vectors beyond the step that they arrive for

    def check(self, policy: Policy, optimizer: "Optimizer", workers: int) -> None:
        """Raise ValueError if the aggregation cannot work with this policy or optimizer."""

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        """Create the state of a new run."""

    @abstractmethod
    def add(self, vector: Tensor, scale: float, arrival: Arrival, server: "Server") -> None:
        """Add a corrected message to the next step; `scale` is the correction's learning-rate factor."""

    @abstractmethod
    def combine(self, server: "Server") -> tuple[Tensor, float] | None:
        """Return the direction of a step and a factor for its learning rate; None if it must wait."""

    def left(self, worker: int) -> None:
        """Remove the state of a worker that left."""


class Correction(Component):
    """WHAT: changes a stale message before it is used."""

    def check(self, policy: Policy, aggregation: Aggregation, optimizer: "Optimizer") -> None:
        """Raise ValueError if the correction cannot work with these other stages."""

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        """Create the state of a new run."""

    @abstractmethod
    def correct(self, gradient: Tensor, arrival: Arrival, server: "Server") -> tuple[Tensor, float]:
        """Return the gradient to use and a factor for the learning rate (under momentum they differ)."""

    def stepped(self, server: "Server", before: Tensor, lr: float) -> None:
        """React to a server step, given the model before it and its learning rate."""

    def left(self, worker: int) -> None:
        """Remove the state of a worker that left."""


class Optimizer(Component):
    """HOW: moves the model and chooses what a worker receives. The velocity excludes the learning rate."""

    per_worker: ClassVar[bool] = False  # keeps state per worker, so a step must use one worker's message

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        """Create the state of a new run."""

    @abstractmethod
    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int, version: int) -> Tensor:
        """Return the next model as a new tensor; jobs in flight still use the old one.

        `worker` delivered the last message of the step; `version` is the oldest version among its messages.
        """

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
