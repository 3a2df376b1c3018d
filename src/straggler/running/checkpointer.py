"""Checkpointer: writes checkpoints periodically and on SIGINT or SIGTERM, and restores them."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self

from straggler.config.registry import InputError
from straggler.core import Server
from straggler.engines import ResumableEngine
from straggler.running.checkpoints import make_version_error, register_state, write_checkpoint
from straggler.running.observer import Observer, ObserverState
from straggler.running.recorder import Recorder, RecorderState
from straggler.running.signals import handling_signals


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
    ) -> None:
        self.interval, self.server, self.engine = interval, server, engine
        self.observer, self.recorder = observer, recorder
        self._begun = self._saved = time.monotonic()
        self._saved_updates, self._stop_requested = 0, False

    def __call__(self) -> None:
        due = time.monotonic() - self._saved >= self.interval.seconds
        if due or self._stop_requested or self.server.k - self._saved_updates >= self.interval.updates:
            self.save()
        if self._stop_requested:
            raise KeyboardInterrupt

    def start(self) -> None:
        """Record the initial model, and start the engine's clock."""
        self.observer.start()
        self.engine.resume(now=0.0, started={}, present=list(self.server.active))

    def restore(self, state: RunState) -> None:
        """Restore server, observer and engine from the state of a checkpoint."""
        try:
            self.server.restore(state.server)
            self.observer.restore(state.observer)
            self.engine.resume(state.clock.now, state.clock.started, state.clock.present)
        except (KeyError, TypeError, AttributeError) as error:
            raise make_version_error(self.recorder.path, error) from error
        self._begun, self._saved_updates = time.monotonic() - state.elapsed, self.server.k

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
            ),
            observer=self.observer.finish_state(),
            recorder=self.recorder.state(),
        )
        write_checkpoint(self.recorder.path, self.server.gradients, state)
        self._saved, self._saved_updates = time.monotonic(), self.server.k

    @contextmanager
    def saving_on(self, kind: type[Exception]) -> Iterator[None]:
        """Write a checkpoint if the block raises this kind of error (between two arrivals)."""
        try:
            yield
        except kind:
            self.save()
            raise

    @contextmanager
    def stopping_on_signals(self) -> Iterator[None]:
        """On SIGINT or SIGTERM, stop with a checkpoint after the current arrival; on the second, at once."""
        with handling_signals(self._request_stop):
            yield

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        if self._stop_requested:
            raise KeyboardInterrupt
        self._stop_requested = True
