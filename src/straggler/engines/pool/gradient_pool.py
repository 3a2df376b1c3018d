"""Gradients and evaluations of one problem, here or on a pool of processes: the same bits either way."""

import pickle
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from typing import Any

import torch
from torch import Tensor

from straggler.core import EvaluationChunk, Gradient, Job, Problem, Split
from straggler.engines.pool.child_process import ChildProcess, Inside, Layout, SharedSlot, perform
from straggler.engines.pool.shared_memory import SharedMemory, pack

NOTHING = torch.empty(0)
DEPTH = 3  # tasks a process may have: one at work, others waiting, so that it never idles
RESPAWNS = 3  # how often each process may die, in a row, before the run gives up


class ComputeTask:
    """Something to compute, at most once: started ahead of time, or when its result is asked for."""

    __slots__ = ("abandoned", "buffers", "call", "error", "result", "seat", "x")

    def __init__(self, call: tuple[Any, ...], x: Tensor, buffers: Tensor) -> None:
        self.call, self.x, self.buffers = call, x, buffers
        self.seat: SharedSlot | None = None
        self.result: Gradient | EvaluationChunk | None = None
        self.error: str | None = None
        self.abandoned = False

    def abandon(self) -> None:
        """Nobody will ask for it, nor need the model it was to be computed at."""
        self.abandoned, self.x, self.buffers = True, NOTHING, NOTHING

    @property
    def done(self) -> bool:
        return self.result is not None or self.error is not None


class GradientComputer:
    """Computes every task in this process, when it is asked for."""

    looks_ahead = False  # whether `ahead` does anything, and what is borrowed must be given back

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def wait_until_ready(self) -> None:
        """It is."""

    def gradient_task(self, x: Tensor, buffers: Tensor, worker: int, index: int) -> ComputeTask:
        return ComputeTask(("gradient", worker, index), x, buffers)

    def gradient(self, job: Job) -> Gradient:
        """Compute the gradient of a job now, in this process."""
        return self.problem.gradient(job.x, job.buffers, job.worker, job.index)

    def result(self, task: ComputeTask) -> Any:
        return perform(self.problem, task.call, task.x, task.buffers)

    def borrow(self, task: ComputeTask) -> Gradient:
        """A gradient that is good until something else is asked for."""
        gradient: Gradient = self.result(task)
        return gradient

    def ahead(self, upcoming: Callable[[], ComputeTask | None], urgent: bool = False) -> None:
        """Start what will be asked for soon, the soonest first; urgent tasks push finished ones aside."""

    def abandon(self, task: ComputeTask) -> None:
        """Nobody will ask for this one."""
        task.abandon()

    def evaluation_tasks(self, x: Tensor, buffers: Tensor, split: Split) -> list[ComputeTask]:
        """All chunks of a split, in order."""
        return [
            ComputeTask(("evaluate", split, chunk), x, buffers)
            for chunk in range(self.problem.count_chunks(split))
        ]

    def evaluate_each(
        self, models: Iterable[tuple[Tensor, Tensor]], split: Split
    ) -> Iterator[list[EvaluationChunk]]:
        """The same of one model after another; the next are begun while the first are waited for."""
        parts = range(self.problem.count_chunks(split))
        tasks = (ComputeTask(("evaluate", split, part), *model) for model in models for part in parts)
        begun, chunks = deque[ComputeTask](), list[EvaluationChunk]()

        def soonest() -> ComputeTask | None:
            if (task := next(tasks, None)) is not None:
                begun.append(task)
            return task

        while True:
            self.ahead(soonest, urgent=True)
            if not begun and soonest() is None:
                return
            chunks.append(self.result(begun.popleft()))
            if len(chunks) == len(parts):
                yield chunks
                chunks = []

    def close(self) -> None: ...


