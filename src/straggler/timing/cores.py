"""Cores that workers and server share in virtual time, when processes outnumber cores."""

import math
from bisect import insort
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, NamedTuple

from pydantic import Field

from straggler.config.registry import Catalogue, CatalogueEntry
from straggler.core.randomness import addressed_rng
from straggler.timing.laws import BLOCK, Array, draw_gamma

SERVER = -1  # the server's number among the processes; the workers have theirs
DONE = 1e-12  # remaining seconds that count as none


class Cores(CatalogueEntry):
    """Cores of one machine, shared fairly by the processes of the workers and the server.

    A law's compute time is then CPU time; delays and links use no core. A core runs the process that has used
    it least, until another one waits that has used `slice` seconds less. A process stays on its core; a core
    that was idle for a slice takes over a process that waits for another core. The server uses a core for a
    gamma time per message with mean `server` and coefficient of variation `cv`.
    """

    name: ClassVar[str] = "cores"
    count: int = Field(ge=1)
    slice: float = Field(0.001, gt=0)
    server: float = Field(0.0, ge=0)
    cv: float = Field(0.0, ge=0)


CORES = Catalogue("number of cores", "cores", Cores, [Cores])


@dataclass
class Core:
    """One core: the process that it runs, and those that wait for it."""

    running: int | None = None
    waiting: list[tuple[float, int]] = field(default_factory=list)  # (seconds used, process), sorted
    since: float = 0.0  # when `running` was last charged, or when the core became idle
    until: float = math.inf  # when the running process ends or makes room; when an idle core helps another
    least: float = 0.0  # seconds used by the process that used least; it never decreases


@dataclass
class Process:
    """A worker or the server: its core, the seconds it used, and its current job."""

    core: int
    used: float = 0.0  # seconds, on the scale of its core
    remaining: float = 0.0  # of the current job
    began: float | None = None  # when the current job was first run


class FinishedWork(NamedTuple):
    """A job that a worker computed, or a message that the server handled."""

    worker: int
    is_handled: bool  # whether the server handled the worker's message
    began: float
    ended: float


