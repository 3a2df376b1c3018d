"""Settings of the workers: batch sizes, batches per job, durations, network, churn, and the run's budget."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from straggler.config.fields import ExperimentFields
from straggler.config.settings import BALANCED, BUDGETS
from straggler.config.targets import Target
from straggler.core import Problem, WorkerProgram
from straggler.core.loop import Budget
from straggler.timing import Durations
from straggler.timing.churn import Churn
from straggler.timing.cores import CoreSchedule
from straggler.timing.links import Network

_skips_timing: ContextVar[bool] = ContextVar("skips_timing", default=False)


@contextmanager
def skip_timing_checks() -> Iterator[None]:
    """Build experiments in this block without their durations: no trace is read, and nothing is drawn."""
    token = _skips_timing.set(True)
    try:
        yield
    finally:
        _skips_timing.reset(token)


class WorkerSettings(ExperimentFields):
    """The part of an experiment that says what workers do and how long it takes."""

    def batch_sizes(self) -> int | list[int]:
        """Return the batch size of all workers, or of each."""
        size = self.batch_size
        if isinstance(size, str):
            match = BALANCED.fullmatch(size)
            assert match is not None
            speeds = self.base_durations().relative_speeds()
            mean = sum(speeds) / len(speeds)
            return [max(1, round(int(match[1]) * speed / mean)) for speed in speeds]
        if isinstance(size, list) and len(size) != self.workers:
            raise ValueError(
                f"batch_size has {len(size)} numbers for workers={self.workers}. Give one per worker."
            )
        return size

    @property
    def mean_batch_size(self) -> float:
        """The mean number of samples per gradient over the workers."""
        sizes = self.batch_sizes()
        return sum(sizes) / len(sizes) if isinstance(sizes, list) else float(sizes)

    def base_durations(self) -> Durations:
        """Return the durations of jobs with one batch of the mean size."""
        return Durations(self.compute, self.delay, self.workers, self.seed)

    def count_batches(self) -> list[int] | None:
        """Return how many batches each worker's jobs use; None if all use one."""
        if self.work.is_gradient:
            return None
        if not self.work.needs_speeds:
            return [self.work.count_batches(1.0)] * self.workers
        return [self.work.count_batches(speed) for speed in self.base_durations().relative_speeds()]

    def durations(self) -> Durations:
        """Return how long the jobs of every worker take: a batch of the mean size takes one `compute`."""
        sizes, scales = self.batch_sizes(), None
        if isinstance(sizes, list):
            scales = [size * len(sizes) / sum(sizes) for size in sizes]
        batches = self.count_batches()
        return Durations(self.compute, self.delay, self.workers, self.seed, batches=batches, scales=scales)

    def timing(
        self, program: WorkerProgram
    ) -> tuple[Durations, Network | None, Churn | None, CoreSchedule | None]:
        """Return the durations of jobs, the network, the churn and the shared cores of a simulation."""
        durations = self.durations()
        durations.use_problem(program.problem)
        network = None
        if self.link or self.server_link is not None:
            sizes = program.bytes_up, program.bytes_down
            network = Network(self.link, self.server_link, self.workers, *sizes)
        churn = Churn(self.churn, self.workers, self.seed) if self.churn else None
        cores = None if self.cores is None else CoreSchedule(self.cores, self.workers, self.seed)
        return durations, network, churn, cores

    @property
    def target(self) -> Target | None:
        """The evaluation that ends the run before its budget is spent."""
        return None if self.until is None else Target.parse(self.until)

    def budget(self, problem: Problem) -> Budget:
        """Return the limit at which the run ends."""
        limits = {key: getattr(self, key) for key in BUDGETS if getattr(self, key) is not None}
        if self.stop == "all":
            return Budget(**limits)
        per_job = self.count_batches() or [1] * self.workers
        if self.gradients is not None:
            return Budget(shares=[-(-self.gradients // (self.workers * each)) for each in per_job])
        assert self.epochs is not None
        batches = map(problem.count_batches, range(self.workers))
        jobs = (self.epochs * each / one for each, one in zip(batches, per_job, strict=True))
        return Budget(shares=[math.ceil(round(each, 9)) for each in jobs])

    def program(self, problem: Problem) -> WorkerProgram:
        """Return what the workers execute: the work of a job on the problem, and the channel."""
        work, channel = copy.deepcopy((self.work, self.channel))
        return WorkerProgram(problem, work, channel, self.seed, self.count_batches())

    def check_timing(self) -> None:
        """Raise ValueError if min_workers, durations, links or churn do not fit to the workers."""
        if self.min_workers is not None:
            if self.min_workers > self.workers:
                raise ValueError(f"min_workers={self.min_workers} must be at most workers={self.workers}")
            if self.stop == "each":
                raise ValueError("stop='each' requires a fixed number of workers. Use stop='all'.")
        if _skips_timing.get():
            return
        self.durations().check_first_jobs()
        if self.link or self.server_link is not None:
            Network(self.link, self.server_link, self.workers, 1, 1)
        if self.churn:
            if self.stop == "each":
                raise ValueError("churn requires stop='all': workers that come and go have no fixed share.")
            Churn(self.churn, self.workers, self.seed)
            if self.cores is not None:
                raise ValueError(
                    f"cores={self.cores} requires workers that stay. Remove churn={self.churn[0]} or cores."
                )
