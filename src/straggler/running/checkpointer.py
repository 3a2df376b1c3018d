"""Checkpointer: writes checkpoints periodically and on SIGINT, SIGTERM or SIGHUP, and restores them."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from straggler.config.registry import InputError
from straggler.core import Server
from straggler.core.messages import LostMemoryError
from straggler.engines import ResumableEngine
from straggler.running.checkpoints import make_version_error, register_state, write_checkpoint
from straggler.running.observer import Observer, ObserverState
from straggler.running.recorder import Recorder, RecorderState
from straggler.running.signals import StopRequest
from straggler.running.supervision import SAVED, STARTED, tell_supervisor
from straggler.running.watchdog import note_progress

END_SECONDS = 5.0  # training that would be lost if the final evaluation were interrupted


@dataclass(frozen=True)
class CheckpointInterval:
    """Time between checkpoints, in seconds on this machine or in updates."""

    seconds: float = math.inf
    updates: float = math.inf

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `60s` (seconds) or `500` (updates)."""
        try:
            amount = float(text.strip().removesuffix("s"))
            if not amount > 0:
                raise ValueError
        except ValueError:
            raise InputError(
                f"checkpoint_every must be above zero, got {text!r}. Write 60s (seconds) or 500 (updates)."
            ) from None
        return cls(seconds=amount) if text.strip().endswith("s") else cls(updates=amount)


register_state(RecorderState)  # here, because recorder.py does not import torch


@register_state
@dataclass
class EngineClock:
    """The arguments of `ResumableEngine.resume`."""

    now: float
    started: dict[int, float]  # by worker
    present: list[int]  # workers
    state: dict[str, Any]


@register_state
@dataclass
class RunState:
    """Everything that a checkpoint stores."""

    updates: int
    elapsed: float  # seconds on this machine
    server: Any
    clock: EngineClock
    observer: ObserverState
    recorder: RecorderState


class Checkpointer:
    """Called between two arrivals: writes a checkpoint if one is due, and stops the run after a signal."""

    def __init__(
        self,
        interval: CheckpointInterval,
        server: Server,
        engine: ResumableEngine,
        observer: Observer,
        recorder: Recorder,
        stop: StopRequest | None = None,
    ) -> None:
        self.interval, self.server, self.engine = interval, server, engine
        self.observer, self.recorder, self.stop = observer, recorder, stop or StopRequest()
        self._begun = self._saved = time.monotonic()
        self._saved_updates = 0
        tell_supervisor(STARTED)

    @property
    def _stop_requested(self) -> bool:
        return self.stop.is_made

    def __call__(self) -> bool:
        """Write a checkpoint if one is due; return whether the run must stop."""
        note_progress()
        self.observer.callbacks.raise_failure()
        due = time.monotonic() - self._saved >= self.interval.seconds
        due |= self._stop_requested or self.observer.is_stopped
        if due or self.server.k - self._saved_updates >= self.interval.updates:
            with suppress(LostMemoryError):  # soon the engine notices, and a later checkpoint succeeds
                self.save()
                if self._stop_requested:
                    raise KeyboardInterrupt
        return self.observer.is_stopped

    def finish(self) -> None:
        """Write a checkpoint before the final evaluation, if training took a while or should stop."""
        if self._stop_requested or time.monotonic() - self._saved >= END_SECONDS:
            self.save()
        if self._stop_requested:
            raise KeyboardInterrupt

    def start(self) -> None:
        """Record the initial model, and start the engine's clock."""
        self.observer.start()
        self.engine.resume(now=0.0, started={}, present=list(self.server.active), state={})

    def restore(self, state: RunState) -> None:
        """Restore server, observer and engine from the state of a checkpoint."""
        try:
            self.server.restore(state.server)
            self.observer.restore(state.observer)
            clock = state.clock
            self.engine.resume(clock.now, clock.started, clock.present, clock.state)
        except (KeyError, TypeError, AttributeError) as error:
            raise make_version_error(self.recorder.path, repr(error)) from error
        self._begun, self._saved_updates = time.monotonic() - state.elapsed, self.server.k
        self.observer.callbacks.call("on_start")

    def elapsed(self) -> float:
        """Return the seconds on this machine since the run began, without interruptions."""
        return time.monotonic() - self._begun

    def save(self) -> None:
        """Write a checkpoint. Jobs that were not submitted to the engine yet count as started now."""
        started, launches = self.engine.started, self.engine.launches
        state = RunState(
            updates=self.server.k,
            elapsed=self.elapsed(),
            server=self.server.state(),
            clock=EngineClock(
                now=self.engine.now,
                started={
                    worker: started[worker] if launches.get(worker) == job.launch else self.engine.now
                    for worker, job in self.server.busy.items()
                },
                present=list(self.server.active),
                state=self.engine.state(),
            ),
            observer=self.observer.finish_state(),
            recorder=self.recorder.state(),
        )
        path = write_checkpoint(self.recorder.path, self.server.gradients, state)
        self._saved, self._saved_updates = time.monotonic(), self.server.k
        tell_supervisor(SAVED)
        self.observer.callbacks.call("on_checkpoint", path)

    @contextmanager
    def saving_on(self, *kinds: type[Exception]) -> Iterator[None]:
        """Write a checkpoint if the block raises one of these errors (between two arrivals)."""
        try:
            yield
        except kinds:
            with suppress(OSError):  # a full disk: the error of the block says more
                self.save()
            raise
