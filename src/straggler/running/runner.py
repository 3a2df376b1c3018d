"""Run an experiment: from its specification to a finished record."""

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from straggler.config.registry import InputError
from straggler.config.settings import BUDGETS
from straggler.core import Diverged, Problem, Server, WorkerProgram
from straggler.core.devices import CPU, DeviceChoice, Placement
from straggler.core.loop import Budget, train
from straggler.engines import EngineSetup, load_engine
from straggler.engines.pool.gradient_pool import GradientComputer, GradientPool, create_computer
from straggler.engines.real_time import WorkerError
from straggler.experiment import Experiment
from straggler.problems.supervised import SupervisedProblem, use_one_thread
from straggler.record import (
    PRUNED,
    Record,
    StragglerVersionWarning,
    find_finished_record,
    has_other_results_version,
)
from straggler.running.allocator import tuned_allocator
from straggler.running.callbacks import Callback, CallbackError, ProgressCallback, check_callbacks
from straggler.running.checkpointer import Checkpointer, CheckpointInterval, RunState
from straggler.running.checkpoints import check_checkpointable, read_newest_checkpoint
from straggler.running.observer import Observer, ObserverSettings, RunProgress, weights_sha256
from straggler.running.placement import RunPlacement, deterministic_mode, place_run
from straggler.running.recorder import Recorder
from straggler.running.signals import StopRequest
from straggler.running.watchdog import Watchdog

REAL_TIME = "processes", "ray"  # engines whose workers have a process each


@dataclass(frozen=True)
class RunOptions:
    """How to run an experiment. No option changes a result in virtual time."""

    out: Path | str = "runs"  # the record is out/<id of the experiment>
    jobs: int | None = None  # processes that compute gradients (simulator); None: one per core
    force: bool = False  # run again, even if a finished record or a checkpoint exists
    data: Path | None = None  # folder of the data sets
    progress: Callable[[RunProgress], None] | None = None  # for a progress bar
    report: Callable[[str], None] = lambda line: None  # prints one line for the user
    checkpoint_every: str = "60s"  # "60s": seconds on this machine; "500": updates
    worker_timeout: float = 60.0  # seconds without a message until a process is restarted
    address: str | None = None  # of a Ray cluster; None: start Ray on this machine
    worker_resources: Mapping[str, float] | None = None  # reserved per worker on a Ray cluster
    device: DeviceChoice = "cpu"  # where gradients are computed and models are evaluated
    deterministic: bool = False  # use only torch's deterministic operations
    loader_workers: int = 0  # processes per worker that load batches ahead (real time)
    callbacks: Sequence[Callback] = ()
    max_failures: int | None = None  # of workers in the whole run; None: as many as the engine's rule allows

    @property
    def all_callbacks(self) -> list[Callback]:
        """The callbacks, with the progress function as the last one."""
        shown = [] if self.progress is None else [ProgressCallback(self.progress)]
        return [*self.callbacks, *shown]


def run_experiment(experiment: Experiment, options: RunOptions) -> Record:
    """Return the experiment's record in `options.out`: the cached one, or a new or resumed run."""
    for key in ("address", "worker_resources"):
        if (value := getattr(options, key)) and experiment.engine != "ray":
            raise InputError(f"{key}={value!r} requires engine='ray', got engine={experiment.engine!r}.")
    if options.loader_workers and (options.loader_workers < 0 or experiment.engine not in REAL_TIME):
        raise InputError(
            f"loader_workers={options.loader_workers} must be at least 0, and requires engine='processes' or "
            f"'ray', got engine={experiment.engine!r}. In virtual time, --jobs processes load and compute."
        )
    placement = place_run(
        experiment.engine,
        experiment.workers,
        options.device,
        options.deterministic,
        options.worker_resources or {},
        options.report,
    )
    check_callbacks(options.callbacks)
    folder = Path(options.out) / experiment.id
    if not options.force and (cached := find_cached_record(folder, options.report)) is not None:
        return cached
    with deterministic_mode(options.deterministic):
        train_and_record(experiment, options, folder, placement)
    return Record(folder)


def find_cached_record(folder: Path, report: Callable[[str], None]) -> Record | None:
    """Return the finished record in a folder, with a warning if another version of Straggler made it."""
    if (record := find_finished_record(folder)) is None:
        return None
    ours, theirs = version("straggler"), record.straggler_version
    if theirs in (ours, None):
        report(f"Using the cached run {folder} (pass --force to run it again).")
    else:
        message = (
            f"Using the cached run {folder}, made by Straggler {theirs}; this is {ours} "
            f"(pass --force to run it again)."
        )
        report(message)
        warnings.warn(message, StragglerVersionWarning, stacklevel=4)  # at the caller of Experiment.run
    return record


