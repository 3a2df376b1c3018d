"""Messages and evaluations, computed here or on a pool of processes with the same results.

Ownership of the memory of a message's vector:
- A process of the pool writes an encoded message into its slot of shared memory. The slot stays in use.
- `result(task)` copies the message and frees the slot; the caller owns the copy.
- `borrow(task)` returns the message in the slot, without a copy. The next call of `borrow`, `result` or
  `start_tasks` frees the slot. ProcessEngine lends messages in the same way, until the worker's next job.
- An Arrival with `lent=True` has such a message. Code that needs it after the arrival was processed calls
  `Arrival.keep()`, which copies it: the server if a step merges several messages, and a checkpoint.
"""

import math
import pickle
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from torch import Tensor

from straggler.core import EvaluationChunk, Job, Message, Problem, Split, WorkerProgram
from straggler.core.devices import DEFAULT_PLACEMENT, Placement
from straggler.core.program import fetch_memory
from straggler.engines.pool.child_process import ChildProcess, ChildRuntime, SharedSlot, SlotLayout
from straggler.engines.pool.compute_task import ComputeTask, PoolError
from straggler.engines.pool.shared_memory import pack_shared
from straggler.running.watchdog import note_progress

SLOTS = 3  # tasks that a process may have: one is computed while the others wait, so that it never idles
WAKE_SECONDS = 5.0  # between two looks at the processes while no message comes
MAX_DEATHS = 5  # average deaths of busy processes, without a result in between, before the run fails


class GradientComputer:
    """Compute tasks in this process, when their results are needed."""

    looks_ahead = False  # whether `start_tasks` starts anything

    def __init__(self, program: WorkerProgram) -> None:
        self.program = program
        self.message = program.compute  # computes the message of a job now, in this process

    @property
    def problem(self) -> Problem:
        """The problem that the messages minimise."""
        return self.program.problem

    def wait_until_ready(self) -> None:
        """Wait until all processes can compute."""

    def message_task(self, job: Job) -> ComputeTask:
        """Return the task that computes the message of a job."""
        return ComputeTask(("message", job.worker, job.index), job.x, job.buffers, fetch_memory(job.memory))

    def result(self, task: ComputeTask) -> Any:
        """Return the result of a task, which belongs to the caller."""
        note_progress()
        kind, *where = task.call
        if kind == "evaluate":
            return self.problem.evaluate(task.x, task.buffers, *where)
        worker, index = where
        return self.program.compute(Job(worker, index, 0, 0, task.x, task.buffers, task.memory))

    def borrow(self, task: ComputeTask) -> Message:
        """Return a message that is valid until the next call of this object (see the module's docstring)."""
        message: Message = self.result(task)
        return message

    def start_tasks(self, next_task: Callable[[], ComputeTask | None], urgent: bool = False) -> None:
        """Start tasks whose results will be needed soon. `next_task` returns them in order, then None.

        Urgent tasks may take the slots of finished ones.
        """

    def abandon(self, task: ComputeTask) -> None:
        """Declare that the result of a task is not needed."""
        task.abandon()

    def evaluation_tasks(self, x: Tensor, buffers: Tensor, split: Split) -> list[ComputeTask]:
        """Return a task for each chunk of a split, in order."""
        chunks = range(self.problem.count_chunks(split))
        return [ComputeTask(("evaluate", split, chunk), x, buffers) for chunk in chunks]

    def evaluate_each(
        self, models: Iterable[tuple[Tensor, Tensor]], split: Split
    ) -> Iterator[list[EvaluationChunk]]:
        """Evaluate models one after the other, and start the next while waiting for the first."""
        tasks = (task for model in models for task in self.evaluation_tasks(*model, split))
        started, chunks = deque[ComputeTask](), list[EvaluationChunk]()

        def next_task() -> ComputeTask | None:
            if (task := next(tasks, None)) is not None:
                started.append(task)
            return task

        while True:
            self.start_tasks(next_task, urgent=True)
            if not started and next_task() is None:
                return
            chunks.append(self.result(started.popleft()))
            if len(chunks) == self.problem.count_chunks(split):
                yield chunks
                chunks = []

    def close(self) -> None:
        """End all processes."""


