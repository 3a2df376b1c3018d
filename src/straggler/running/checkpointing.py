"""When a run is saved: now and then, and when somebody asks it to stop."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self

from torch import Tensor

from straggler.config.registry import InputError
from straggler.core import Arrival, Change, Decision, Diverged, Server
from straggler.engines import ResumableEngine
from straggler.record import Recorder, RecordError
from straggler.running.checkpoints import save
from straggler.running.observer import Observer


@dataclass(frozen=True)
class CheckpointInterval:
    """How often a checkpoint is written: after so many host seconds (`60s`) or updates (`500`)."""

    seconds: float = math.inf
    updates: float = math.inf

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            seconds = text.strip().endswith("s")
            amount = float(text.strip().removesuffix("s"))
            if not amount > 0:
                raise ValueError
        except ValueError:
            raise InputError(
                f"checkpoint_every={text!r}: it must be above zero; write 60s for seconds or 500 for updates"
            ) from None
        return cls(seconds=amount) if seconds else cls(updates=amount)


class Checkpointer:
    """Watches through the observer, and saves the whole run when it is due or somebody asks to stop."""

    def __init__(
        self,
        every: CheckpointInterval,
        server: Server,
        engine: ResumableEngine,
        observer: Observer,
        recorder: Recorder,
    ) -> None:
        self.every, self.server, self.engine = every, server, engine
        self.observer, self.recorder = observer, recorder
        self._begun = self._saved = time.monotonic()
        self._saved_at, self._stopping = 0, False

    def __call__(
        self, arrival: Arrival | Change, decision: Decision, staleness: int, before: Tensor
    ) -> Diverged | None:
        lost = self.observer(arrival, decision, staleness, before)
        if lost is not None or self.server.lost:
            return lost  # unsaved: whoever resumes from before it comes to the same end
        due = time.monotonic() - self._saved >= self.every.seconds
        if due or self._stopping or self.server.k - self._saved_at >= self.every.updates:
            self.save()
        if self._stopping:
            raise KeyboardInterrupt
        return None

    def begin(self) -> None:
        """The model before the first step; then the clock begins."""
        self.observer.begin()
        self.engine.resume(now=0.0, started={}, present=list(self.server.active))

    def elapsed(self) -> float:
        return time.monotonic() - self._begun

    def save(self) -> None:
        """Everything between two arrivals: jobs that were just assigned begin now."""
        clock = {
            "now": self.engine.now,
            "started": {worker: self._started(worker) for worker in self.server.busy},
            "present": list(self.server.active),
        }
        state = {
            "server": self.server.state(),
            "clock": clock,
            "observer": self.observer.state(),
            "recorder": self.recorder.state(),
            "elapsed": self.elapsed(),
        }
        save(self.recorder.path, self.server.gradients, state)
        self._saved, self._saved_at = time.monotonic(), self.server.k

    def _started(self, worker: int) -> float:
        submitted = self.engine.launches.get(worker) == self.server.busy[worker].launch
        return self.engine.started[worker] if submitted else self.engine.now

    def restore(self, state: dict[str, Any]) -> None:
        try:
            self.server.restore(state["server"])
            self.observer.restore(state["observer"])
            self.engine.resume(**state["clock"])
        except (KeyError, TypeError, AttributeError) as error:
            raise RecordError(
                f"{self.recorder.path} was saved by another version of straggler ({error!r} does not fit); "
                f"go on with that version, or start anew with --force"
            ) from error
        self._begun, self._saved_at = time.monotonic() - state["elapsed"], self.server.k

    @contextmanager
    def saving_before(self, kind: type[Exception]) -> Iterator[None]:
        """A run that ends with such an error is saved; it is raised between two arrivals."""
        try:
            yield
        except kind:
            self.save()
            raise

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run after the arrival at hand; a second one ends it at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._stop) for number in signals]
        try:
            yield
        finally:
            for number, handler in zip(signals, before, strict=True):
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:
            raise KeyboardInterrupt
        self._stopping = True