def load_checkpoint(folder: Path, options: RunOptions, device: torch.device) -> RunState | None:
    """Return the state to resume from, unless the run must start over."""
    if options.force:
        return None
    if has_other_results_version(folder):
        options.report(f"{folder} was made by a version of Straggler with other results; starting over.")
        return None
    state: RunState | None = read_newest_checkpoint(folder, options.report, device)
    if state is not None:
        options.report(
            f"Resuming from the checkpoint at update {state.updates:,} (pass --force to start over)."
        )
    return state


def train_and_record(
    experiment: Experiment, options: RunOptions, folder: Path, placement: RunPlacement
) -> None:
    """Train from the start or from the newest checkpoint, and write the record."""
    started = time.monotonic()
    interval = CheckpointInterval.parse(options.checkpoint_every)
    engine_class = load_engine(experiment.engine)
    problem, server, budget = build_run(experiment, options, placement.server)
    server.program.placements = placement.workers
    if options.loader_workers and isinstance(problem, SupervisedProblem):
        problem.loading = options.loader_workers, options.worker_timeout / 2
    resumed = load_checkpoint(folder, options, placement.server)
    if resumed is not None:
        started -= resumed.elapsed
        if resumed.observer.stopped_by == PRUNED:  # the callback of the tuning decides again, if there is one
            resumed.observer.stopped_by = None
    settings = ObserverSettings(
        experiment,
        evaluates_beside=not engine_class.is_virtual and experiment.eval_every > 0,
        detects_collapse=engine_class.is_virtual,
        is_resumed=resumed is not None,
        callbacks=options.all_callbacks,
    )
    state = resumed.recorder if resumed else None
    recorder = Recorder(folder, experiment.to_toml(), sys.argv, state, options.force, str(placement))
    stop = StopRequest()
    with use_one_thread(), tuned_allocator():
        beside = settings.evaluates_beside
        evaluator = placement.evaluator if beside or placement.evaluator.device != "cpu" else None
        compute = start_computing(server.program, options, engine_class.is_virtual, evaluator)
        setup = make_setup(experiment, options, compute, recorder, lambda: stop.is_made)
        # The recorder is entered last, so that an engine that cannot start leaves the folder untouched.
        observer = Observer(server, compute, budget, recorder, settings)
        ending = observer.callbacks.ending()
        with closing(compute), closing(engine_class.create(setup)) as engine, ending, recorder:
            if settings.evaluates_beside:  # otherwise this process would compute the first evaluations
                compute.wait_until_ready()
            checkpointer = Checkpointer(interval, server, engine, observer, recorder, stop)
            checkpointer.restore(resumed) if resumed else checkpointer.start()
            watchdog = Watchdog(options.worker_timeout, options.report)
            with watchdog, checkpointer.saving_on(WorkerError, CallbackError):
                observer.callbacks.raise_failure()
                with stop.listening():  # a stopped run may have been interrupted
                    is_over, run = observer.is_stopped, (server, engine, budget, observer, checkpointer)
                    divergence = None if is_over else train(*run)
                    if divergence is None and not is_over:
                        checkpointer.finish()
                times = {
                    "train_seconds": checkpointer.elapsed() - observer.state.evaluation_seconds,
                    "host_seconds": time.monotonic() - started,
                }
                summary = summarize_run(experiment, server, observer, recorder, divergence)
                if divergence is None:  # otherwise the server is in the middle of an arrival
                    observer.callbacks.raise_failure()
            observer.callbacks.raise_failure()
            recorder.write_tensors("weights.safetensors", problem.state_dict(server.readout, server.buffers))
            recorder.finish(summary | times)


def build_run(
    experiment: Experiment, options: RunOptions, device: torch.device
) -> tuple[Problem, Server, Budget]:
    """Build the problem, the server and the budget; raise InputError if they do not fit together."""
    try:
        problem = experiment.problem(options.data, options.report)
        problem.move_to(device)
        server = experiment.server(problem)
        check_checkpointable(server)
        if isinstance(problem, SupervisedProblem):
            problem.try_out()
    except ValueError as error:
        raise InputError(str(error)) from error
    if experiment.target and experiment.target.column.endswith("_accuracy") and not problem.classes:
        raise InputError(f"until={experiment.until}: there are no classes, so no accuracy. Use test_loss.")
    budget = experiment.budget(problem)
    gradients = sum(budget.shares or ()) or experiment.gradients or experiment.updates or 0
    # The number of epochs of a budget in gradients is known only with the data.
    experiment.check_schedule(gradients * experiment.mean_batch_size / problem.samples)
    for remark in list_remarks(experiment, problem):
        options.report(remark)
    return problem, server, budget


