"""Processes that run one experiment each at a time; one that dies takes only that experiment with it."""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

from straggler.experiment import Experiment
from straggler.running.observer import RunProgress
from straggler.sweeps.grid import PlannedRun
from straggler.sweeps.results import SummaryRow, counted, summarise_run
from straggler.timing.clusters import Repetition

PATIENCE = 20.0  # seconds that a process has to save its run when the sweep is interrupted
CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class RunEvent:
    """What is heard of a task: how far it is (0 to 1), that it is done, why it failed or is run again."""

    task: PlannedRun
    what: Literal["spent", "done", "failed", "again"]
    content: Any  # a number, facts, a sentence


@dataclass
class PoolProcess:
    """A process, the line to it, and what it is doing."""

    process: Any
    line: Connection
    task: PlannedRun | None = None


@dataclass
class LocalPool:
    """`run` gives every task to a free process, in order, and passes on what they say."""

    jobs: int
    runs: Path
    data: Path | None = None
    address: str | None = None  # of the Ray cluster that runs of the ray engine join
    _seats: list[PoolProcess] = field(default_factory=list)

    def run(self, tasks: Iterable[PlannedRun]) -> Generator[RunEvent]:
        """Ends when nothing is left; closed early, the runs at hand are saved and go on next time."""
        waiting = deque(tasks)
        with self._staffed(min(self.jobs, len(waiting))):
            while waiting or any(seat.task for seat in self._seats):
                for seat in self._seats:
                    if seat.task is None and waiting:
                        self._give(seat, task := waiting.popleft())
                        yield RunEvent(task, "spent", 0.0)
                busy = {seat.line: seat for seat in self._seats if seat.task}
                for line in wait(list(busy)):
                    yield self._hear(busy[line])  # type: ignore[index]

    @contextmanager
    def _staffed(self, seats: int) -> Iterator[None]:
        self._seats = [PoolProcess(*start()) for _ in range(seats)]
        try:
            yield
        finally:
            for seat in self._seats:
                if seat.task is None:
                    seat.line.close()  # it ends by itself
                else:
                    seat.process.terminate()  # a run that is asked to stop saves itself
            for seat in self._seats:
                seat.process.join(PATIENCE)
                seat.process.kill()

    def _give(self, seat: PoolProcess, task: PlannedRun) -> None:
        seat.task = task
        order = task.order, self.runs, self.data, task.measurements, self.address
        try:
            seat.line.send(order)
        except OSError:  # it died while it was idle
            seat.process, seat.line = start()
            seat.line.send(order)

    def _hear(self, seat: PoolProcess) -> RunEvent:
        task = seat.task
        assert task is not None
        try:
            what, content = seat.line.recv()
        except (EOFError, OSError):
            seat.process.join(PATIENCE)
            what, content = "failed", f"its process died (exit code {seat.process.exitcode})"
            seat.process, seat.line = start()
        if what != "spent":
            seat.task = None
        return RunEvent(task, what, content)


def start() -> tuple[Any, Connection]:
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # so that its death is an end of file here
    return process, ours


def serve(line: Connection) -> None:
    """A process's life: one experiment after another, until nobody asks any more."""
    os.setpgrp()  # Ctrl-C is the sweep's: it asks each process once
    threading.Thread(target=end_with_parent, daemon=True).start()
    while True:
        try:
            order = line.recv()
        except EOFError:
            return
        line.send(run_and_summarise(lambda seen: line.send(("spent", seen.spent)), *order))


def run_and_summarise(
    progress: Callable[[RunProgress], None],
    order: dict[str, Any] | Repetition,
    runs: Path,
    data: Path | None,
    keep: tuple[str, ...],
    address: str | None = None,
) -> tuple[str, SummaryRow | str]:
    """Run or count an experiment on this core, or find it done; an error is an answer too."""
    try:
        if isinstance(order, Repetition):
            return "done", counted(order)
        experiment = Experiment(**order)
        cluster = address if experiment.engine == "ray" else None
        record = experiment.run(runs, jobs=1, data=data, progress=progress, address=cluster)
        return "done", summarise_run(experiment, record, keep, data)
    except KeyboardInterrupt:
        raise SystemExit(0) from None  # saved, because the sweep ends
    except Exception as error:
        return "failed", f"{type(error).__name__}: {' '.join(str(error).split())}"


def end_with_parent() -> None:
    """Nobody is left to tell: end at once; what was saved goes on next time."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