class GradientPool(GradientComputer):
    """Compute tasks on several processes; models and gradients travel in shared memory.

    A process that dies, or sends nothing for `timeout` seconds although it has a task, is restarted. Its
    tasks are pure functions and are computed again, after a hang in this process. Until the processes are
    ready, this process computes. With `joins`, this process also computes instead of waiting: a
    pool of one process less than there are cores then uses every core.
    """

    looks_ahead = True

    def __init__(
        self,
        program: WorkerProgram,
        processes: int,
        joins: bool = False,
        timeout: float = math.inf,
        report: Callable[[str], None] = lambda line: None,
        placement: Placement = DEFAULT_PLACEMENT,
    ) -> None:
        super().__init__(program)
        self._placement = placement
        self._joins, self._timeout, self._report = joins, timeout, report
        self._next_task: Callable[[], ComputeTask | None] = lambda: None
        self._layout = SlotLayout.of(program, program.dtype)  # evaluations need the exact model
        self._packed = pack_shared(program)
        self._selector = DefaultSelector()
        self._deaths = 0  # since a process last delivered a result
        self._borrowed: ComputeTask | None = None
        self._children = [self._start_process() for _ in range(processes)]

    def _start_process(self) -> ChildProcess:
        child = ChildProcess(serve_tasks, self._packed, self._layout, SLOTS, self._placement)
        self._selector.register(child.connection, EVENT_READ, child)
        return child

    def wait_until_ready(self) -> None:
        while not all(child.is_ready for child in self._children):
            self._wait()

    def start_tasks(self, next_task: Callable[[], ComputeTask | None], urgent: bool = False) -> None:
        self._release_borrowed()
        self._next_task = next_task
        self._fill_slots(urgent)

    def result(self, task: ComputeTask) -> Any:
        self._wait_for(task)
        self._release(task)
        return task.result

    def borrow(self, task: ComputeTask) -> Message:
        self._wait_for(task)
        message = task.result
        assert isinstance(message, Message)
        if task.slot is not None:
            self._borrowed = task
        return message

    def abandon(self, task: ComputeTask) -> None:
        super().abandon(task)
        if task.done:
            self._release(task)

    def close(self) -> None:
        for child in self._children:
            child.close()
        for memory in self._packed:
            memory.close()
        self._selector.close()

    def _release_borrowed(self) -> None:
        """Free the slot of a borrowed gradient, which the borrower no longer needs."""
        if self._borrowed is not None and self._borrowed.slot is not None:
            self._borrowed.slot.task, self._borrowed.slot = None, None
        self._borrowed = None

    def _release(self, task: ComputeTask) -> None:
        """Copy the result out of the shared memory and free the slot."""
        if task.slot is None:
            return
        if isinstance(task.result, Message) and not task.abandoned:
            task.result = replace(task.result, vector=task.result.vector.clone())
        task.slot.task, task.slot = None, None

    def _wait_for(self, task: ComputeTask) -> None:
        """Wait until a task is done; meanwhile compute others here, if this process joins."""
        self._release_borrowed()
        while not task.done:
            if task.slot is None:
                if self._joins or task.hung or not any(child.is_ready for child in self._children):
                    self._compute_here(task)
                else:
                    self._start(task, self._wait_for_slot())
            elif self._joins and (another := self._find_unstarted()) is not None:
                self._compute_here(another)
                self._fill_slots()
            else:
                self._wait()
        if task.error is not None:
            raise RuntimeError(f"Computing {task.call} failed:\n{task.error}")

    def _find_unstarted(self) -> ComputeTask | None:
        """Return the next upcoming task that no process computes."""
        task = self._next_task()
        while task is not None and (task.slot is not None or task.done):
            task = self._next_task()
        return task

    def _compute_here(self, task: ComputeTask) -> None:
        """Compute a task in this process; an error is raised when the result is needed."""
        try:
            task.result = super().result(task)
        except Exception:
            task.error = traceback.format_exc()

    def _fill_slots(self, urgent: bool = False) -> None:
        """Start upcoming tasks in all free slots."""
        self._receive(timeout=0)
        self._replace_hung()
        while (slot := self._find_free_slot() or (self._clear_slot() if urgent else None)) is not None:
            task = self._find_unstarted()
            if task is None:
                return
            self._start(task, slot)

    def _find_free_slot(self) -> SharedSlot | None:
        """Return a free slot of the process with the fewest tasks."""
        child = min(self._children, key=lambda child: child.load)
        return next((slot for slot in child.slots if slot.task is None), None) if child.is_ready else None

    def _clear_slot(self) -> SharedSlot | None:
        """Copy a finished result out of its slot and return the slot."""
        for child in self._children:
            for slot in child.slots:
                if slot.task is not None and slot.task.done:
                    self._release(slot.task)
                    return slot
        return None

    def _wait_for_slot(self) -> SharedSlot:
        while (slot := self._find_free_slot() or self._clear_slot()) is None:
            self._wait()
        return slot

    def _start(self, task: ComputeTask, slot: SharedSlot) -> None:
        """Send a task to the process of a slot."""
        slot.write_inputs(task.x, task.buffers, task.memory)
        if not slot.process.load:
            slot.process.heard = time.monotonic()
        task.slot, slot.task = slot, task
        with suppress(OSError):  # the process died: `_receive` notices and starts its tasks again
            call = slot.number, task.call, task.memory is not None
            slot.process.connection.send_bytes(pickle.dumps(call))

    def _wait(self) -> None:
        """Wait for messages and receive them, and replace hung processes."""
        note_progress()
        left = min(child.deadline(self._timeout) for child in self._children) - time.monotonic()
        self._receive(max(0.0, min(left, WAKE_SECONDS)))
        self._replace_hung()

    def _replace_hung(self) -> None:
        """Replace the processes that have sent nothing for too long, also while they start."""
        for child in self._children.copy():
            if child.deadline(self._timeout) <= time.monotonic() and not child.connection.poll():
                self._report(f"A process that computes sent nothing for {self._timeout:g} s; restarting it.")
                for task in filter(None, (slot.task for slot in child.slots)):
                    task.hung = True
                self._replace(child)

    def _receive(self, timeout: float) -> None:
        """Receive a message from every process that has sent one."""
        for key, _ in self._selector.select(timeout):
            child: ChildProcess = key.data
            try:
                message = child.connection.recv()
            except (EOFError, OSError):
                self._replace(child)
                continue
            child.heard = time.monotonic()
            if isinstance(message, int):  # the first message: the process is ready
                child.pid = message
                continue
            self._deaths = 0
            number, outcome = message
            self._finish(child.slots[number], outcome)

    def _finish(self, slot: SharedSlot, outcome: float | EvaluationChunk | str) -> None:
        """Store the outcome of the task in a slot: a loss, an evaluation, or a traceback."""
        task = slot.task
        assert task is not None
        if isinstance(outcome, str):
            task.error = outcome
        elif isinstance(outcome, EvaluationChunk):
            task.result = outcome
        else:
            _, worker, index = task.call
            task.result = slot.read_message(self.program, worker, index, outcome)
        if task.abandoned:
            self._release(task)

    def _replace(self, child: ChildProcess) -> None:
        """Restart a process that died, and start its unfinished tasks again."""
        self._selector.unregister(child.connection)
        child.close()
        self._deaths += child.load > 0  # a process that was killed while it was idle does not count
        if self._deaths > MAX_DEATHS * len(self._children):
            raise PoolError(
                f"Processes of the pool keep dying (last exit code {child.exit_code}; -9 often means that "
                f"memory ran out). Use fewer processes with --jobs."
            )
        tasks = [slot.task for slot in child.slots if slot.task is not None]
        unfinished = [task for task in tasks if not (task.done or task.abandoned or task.hung)]
        for task in tasks:
            self._release(task)
        self._children[self._children.index(child)] = restarted = self._start_process()
        for task, slot in zip(unfinished, restarted.slots, strict=False):
            self._start(task, slot)


def create_computer(
    program: WorkerProgram,
    cores: int,
    timeout: float = math.inf,
    report: Callable[[str], None] = lambda line: None,
) -> GradientComputer:
    """Return a computer that uses this process and one more process for every other core."""
    if cores == 1:
        return GradientComputer(program)
    return GradientPool(program, cores - 1, joins=True, timeout=timeout, report=report)


def serve_tasks(connection_fd: int, memory_fd: int) -> None:
    """Compute tasks in a process of the pool, until the parent closes the connection."""
    with suppress(EOFError, OSError), ChildRuntime(connection_fd, memory_fd) as runtime:
        while True:
            number, call, has_memory = runtime.connection.recv()
            runtime.connection.send_bytes(pickle.dumps((number, runtime.compute(number, call, has_memory))))
