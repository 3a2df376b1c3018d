"""Run an experiment: from its specification to a finished record."""

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from straggler.config.registry import InputError
from straggler.core import Diverged, Problem, Server
from straggler.core.loop import Budget, train
from straggler.engines import EngineSetup, load_engine
from straggler.engines.pool.gradient_pool import GradientComputer, GradientPool, create_computer
from straggler.engines.real_time import WorkerError
from straggler.experiment import Experiment
from straggler.problems.supervised import SupervisedProblem, use_one_thread
from straggler.record import Record, StragglerVersionWarning, find_finished_record, has_other_results_version
from straggler.running.allocator import tuned_allocator
from straggler.running.checkpointer import Checkpointer, CheckpointInterval, RunState
from straggler.running.checkpoints import check_checkpointable, read_newest_checkpoint
from straggler.running.observer import Observer, ObserverSettings, RunProgress, weights_sha256
from straggler.running.recorder import Recorder
from straggler.timing import Durations


@dataclass(frozen=True)
class RunOptions:
    """How to run an experiment. No option changes a result in virtual time."""

    out: Path | str = "runs"  # the record is out/<id of the experiment>
    jobs: int | None = None  # processes that compute gradients (simulator); None: one per core
    force: bool = False  # run again, even if a finished record or a checkpoint exists
    data: Path | None = None  # folder of the data sets
    progress: Callable[[RunProgress], None] | None = None
    report: Callable[[str], None] = lambda line: None  # prints one line for the user
    checkpoint_every: str = "60s"  # "60s": seconds on this machine; "500": updates
    worker_timeout: float = 60.0  # seconds without a message until a worker is restarted (real time)
    address: str | None = None  # of a Ray cluster; None: start Ray on this machine
    worker_resources: Mapping[str, float] | None = None  # reserved per worker on a Ray cluster


def run_experiment(experiment: Experiment, options: RunOptions) -> Record:
    """Return the experiment's record in `options.out`: the cached one, or a new or resumed run."""
    for key in ("address", "worker_resources"):
        if (value := getattr(options, key)) and experiment.engine != "ray":
            raise InputError(f"{key}={value!r} requires engine='ray', got engine={experiment.engine!r}.")
    folder = Path(options.out) / experiment.id
    if not options.force and (cached := find_cached_record(folder, options.report)) is not None:
        return cached
    train_and_record(experiment, options, folder)
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


def load_checkpoint(folder: Path, options: RunOptions) -> RunState | None:
    """Return the state to resume from, unless the run must start over."""
    if options.force:
        return None
    if has_other_results_version(folder):
        options.report(f"{folder} was made by a version of Straggler with other results; starting over.")
        return None
    state: RunState | None = read_newest_checkpoint(folder, options.report)
    if state is not None:
        options.report(
            f"Resuming from the checkpoint at update {state.updates:,} (pass --force to start over)."
        )
    return state


def train_and_record(experiment: Experiment, options: RunOptions, folder: Path) -> None:
    """Train from the start or from the newest checkpoint, and write the record."""
    started = time.monotonic()
    interval = CheckpointInterval.parse(options.checkpoint_every)
    engine_class = load_engine(experiment.engine)
    problem, server, budget = build_run(experiment, options)
    resumed = load_checkpoint(folder, options)
    if resumed is not None:
        started -= resumed.elapsed
    settings = ObserverSettings(
        eval_every=experiment.eval_every,
        train_metrics=experiment.train_metrics or "end",
        snapshots=experiment.snapshots,
        evaluates_beside=not engine_class.is_virtual and experiment.eval_every > 0,
        detects_collapse=engine_class.is_virtual,
        progress=options.progress,
    )
    recorder = Recorder(
        folder, experiment.to_toml(), sys.argv, resumed.recorder if resumed else None, options.force
    )
    with use_one_thread(), tuned_allocator():
        compute = start_computing(problem, options, engine_class.is_virtual, settings.evaluates_beside)
        setup = make_setup(experiment, options, compute, recorder)
        # The recorder is entered last, so that an engine that cannot start leaves the folder untouched.
        with closing(compute), closing(engine_class.create(setup)) as engine, recorder:
            if settings.evaluates_beside:  # otherwise this process would compute the first evaluations
                compute.wait_until_ready()
            observer = Observer(server, compute, budget, recorder, settings)
            checkpointer = Checkpointer(interval, server, engine, observer, recorder)
            checkpointer.restore(resumed) if resumed else checkpointer.start()
            with checkpointer.stopping_on_signals(), checkpointer.saving_on(WorkerError):
                divergence = train(server, engine, budget, observer, checkpointer)
            times = {
                "train_seconds": checkpointer.elapsed() - observer.state.evaluation_seconds,
                "host_seconds": time.monotonic() - started,
            }
            summary = summarize_run(experiment, server, observer, recorder, divergence)
            recorder.write_tensors("weights.safetensors", problem.state_dict(server.x, server.buffers))
            recorder.finish(summary | times)


def build_run(experiment: Experiment, options: RunOptions) -> tuple[Problem, Server, Budget]:
    """Build the problem, the server and the budget; raise InputError if they do not fit together."""
    try:
        problem = experiment.problem(options.data, options.report)
        server = experiment.server(problem)
        check_checkpointable(server)
        if isinstance(problem, SupervisedProblem):
            problem.try_out()
    except ValueError as error:
        raise InputError(str(error)) from error
    budget = experiment.budget(problem)
    gradients = sum(budget.shares or ()) or experiment.gradients or experiment.updates or 0
    # The number of epochs of a budget in gradients is known only with the data.
    experiment.check_schedule(gradients * experiment.batch_size / problem.samples)
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
    sizes = {problem.batch_samples(worker, 0): worker for worker in reversed(range(workers))}
    if (smallest := min(sizes)) < experiment.batch_size:
        yield (
            f"Worker {sizes[smallest]} has only {smallest} samples, so its batches are smaller than "
            f"batch_size={experiment.batch_size}."
        )


def default_jobs() -> int:
    """Return one process per core, or 1 on Windows, where the pool of gradient processes does not exist."""
    return 1 if os.name == "nt" else os.cpu_count() or 1


def start_computing(
    problem: Problem, options: RunOptions, is_virtual: bool, evaluates_beside: bool
) -> GradientComputer:
    """Return the object that computes gradients in virtual time, and evaluations in virtual and real time."""
    if is_virtual:
        return create_computer(problem, options.jobs or default_jobs())
    return GradientPool(problem, 1) if evaluates_beside else GradientComputer(problem)


def make_setup(
    experiment: Experiment, options: RunOptions, compute: GradientComputer, recorder: Recorder
) -> EngineSetup:
    """Return the setup of the engine, which reports failures of workers to the user and the record."""

    def report_failure(time: float, worker: int, reason: str) -> None:
        options.report(f"{reason}; restarting it.")
        recorder.add_event(time, worker, reason)

    return EngineSetup(
        compute=compute,
        durations=Durations(experiment.compute, experiment.delay, experiment.workers, experiment.seed),
        workers=experiment.workers,
        min_workers=experiment.min_workers,
        worker_timeout=options.worker_timeout,
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
        "mean_staleness": server.staleness_sum / max(1, ledger.applied),
        "max_staleness": server.staleness_max,
        "seconds": observer.state.seconds,
        "converged": divergence is None and scores["converged"],
        "weights_sha256": weights_sha256(server.x, server.buffers),
        "record": str(recorder.path),
    }
