"""Messages between a server and an engine: jobs one way, arrivals and changes of workers the other way."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Decision = Literal["applied", "held", "dropped", "joined", "left"]


@dataclass(slots=True, eq=False)  # not frozen: constructing a frozen dataclass takes four times as long
class Job:
    """One mini-batch gradient that a worker is asked to compute. Never modified after construction."""

    worker: int
    index: int  # number of the worker's batch; with the seed it fixes samples, augmentation and dropout
    launch: int  # number of the worker's start; with the seed it fixes how long the job takes
    version: int  # number of server steps when the job was issued
    x: Tensor  # the model at which the gradient is computed
    buffers: Tensor  # BatchNorm statistics and other buffers, flat


@dataclass(frozen=True, slots=True)
class Gradient:
    """The result of a job: a pure function of (x, buffers, worker, index, seed)."""

    vector: Tensor
    loss: float
    buffers: Tensor


class Arrival:
    """A finished job. Its gradient is fetched on first access, so a dropped arrival costs no time."""

    __slots__ = (
        *("_fetch", "_gradient", "_ignore", "_lent", "compute", "delay", "job", "samples", "started"),
        *("time", "worker"),
    )

    def __init__(
        self,
        job: Job,
        started: float,
        time: float,
        samples: int,
        fetch: Callable[[Job], Gradient],
        ignore: Callable[[], None] | None = None,  # called if the server drops the gradient unseen
        compute: float | None = None,
        delay: float | None = None,
        lent: bool = False,  # the gradient is in the worker's memory and valid until the worker's next job
    ) -> None:
        self.job, self.worker, self.samples = job, job.worker, samples
        self.started, self.time = started, time
        self.compute, self.delay = compute, delay  # seconds; the remaining time was transport
        self._gradient: Gradient | None = None
        self._fetch, self._ignore, self._lent = fetch, ignore, lent

    @property
    def gradient(self) -> Gradient:
        """Return the gradient, computing or fetching it on first access."""
        if self._gradient is None:
            self._gradient = self._fetch(self.job)
        return self._gradient

    @property
    def fetched_gradient(self) -> Gradient | None:
        """Return the gradient if it was already accessed, otherwise None."""
        return self._gradient

    def keep(self) -> None:
        """Copy a lent gradient, so that it outlives the worker's next job."""
        if self._lent:
            lent = self.gradient
            self._gradient, self._lent = Gradient(lent.vector.clone(), lent.loss, lent.buffers), False

    def ignore(self) -> None:
        """Tell the engine that the gradient will not be accessed."""
        if self._ignore is not None:
            self._ignore()


@dataclass(frozen=True, slots=True)
class Change:
    """A worker that joined or left."""

    worker: int
    time: float
    joined: bool