def list_remarks(experiment: Experiment, problem: Problem) -> Iterator[str]:
    """Yield a line for every setting whose effect may surprise the user."""
    virtual, workers = experiment.engine == "simulator", experiment.workers
    if virtual and experiment.min_workers not in (None, workers):
        yield f"min_workers has no effect in virtual time: all {workers} workers are present all the time."
    if not virtual and str(experiment.compute) != "constant(seconds=1.0)":
        yield f"compute={experiment.compute} has no effect in real time: computing takes as long as it takes."
    sizes = experiment.batch_sizes()
    wanted = sizes if isinstance(sizes, list) else [sizes] * workers
    missing = {wanted[worker] - problem.batch_samples(worker, 0): worker for worker in range(workers)}
    if (most := max(missing)) > 0:
        worker = missing[most]
        yield (
            f"Worker {worker} has only {wanted[worker] - most} samples, so its batches are smaller than "
            f"batch_size={wanted[worker]}."
        )


def find_end(experiment: Experiment, server: Server, observer: Observer, divergence: Diverged | None) -> str:
    """Return why a run ended: its budget, `until`, a callback's reason, divergence, or a lack of workers."""
    if divergence is not None:
        return "divergence"
    if observer.state.stopped_by is not None:
        return observer.state.stopped_by
    budget = next(key for key in BUDGETS if getattr(experiment, key) is not None)
    is_left_alone = not server.active and experiment.stop == "all" and not observer.budget.reached(server)
    return "no workers" if is_left_alone and budget != "seconds" else budget


def default_jobs() -> int:
    """Return one process per core, or 1 on Windows, where the pool of gradient processes does not exist."""
    return 1 if os.name == "nt" else os.cpu_count() or 1


def start_computing(
    program: WorkerProgram, options: RunOptions, is_virtual: bool, evaluator: Placement | None
) -> GradientComputer:
    """Return the object that computes gradients in virtual time, and evaluations in virtual and real time."""
    if is_virtual:
        jobs = options.jobs or default_jobs()
        if program.problem.device != CPU:
            if options.jobs not in (None, 1):
                options.report(
                    f"jobs={jobs} has no effect: one process computes on {program.problem.device}."
                )
            jobs = 1
        return create_computer(program, jobs, options.worker_timeout, options.report)
    if evaluator is None:
        return GradientComputer(program)
    where = options.worker_timeout, options.report, evaluator
    return GradientPool(program, 1, False, *where)


def make_setup(
    experiment: Experiment,
    options: RunOptions,
    compute: GradientComputer,
    recorder: Recorder,
    should_stop: Callable[[], bool],
) -> EngineSetup:
    """Return the setup of the engine, which reports failures of workers to the user and the record."""

    def report_failure(time: float, worker: int, reason: str) -> None:
        options.report(f"{reason}; restarting it.")
        recorder.add_event(time, worker, reason)
        if options.max_failures is not None and len(recorder.events) > options.max_failures:
            raise WorkerError(
                f"{len(recorder.events)} failures of workers, and max_failures={options.max_failures}. The "
                f"last one: {reason}. Resume the run with a larger number."
            )

    durations, network, churn, cores = experiment.timing(compute.program)
    return EngineSetup(
        compute=compute,
        durations=durations,
        network=network,
        churn=churn,
        cores=cores,
        workers=experiment.workers,
        min_workers=experiment.min_workers,
        worker_timeout=options.worker_timeout,
        seconds=math.inf if experiment.seconds is None else experiment.seconds,
        should_stop=should_stop,
        report=options.report,
        report_failure=report_failure,
        address=options.address,
        worker_resources=options.worker_resources or {},
    )


def summarize_run(
    experiment: Experiment,
    server: Server,
    observer: Observer,
    recorder: Recorder,
    divergence: Diverged | None,
) -> dict[str, Any]:
    """Evaluate the final model and return the contents of summary.json, except times."""
    scores, ledger = observer.evaluate_final_model(), server.ledger
    return {
        "id": experiment.id,
        "status": "diverged" if divergence else "finished",
        "error": str(divergence) if divergence else None,
        "stopped_by": find_end(experiment, server, observer, divergence),
        "restarts": len(recorder.events),
        **scores,
        "updates": server.k,
        "gradients": server.gradients,
        "dispatched": ledger.dispatched,
        "applied": ledger.applied,
        "dropped": ledger.dropped,
        "cancelled": ledger.cancelled,
        "in_flight": server.in_flight,
        "epochs": server.epochs,
        "bytes_up": server.bytes_up,
        "bytes_down": server.bytes_down,
        "mean_staleness": server.staleness_sum / max(1, ledger.applied),
        "max_staleness": server.staleness_max,
        "seconds": observer.state.seconds,
        "converged": divergence is None and scores["converged"],
        "weights_sha256": weights_sha256(server.readout, server.buffers),
        "record": str(recorder.path),
    }
