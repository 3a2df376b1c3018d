"""Callbacks: custom objects that a run calls at its start and end, arrivals, evaluations and checkpoints."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.record import Record

if TYPE_CHECKING:
    from torch import Tensor

    from straggler.running.observer import Observer, RunProgress

Row = Mapping[str, Any]
EVENTS = ("on_start", "on_arrival", "on_evaluation", "on_checkpoint", "on_progress", "on_end")


class CallbackError(RuntimeError):
    """Raised if a callback raises; the run has written a checkpoint."""


class LiveRun:
    """A run while it happens: what callbacks can see and do."""

    def __init__(self, experiment: Experiment, observer: "Observer", is_resumed: bool = False) -> None:
        self.experiment, self.is_resumed = experiment, is_resumed
        self._observer = observer

    @property
    def path(self) -> Path:
        """The folder of the record."""
        return self._observer.recorder.path

    @property
    def record(self) -> Record:
        """The record as far as it is on disk."""
        return Record(self.path)

    @property
    def curve(self) -> list[dict[str, Any]]:
        """Every evaluation so far, also those before the run was resumed."""
        return list(self._observer.recorder.curve)

    @property
    def progress(self) -> "RunProgress":
        """The progress of the run."""
        return self._observer.progress()

    def weights(self) -> "dict[str, Tensor]":
        """Return the current model, as `module.load_state_dict` takes it."""
        server = self._observer.server
        return self._observer.compute.problem.state_dict(server.readout, server.buffers)

    def stop(self, reason: str) -> None:
        """End the run after the current arrival, as if its budget were spent; the summary has the reason."""
        self._observer.stop(reason)


class Callback:
    """Called during a run; override the methods that you need.

    The run waits for every call. An exception ends the run as failed, with a checkpoint. A resumed run starts
    with new callbacks: what they need to remember is in `run.curve`.
    """

    arrival_every: int = 100  # arrivals between calls of `on_arrival`

    def on_start(self, run: LiveRun) -> None:
        """React to the start of a run, or to its resumption (`run.is_resumed`)."""

    def on_arrival(self, run: LiveRun, arrival: Row) -> None:
        """React to an arrival, given its row of `Record.arrivals`."""

    def on_evaluation(self, run: LiveRun, row: Row) -> None:
        """React to an evaluation, given its row of `Record.curve`; called once for every row."""

    def on_checkpoint(self, run: LiveRun, path: Path) -> None:
        """React to a checkpoint, which is on disk."""

    def on_progress(self, run: LiveRun, progress: "RunProgress") -> None:
        """Show the progress; called at most ten times a second."""

    def on_end(self, run: LiveRun, summary: Mapping[str, Any]) -> None:
        """React to the end, whatever it is (`summary["status"]`); the record is complete."""


class ProgressCallback(Callback):
    """Calls a function with the progress of a run, at most ten times a second."""

    def __init__(self, function: "Callable[[RunProgress], None]") -> None:
        self.function = function

    def on_progress(self, run: LiveRun, progress: "RunProgress") -> None:
        self.function(progress)


class CallbackCaller:
    """Calls the callbacks of a run, and keeps the first exception until the run can be saved."""

    def __init__(self, callbacks: Sequence[Callback], run: LiveRun) -> None:
        self.run = run
        self._failure: CallbackError | None = None
        self._has_started = False
        self._callbacks = {
            event: [one for one in callbacks if getattr(type(one), event) is not getattr(Callback, event)]
            for event in EVENTS
        }

    def listens(self, event: str) -> bool:
        """Return whether a callback overrides a method."""
        return bool(self._callbacks[event])

    def call(self, event: str, *arguments: Any) -> None:
        """Call a method of every callback that overrides it."""
        self._has_started |= event == "on_start"
        for callback in self._callbacks[event]:
            self._call_one(callback, event, *arguments)

    def call_sampled(self, number: int, arrival: Row) -> None:
        """Call `on_arrival` of the callbacks that want this arrival."""
        for callback in self._callbacks["on_arrival"]:
            if number % callback.arrival_every == 0:
                self._call_one(callback, "on_arrival", arrival)

    def raise_failure(self) -> None:
        """Raise CallbackError if a callback has failed."""
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Call `on_end` when the block has ended, however it ended."""
        try:
            yield
        except BaseException:
            self._end()
            raise
        self._end()
        self.raise_failure()

    def _end(self) -> None:
        if self._has_started:
            self.call("on_end", self.run.record.summary)

    def _call_one(self, callback: Callback, event: str, *arguments: Any) -> None:
        try:
            getattr(callback, event)(self.run, *arguments)
        except Exception as error:
            if self._failure is None:
                reason = " ".join(str(error).split())
                name = f"{type(callback).__name__}.{event}"
                self._failure = CallbackError(f"{name} failed: {type(error).__name__}: {reason}")
                self._failure.__cause__ = error


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Raise InputError unless all are Callback objects."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise InputError(
                f"{callback!r} is not a callback. Pass objects of subclasses of straggler.Callback."
            )
        if not callback.arrival_every >= 1:
            raise InputError(f"arrival_every must be at least 1, got {callback.arrival_every}")