class CoreSchedule:
    """Which process runs on which core, and until when."""

    def __init__(self, cores: Cores, workers: int, seed: int) -> None:
        self.settings, self._seed = cores, seed
        self._cores = [Core() for _ in range(cores.count)]
        self._processes = {
            process: Process((process + 1) % cores.count) for process in range(SERVER, workers)
        }
        self._inbox: deque[int] = deque()  # workers whose message waits; the server handles the first
        self._handled = 0  # messages that the server began to handle
        self._drawn = 0, self._draw_server_times(0)  # the latest block of its times

    @property
    def next_time(self) -> float:
        """When something happens next; inf if all processes are idle."""
        return min(core.until for core in self._cores)

    def start(self, process: int, seconds: float, now: float) -> None:
        """Let a process use a core for some seconds. Starting a busy process replaces its job."""
        self.cancel(process, now)
        this = self._processes[process]
        core = self._cores[this.core]
        self._charge(core, now)
        this.remaining, this.began = seconds, None
        this.used = max(this.used, core.least - self.settings.slice)  # having slept earns one slice at most
        insort(core.waiting, (this.used, process))
        if core.running is None or this.used < self._processes[core.running].used:
            self._dispatch(core, now)
        else:
            self._plan(core, now)
        self._plan_idle_cores(now)

    def cancel(self, process: int, now: float) -> None:
        """Stop the job of a process, if it has one."""
        this = self._processes[process]
        core = self._cores[this.core]
        if core.running == process:
            self._charge(core, now)
            core.running = None
            self._dispatch(core, now)
        elif (waiting := (this.used, process)) in core.waiting:
            core.waiting.remove(waiting)
            self._plan(core, now)

    def deliver(self, worker: int, now: float) -> None:
        """Put a worker's message into the queue of the server."""
        self._inbox.append(worker)
        if len(self._inbox) == 1:
            self._start_handling(now)

    def drop_message(self, worker: int, now: float) -> None:
        """Remove a worker's message from the queue of the server, if it is there."""
        if worker in self._inbox:
            first = self._inbox[0]
            self._inbox.remove(worker)
            if worker == first:
                self.cancel(SERVER, now)
                self._start_handling(now)

    def advance(self) -> FinishedWork | None:
        """Let the next thing happen; return the work that ended, if any."""
        core = min(self._cores, key=lambda core: core.until)
        now, process = core.until, core.running
        if process is None:
            self._help_another(core, now)
            return None
        self._charge(core, now)
        this = self._processes[process]
        if this.remaining > DONE:  # its slice is over
            self._dispatch(core, now)
            return None
        core.running, began = None, this.began
        assert began is not None
        self._dispatch(core, now)
        if process != SERVER:
            return FinishedWork(process, False, began, now)
        worker = self._inbox.popleft()
        self._start_handling(now)
        return FinishedWork(worker, True, began, now)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "cores": [asdict(core) for core in self._cores],
            "processes": [asdict(this) for this in self._processes.values()],
            "inbox": list(self._inbox),
            "handled": self._handled,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint."""
        self._cores = [Core(**core) for core in state["cores"]]
        for core in self._cores:
            core.waiting = [(used, process) for used, process in core.waiting]
        self._processes = {number: Process(**this) for number, this in enumerate(state["processes"], SERVER)}
        self._inbox, self._handled = deque(state["inbox"]), state["handled"]

    def _start_handling(self, now: float) -> None:
        """Let the server handle the first message of its queue."""
        if self._inbox:
            block, place = divmod(self._handled, BLOCK)
            if block != self._drawn[0]:
                self._drawn = block, self._draw_server_times(block)
            self._handled += 1
            self.start(SERVER, float(self._drawn[1][place]), now)

    def _draw_server_times(self, block: int) -> Array:
        rng = addressed_rng(self._seed, "server", 0, block)
        return draw_gamma(rng, self.settings.server, self.settings.cv, BLOCK)

    def _charge(self, core: Core, now: float) -> None:
        """Note the seconds that the running process has used."""
        if core.running is None:
            return
        this = self._processes[core.running]
        this.used += now - core.since
        this.remaining -= now - core.since
        core.since = now
        core.least = max(core.least, min(this.used, core.waiting[0][0]) if core.waiting else this.used)

    def _dispatch(self, core: Core, now: float) -> None:
        """Run the process that used the core least."""
        if core.running is not None:
            insort(core.waiting, (self._processes[core.running].used, core.running))
        core.running, core.since = None, now
        if core.waiting:
            _, core.running = core.waiting.pop(0)
            this = self._processes[core.running]
            this.began = now if this.began is None else this.began
        self._plan(core, now)

    def _plan(self, core: Core, now: float) -> None:
        """Decide until when a core goes on."""
        if core.running is None:
            is_needed = any(other.waiting for other in self._cores)
            core.until = max(now, core.since + self.settings.slice) if is_needed else math.inf
            return
        this = self._processes[core.running]
        seconds = this.remaining
        if core.waiting:
            seconds = min(seconds, core.waiting[0][0] + self.settings.slice - this.used)
        core.until = now + max(0.0, seconds)

    def _plan_idle_cores(self, now: float) -> None:
        for core in self._cores:
            if core.running is None:
                self._plan(core, now)

    def _help_another(self, core: Core, now: float) -> None:
        """Let an idle core take over a process of the longest queue: the one that used most."""
        other = max(self._cores, key=lambda core: len(core.waiting))
        if not other.waiting:
            core.until = math.inf
            return
        self._charge(other, now)
        used, process = other.waiting.pop()
        this = self._processes[process]
        this.core, this.used = self._cores.index(core), used + core.least - other.least
        self._plan(other, now)
        insort(core.waiting, (this.used, process))
        self._dispatch(core, now)
        self._plan_idle_cores(now)