class GradientPool(GradientComputer):
    """Tasks on several processes; models and gradients travel in shared memory.

    A process that dies is replaced and its tasks are done again: they are pure functions. Until the
    processes are up, tasks are done here. One that `joins` computes too instead of waiting: with a core for
    each of the others and this, none has to make room for another.
    """

    looks_ahead = True

    def __init__(self, problem: Problem, processes: int, joins: bool = False) -> None:
        super().__init__(problem)
        self._joins = joins
        self._upcoming: Callable[[], ComputeTask | None] = lambda: None
        x, buffers = problem.initial_model()
        self._layout = Layout(x.numel(), buffers.numel(), x.dtype)
        payload, self._shared = pack(problem)
        self._problem = SharedMemory(len(payload))
        self._problem.bytes[: len(payload)] = payload
        self._selector = DefaultSelector()
        self._children = [self._spawn() for _ in range(processes)]
        self._deaths = 0
        self._lent: ComputeTask | None = None  # whose gradient is used where the process left it

    def _spawn(self) -> ChildProcess:
        inherited = [memory.fd for memory in self._shared]
        child = ChildProcess(serve, self._problem, inherited, self._layout, DEPTH)
        self._selector.register(child.connection, EVENT_READ, child)
        return child

    def wait_until_ready(self) -> None:
        while not all(child.ready for child in self._children):
            self._listen(timeout=None)

    def ahead(self, upcoming: Callable[[], ComputeTask | None], urgent: bool = False) -> None:
        self._take_back()
        self._upcoming = upcoming
        self._fill(urgent)

    def _fill(self, urgent: bool = False) -> None:
        """Give the processes what they have seats for."""
        self._listen(timeout=0)
        while (seat := self._free_seat() or (self._vacated_seat() if urgent else None)) is not None:
            task = self._another()
            if task is None:
                return
            self._start(task, seat)

    def result(self, task: ComputeTask) -> Any:
        self._await(task)
        self._release(task)
        return task.result

    def borrow(self, task: ComputeTask) -> Gradient:
        self._await(task)
        found = task.result
        assert isinstance(found, Gradient)
        if task.seat is None:
            return found
        self._lent = task
        return Gradient(found.vector, found.loss, found.buffers.clone())

    def _take_back(self) -> None:
        """What was borrowed has been used: its seat is free."""
        if self._lent is not None and self._lent.seat is not None:
            self._lent.seat.task, self._lent.seat = None, None
        self._lent = None

    def _await(self, task: ComputeTask) -> None:
        self._take_back()
        if task.seat is None and not task.done:
            if self._joins or not any(child.ready for child in self._children):
                self._compute(task)
            else:
                self._start(task, self._make_room())
        while task.result is None:
            if task.error is not None:
                raise RuntimeError(f"computing {task.call} failed:\n{task.error}")
            another = self._another() if self._joins else None
            if another is None:
                self._listen(timeout=None)
            else:  # while what is waited for is computed elsewhere
                self._compute(another)
                self._fill()

    def _another(self) -> ComputeTask | None:
        """The next to be asked for that nobody computes."""
        task = self._upcoming()
        while task is not None and (task.seat is not None or task.done):
            task = self._upcoming()
        return task

    def _compute(self, task: ComputeTask) -> None:
        """Here; what goes wrong is for whoever asks for it, if anybody does."""
        try:
            task.result = super().result(task)
        except Exception:
            task.error = traceback.format_exc()

    def abandon(self, task: ComputeTask) -> None:
        super().abandon(task)
        if task.done:
            self._release(task)

    def close(self) -> None:
        for child in self._children:
            child.close()
        for memory in (self._problem, *self._shared):
            memory.close()
        self._selector.close()

    def _free_seat(self) -> SharedSlot | None:
        """A free seat at the process with the least to do."""
        least = min(self._children, key=lambda child: child.load)
        return next((seat for seat in least.seats if seat.task is None), None) if least.ready else None

    def _vacated_seat(self) -> SharedSlot | None:
        """A seat whose finished result was moved out of the shared memory."""
        for child in self._children:
            for seat in child.seats:
                if seat.task is not None and seat.task.done:
                    self._release(seat.task)
                    return seat
        return None

    def _make_room(self) -> SharedSlot:
        while (seat := self._free_seat() or self._vacated_seat()) is None:
            self._listen(timeout=None)
        return seat

    def _start(self, task: ComputeTask, seat: SharedSlot) -> None:
        seat.x.copy_(task.x)
        seat.buffers.copy_(task.buffers)
        task.seat, seat.task = seat, task
        with suppress(OSError):  # it died: `_listen` finds out and does its tasks again
            seat.process.connection.send_bytes(pickle.dumps((seat.number, task.call)))

    def _release(self, task: ComputeTask) -> None:
        """Take the result out of the shared memory and leave the seat."""
        if task.seat is None:
            return
        if isinstance(task.result, Gradient) and not task.abandoned:
            seat = task.seat
            task.result = Gradient(seat.gradient.clone(), task.result.loss, seat.buffers_after.clone())
        task.seat.task, task.seat = None, None

    def _listen(self, timeout: float | None) -> None:
        """Hear from every process that has something to say."""
        for key, _ in self._selector.select(timeout):
            child: ChildProcess = key.data
            try:
                message = child.connection.recv()
            except (EOFError, OSError):
                self._replace(child)
                continue
            if isinstance(message, int):
                child.pid = message
                continue
            self._deaths = 0
            number, outcome = message
            self._finish(child.seats[number], outcome)

    def _finish(self, seat: SharedSlot, outcome: float | EvaluationChunk | str) -> None:
        task = seat.task
        assert task is not None
        if isinstance(outcome, str):
            task.error = outcome
        else:
            task.result = (
                outcome
                if isinstance(outcome, EvaluationChunk)
                else Gradient(seat.gradient, outcome, seat.buffers_after)
            )
        if task.abandoned:
            self._release(task)

    def _replace(self, child: ChildProcess) -> None:
        self._selector.unregister(child.connection)
        child.close()
        self._deaths += 1
        if self._deaths > RESPAWNS * len(self._children):
            raise RuntimeError(
                f"processes of the pool keep dying (last exit code {child.exit_code}; "
                f"-9 is often a lack of memory): use fewer with --jobs"
            )
        unfinished = [
            s.task for s in child.seats if s.task and s.task.result is None and not s.task.abandoned
        ]
        for seat in child.seats:
            if seat.task is not None:
                self._release(seat.task)
        fresh = self._spawn()
        self._children[self._children.index(child)] = fresh
        for task, seat in zip(unfinished, fresh.seats, strict=False):
            self._start(task, seat)


def on_cores(problem: Problem, cores: int) -> GradientComputer:
    """This process, and one more for every other core."""
    return GradientPool(problem, cores - 1, joins=True) if cores > 1 else GradientComputer(problem)


def serve(connection_fd: int, memory_fd: int) -> None:
    """A process of the pool: perform tasks until the other end closes."""
    with suppress(EOFError, OSError), Inside(connection_fd, memory_fd) as inside:
        while True:
            number, call = inside.connection.recv()
            inside.connection.send_bytes(pickle.dumps((number, inside.answer(number, call))))
