"""Messages between a server and an engine: jobs one way, arrivals and changes of workers the other way."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from torch import Tensor

Decision = Literal["applied", "held", "dropped", "joined", "left"]


@dataclass(slots=True, eq=False)  # not frozen: constructing a frozen dataclass takes four times as long
class Job:
    """One piece of work that a worker is asked to do. Never modified after construction."""

    worker: int
    index: int  # number of the worker's job; with the seed it fixes samples, augmentation and dropout
    launch: int  # number of the worker's start; with the seed it fixes how long the job takes
    version: int  # number of server steps when the job was issued
    x: Tensor  # the model at which the worker starts, as it arrives there
    buffers: Tensor  # BatchNorm statistics and other buffers, flat
    memory: "Memory | None" = None  # what the worker remembers; None before its first message


class LostMemoryError(RuntimeError):
    """Raised if a worker's memory is lost and the engine has not noticed yet."""


class RemoteMemory(Protocol):
    """A worker's memory that stays where the worker is; an engine fetches it when somebody needs it."""

    def fetch(self) -> Tensor:
        """Return the memory as a tensor; raise LostMemoryError if it is lost."""


Memory = Tensor | RemoteMemory


@dataclass(frozen=True, slots=True)
class Message:
    """The result of a job: a pure function of (x, buffers, memory, worker, index, seed)."""

    vector: Tensor  # a direction to descend: a gradient, or the distance that local steps moved
    loss: float
    buffers: Tensor
    memory: Memory | None = None  # what the worker remembers for its next job


class Arrival:
    """A finished job. Its message is fetched on first access, so a dropped arrival costs no time."""

    __slots__ = (
        *("_fetch", "_ignore", "_lent", "_message", "compute", "delay", "job", "outdated", "samples"),
        *("started", "time", "unsent", "worker"),
    )

    def __init__(
        self,
        job: Job,
        started: float,
        time: float,
        samples: int,
        fetch: Callable[[Job], Message],
        ignore: Callable[[], None] | None = None,  # called if the server drops the message unseen
        compute: float | None = None,
        delay: float | None = None,
        lent: bool = False,  # the vector is in the worker's memory and valid until the worker's next job
    ) -> None:
        self.job, self.worker, self.samples = job, job.worker, samples
        self.started, self.time = started, time
        self.compute, self.delay = compute, delay  # seconds; the remaining time was transport
        self.outdated = 0  # messages of cancelled jobs that came since the last arrival
        self.unsent = 0  # models of cancelled jobs that were never sent, since the last arrival
        self._message: Message | None = None
        self._fetch, self._ignore, self._lent = fetch, ignore, lent

    @property
    def message(self) -> Message:
        """Return the message, computing or fetching it on first access."""
        if self._message is None:
            self._message = self._fetch(self.job)
        return self._message

    @property
    def fetched_message(self) -> Message | None:
        """Return the message if it was already accessed, otherwise None."""
        return self._message

    def keep(self) -> None:
        """Fetch the message, and copy a lent vector, so that it outlives the worker's next job."""
        message = self.message
        if self._lent:
            self._message, self._lent = replace(message, vector=message.vector.clone()), False

    def ignore(self) -> None:
        """Tell the engine that the message will not be accessed."""
        if self._ignore is not None:
            self._ignore()


@dataclass(frozen=True, slots=True)
class Change:
    """A worker that joined or left."""

    worker: int
    time: float
    joined: bool
