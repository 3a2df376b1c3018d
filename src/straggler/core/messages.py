"""What a server and an engine tell each other: jobs one way, arrivals (and who came or left) the other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Decision = Literal["applied", "held", "dropped", "joined", "left"]


@dataclass(frozen=True, slots=True)
class Job:
    """One mini-batch gradient asked of one worker."""

    worker: int
    index: int  # which of its batches: with the seed, fixes samples, augmentation and dropout
    launch: int  # which of its starts: with the seed, fixes how long it takes
    version: int  # server steps when it was issued
    x: Tensor  # the model it is computed at; never mutated
    buffers: Tensor  # BatchNorm statistics and the like, flat


@dataclass(frozen=True, slots=True)
class Gradient:
    """What a job computes: a pure function of (x, buffers, worker, index, seed)."""

    vector: Tensor
    loss: float
    buffers: Tensor


class Arrival:
    """A finished job. Its gradient is fetched when somebody looks at it: ignoring one costs nothing."""

    __slots__ = (
        *("_fetch", "_gradient", "_lent", "compute", "delay", "ignore", "job", "samples", "started"),
        *("time", "worker"),
    )

    def __init__(
        self,
        job: Job,
        started: float,
        time: float,
        samples: int,
        fetch: Callable[[], Gradient],
        ignore: Callable[[], None] = lambda: None,  # told that nobody will look
        compute: float | None = None,
        delay: float | None = None,
        lent: bool = False,  # the gradient is in the worker's memory, and good until it has another job
    ) -> None:
        self.job, self.worker, self.samples, self.ignore = job, job.worker, samples, ignore
        self.started, self.time = started, time
        self.compute, self.delay = compute, delay  # seconds of it; what is left was transport
        self._fetch, self._gradient = fetch, None  # type: tuple[Callable[[], Gradient], Gradient | None]
        self._lent = lent

    @property
    def gradient(self) -> Gradient:
        if self._gradient is None:
            self._gradient = self._fetch()
        return self._gradient

    def keep(self) -> None:
        """Have the gradient in memory of its own: it is needed after the worker's next job."""
        if self._lent:
            lent = self.gradient
            self._gradient, self._lent = Gradient(lent.vector.clone(), lent.loss, lent.buffers), False

    @property
    def seen(self) -> Gradient | None:
        """The gradient if it was looked at, without asking for it."""
        return self._gradient


@dataclass(frozen=True, slots=True)
class Change:
    """A worker that came, or one that is gone."""

    worker: int
    time: float
    joined: bool
