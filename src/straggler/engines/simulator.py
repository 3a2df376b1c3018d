"""Virtual time: the clock jumps to the next finished job; messages are computed ahead on all cores."""

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, ClassVar, NamedTuple, Self

from straggler.core import Arrival, Change, Job, Message
from straggler.engines import EngineSetup
from straggler.engines.pool.compute_task import ComputeTask
from straggler.engines.pool.gradient_pool import GradientComputer
from straggler.timing.churn import Churn
from straggler.timing.cores import CoreSchedule
from straggler.timing.durations import Durations
from straggler.timing.links import Network

MAX_SWITCHES = 100_000  # of workers that come and go, without an arrival in between
MAX_CANCELLED = 1000  # jobs in the queue that are not in flight, besides two for each job in flight


# Stages of a job with shared cores: the model travels, the worker computes, the message travels, and the
# server handles it.
MODEL, WORK, MESSAGE, HANDLING = range(4)


class Transit(NamedTuple):
    """A job in flight, as a checkpoint stores it."""

    launch: int
    started: float
    due: float  # when the message reaches the server's link, or if it is there, when it is delivered
    is_at_server: bool  # whether the message waits in the queue of the server's link
    stage: int = 0  # with shared cores
    compute: float | None = None  # with shared cores, if the worker has finished: seconds since it began


class Simulator:
    """An engine in virtual time. Durations are known at submission, and with them the order of arrivals.

    Links, churn and shared cores are optional. Without them, an arrival costs no more than a few dictionary
    look-ups. With shared cores, a job's duration depends on the other processes, so each of its stages is an
    event.
    """

    is_virtual: ClassVar[bool] = True

    @classmethod
    def create(cls, setup: EngineSetup) -> Self:
        return cls(setup.compute, setup.durations, setup.network, setup.churn, setup.cores)

    def __init__(
        self,
        compute: GradientComputer,
        durations: Durations,
        network: Network | None = None,
        churn: Churn | None = None,
        cores: CoreSchedule | None = None,
    ) -> None:
        self.now = 0.0
        self.compute, self.durations = compute, durations
        self._compute_message = compute.message  # one bound method for all arrivals
        program = compute.program
        one_batch = program.batches is None
        self._count_samples = program.problem.batch_samples if one_batch else program.count_samples
        # (time, worker, launch); cancelled jobs stay in the queue, so it must not hold their models
        self._queue: list[tuple[float, int, int]] = []
        self._arrivals: dict[int, Arrival] = {}  # each busy worker's arrival to come
        self._uncomputed: list[tuple[float, int, int, ComputeTask]] = []  # tasks that are not started yet
        self._resumed: dict[int, float] = {}
        has_options = network is not None or churn is not None or cores is not None
        self._is_plain = not (has_options or durations.needs_samples)
        self._network = network or Network([], None, durations.workers, 0, 0)
        self._churn = churn or Churn([], durations.workers, 0)
        self._cores = cores
        self._stages: dict[int, int] = {}  # with shared cores: the stage of each busy worker's job
        self._at_server: set[int] = set()  # workers whose message waits in the queue of the server's link
        self._leaving: set[int] = set()  # workers that leave when their job has arrived
        self._switches = 0  # since the last arrival
        self._restored: dict[int, Transit] = {}
        absent = [worker for worker in range(durations.workers) if not self._churn.is_present(worker)]
        self._away = set(absent)  # workers that left, also if the server does not know yet
        self._changes = deque(Change(worker, 0.0, joined=False) for worker in absent)  # to report first
        if durations.needs_samples:
            durations.use_problem(compute.problem)

    @property
    def started(self) -> dict[int, float]:
        """When each busy worker's job started."""
        return {worker: arrival.started for worker, arrival in self._arrivals.items()}

    @property
    def launches(self) -> dict[int, int]:
        """The launch number of each busy worker's job."""
        return {worker: arrival.job.launch for worker, arrival in self._arrivals.items()}

    def state(self) -> dict[str, Any]:
        """Return what `resume` needs besides the clock: nothing for independent durations."""
        if self._is_plain:
            return {}
        return {
            "jobs": {
                worker: list(self._describe_transit(worker, each)) for worker, each in self._arrivals.items()
            },
            "leaving": sorted(self._leaving),
            "away": sorted(self._away),
            "changes": [[change.worker, change.time, change.joined] for change in self._changes],
            "network": self._network.state(),
            "churn": self._churn.state(),
            **({} if self._cores is None else {"cores": self._cores.state()}),
        }

    def _describe_transit(self, worker: int, arrival: Arrival) -> Transit:
        stage = self._stages.get(worker, MODEL)
        compute = arrival.compute if stage > WORK else None
        is_at_server = worker in self._at_server
        return Transit(arrival.job.launch, arrival.started, arrival.time, is_at_server, stage, compute)

    def resume(
        self,
        now: float,
        started: dict[int, float],
        present: list[int],
        state: dict[str, Any] | None = None,
    ) -> None:
        """Set the clock to `now`. The next jobs of these workers began at `started`."""
        self.now, self._resumed = now, dict(started)
        if not state:
            return
        self._resumed = {}
        self._restored = {worker: Transit(*job) for worker, job in state["jobs"].items()}
        self._leaving, self._away = set(state["leaving"]), set(state["away"])
        self._changes = deque(Change(*change) for change in state["changes"])
        self._network.restore(state["network"])
        self._churn.restore(state["churn"])
        if self._cores is not None:
            self._cores.restore(state["cores"])

    def submit(self, job: Job) -> bool:
        """Start a job; a busy worker abandons its current job. Return False if the worker is away."""
        worker, launch = job.worker, job.launch
        if self._is_plain:
            started = self._resumed.pop(worker, self.now) if self._resumed else self.now
            compute, delay = self.durations.parts(worker, launch)
            time = started + (compute + delay)
        elif (planned := self._plan(job)) is not None:
            started, time, compute, delay = planned
        else:
            return False
        samples = self._count_samples(worker, job.index)
        if self.compute.looks_ahead:
            fetch, ignore = self._create_task(job, time)
            arrival = Arrival(job, started, time, samples, fetch, ignore, compute, delay, lent=True)
        else:  # the message is computed when it is accessed
            arrival = Arrival(job, started, time, samples, self._compute_message, None, compute, delay)
        self._arrivals[worker] = arrival
        heappush(self._queue, (time, worker, launch))
        return True

    def next(self) -> Arrival | Change | None:
        """Advance the clock to the next arrival and return it; None if no worker is busy.

        With churn, also return the workers that leave and join.
        """
        if not self._is_plain:
            return self._next_event()
        arrivals = self._arrivals
        while self._queue:
            time, worker, launch = heappop(self._queue)
            if worker in arrivals and arrivals[worker].job.launch == launch:  # else it was cancelled
                self.now = time
                return arrivals.pop(worker)
        return None

    def close(self) -> None:
        """Do nothing: the caller that created the gradient computer closes it."""

    def _plan(self, job: Job) -> tuple[float, float, float, float] | None:
        """Return when a job starts, when its message reaches the server, and its compute and delay seconds.

        Return None if its worker is away.
        """
        worker, stored = job.worker, self._restored.pop(job.worker, None)
        if stored is not None and stored.launch != job.launch:
            stored = None  # the server replaced the job before the checkpoint
        if stored is None and worker in self._leaving:  # it should finish a job that is abandoned now
            self._leave(worker)
        if worker in self._away:  # the server will be told before anything else happens
            return None
        if len(self._queue) > 3 * len(self._arrivals) + MAX_CANCELLED:
            self._remove_cancelled()
        compute, delay = self.durations.job_parts(worker, job.launch, job.index)
        if stored is not None:
            (self._at_server.add if stored.is_at_server else self._at_server.discard)(worker)
            self._stages[worker] = stored.stage
            is_on_core = self._cores is not None and stored.stage in (WORK, HANDLING)
            due = math.inf if is_on_core else stored.due  # the cores know when it ends
            return stored.started, due, compute if stored.compute is None else stored.compute, delay
        self._at_server.discard(worker)
        started = self._resumed.pop(worker, self.now)
        received = self._network.send_model(worker, started)
        if self._cores is not None:
            self._cores.cancel(worker, self.now)
            self._cores.drop_message(worker, self.now)
            self._stages[worker] = MODEL
            return started, received, compute, delay
        finished = received + (compute + delay)
        return started, self._network.send_message(worker, finished), compute, delay

    def _next_event(self) -> Arrival | Change | None:
        """Return the next arrival or the next worker that leaves or joins; at equal times the worker."""
        arrivals, queue, churn, cores = self._arrivals, self._queue, self._churn, self._cores
        while not self._changes:
            due = queue[0][0] if queue else math.inf
            if cores is not None and cores.next_time <= due and cores.next_time < math.inf:
                if (arrival := self._advance_cores(cores)) is not None:
                    return arrival
                continue
            if not queue or churn.next_time <= due:
                if churn.next_time == math.inf:
                    return None
                self._switch()
                continue
            time, worker, launch = heappop(queue)
            arrival = arrivals.get(worker)
            if arrival is None or arrival.job.launch != launch:  # it was cancelled
                continue
            if cores is not None and self._stages[worker] == MODEL:
                assert arrival.compute is not None
                self._stages[worker] = WORK
                cores.start(worker, arrival.compute, time)
                continue
            if self._network.is_shared and worker not in self._at_server:
                arrival.time = self._network.receive_message(time)
                self._at_server.add(worker)
                heappush(queue, (arrival.time, worker, launch))
                continue
            if cores is not None and cores.settings.server > 0:
                self._stages[worker] = HANDLING
                cores.deliver(worker, time)
                continue
            self.now, self._switches = time, 0
            self._at_server.discard(worker)
            del arrivals[worker]
            if worker in self._leaving:
                self._leave(worker)
            return arrival
        return self._changes.popleft()

    def _advance_cores(self, cores: CoreSchedule) -> Arrival | None:
        """Let the next thing happen on the cores; return an arrival that the server has handled."""
        if (work := cores.advance()) is None:
            return None
        worker, arrival = work.worker, self._arrivals[work.worker]
        if work.is_handled:  # as on real engines: the arrival counts when the server turns to it
            arrival.time, self.now = work.began, work.ended
            del self._arrivals[worker]
            self._at_server.discard(worker)
            return arrival
        self._stages[worker] = MESSAGE
        arrival.compute = work.ended - work.began
        arrival.time = self._network.send_message(worker, work.ended + (arrival.delay or 0.0))
        heappush(self._queue, (arrival.time, worker, arrival.job.launch))
        return None

    def _switch(self) -> None:
        """Let the next worker switch between present and absent, and note the change for the server."""
        self.now, worker, grace = self._churn.switch()
        self._switches += 1
        if self._switches > max(MAX_SWITCHES, 10 * self.durations.workers):
            raise RuntimeError(
                f"Workers left and joined {self._switches:,} times without finishing a job. They leave "
                f"before their jobs end, or the policy waits for a worker that is away. "
                f"Let the workers stay longer, or use another policy."
            )
        if grace is None:
            if self._churn.is_present(worker):
                self._leaving.discard(worker)
                if worker in self._away:
                    self._away.remove(worker)
                    self._changes.append(Change(worker, self.now, joined=True))
        elif worker not in self._away:
            arrival = self._arrivals.get(worker)
            if arrival is None or grace == 0.0:
                self._leave(worker)
            elif worker in self._at_server or arrival.time <= self.now + grace:
                self._leaving.add(worker)
            else:
                self._leave(worker)

    def _leave(self, worker: int) -> None:
        """Forget a worker's job, and note for the server that the worker left."""
        self._leaving.discard(worker)
        self._at_server.discard(worker)
        self._away.add(worker)
        if (lost := self._arrivals.pop(worker, None)) is not None:
            lost.ignore()
        self._changes.append(Change(worker, self.now, joined=False))

    def _remove_cancelled(self) -> None:
        """Remove cancelled jobs from the queues, so that they do not grow without bound."""
        launches = self.launches
        self._queue[:] = [each for each in self._queue if launches.get(each[1]) == each[2]]
        self._uncomputed[:] = [each for each in self._uncomputed if not each[-1].abandoned]
        heapify(self._queue)
        heapify(self._uncomputed)

    def _create_task(self, job: Job, time: float) -> tuple[Callable[[Job], Message], Callable[[], None]]:
        """Create the task that computes a message ahead; return functions that fetch and abandon it."""
        if (abandoned := self._arrivals.get(job.worker)) is not None:
            abandoned.ignore()
        task = self.compute.message_task(job)
        heappush(self._uncomputed, (time, job.worker, job.launch, task))
        return partial(self._fetch, task), partial(self.compute.abandon, task)

    def _fetch(self, task: ComputeTask, job: Job) -> Message:
        self.compute.start_tasks(self._next_uncomputed)
        return self.compute.borrow(task)

    def _next_uncomputed(self) -> ComputeTask | None:
        """Return the task with the earliest arrival that is not started yet."""
        while self._uncomputed:
            task = heappop(self._uncomputed)[-1]
            if not task.abandoned:
                return task
        return None
