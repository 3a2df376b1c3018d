"""Observer: records a run without changing it: rows per arrival, evaluations, snapshots, progress."""

import hashlib
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from straggler.core import Arrival, Change, Decision, Job, Server, Split
from straggler.core.loop import Budget
from straggler.engines.pool.gradient_pool import GradientComputer
from straggler.experiment import Experiment
from straggler.running.callbacks import Callback, CallbackCaller, LiveRun
from straggler.running.checkpoints import register_state
from straggler.running.convergence import CollapseDetector, CollapseState, has_converged
from straggler.running.evaluation import Evaluation
from straggler.running.recorder import Recorder

PROGRESS_SECONDS = 0.1  # between updates of the progress bar
PUBLISH_SECONDS = 0.5  # between updates of the record's summary
RECENT_ARRIVALS = 60  # in the progress display
SHOWN_WORKERS = 64  # in the progress display
RECENT_LOSS_WEIGHT = 0.02  # of the latest loss in the running mean
ROUNDING = 1e-9  # tolerance in epochs, since 1.0 // 0.1 is 9

SPLITS = ("test_", "validation_", "train_")  # how the names of scores begin


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run, for a progress bar."""

    spent: float  # fraction of the budget, 0 to 1
    seconds: float  # on the run's clock
    updates: int
    loss: float  # running mean over the latest arrivals
    staleness: float  # mean so far
    accuracy: float | None  # at the last evaluation, percent
    recent: tuple[int, ...] = ()  # staleness of the latest arrivals
    behind: tuple[int | None, ...] = ()  # staleness of each worker's current model; None for an idle worker
    busy: int = 0  # number of workers that compute
    workers: int = 0


@dataclass(frozen=True)
class ObserverSettings:
    """Which measurements an observer takes, and when."""

    experiment: Experiment
    evaluates_beside: bool = False  # evaluate in another process while training continues (real time)
    detects_collapse: bool = False  # virtual time only: in real time, training would wait for the checks
    is_resumed: bool = False
    callbacks: Sequence[Callback] = ()


@register_state
@dataclass(frozen=True)
class Snapshot:
    """The model at one moment."""

    x: Tensor
    buffers: Tensor
    updates: int
    seconds: float


@register_state
@dataclass
class ObserverState:
    """The state of an observer in a checkpoint."""

    next_evaluation: float  # epochs
    seconds: float = 0.0  # on the run's clock
    evaluation_seconds: float = 0.0  # on this machine
    loss_sum: float = 0.0  # of the batches since the last evaluation
    loss_count: int = 0
    recent_loss: float = math.nan
    last_row: dict[str, Any] = field(default_factory=dict)  # of the curve
    test_predictions: Tensor | None = None  # two rows: true classes, predicted classes
    snapshots: list[Snapshot] = field(default_factory=list)
    collapse: CollapseState = field(default_factory=CollapseState)
    arrivals: int = 0
    stopped_by: str | None = None  # why the run ends before its budget is spent


class Observer:
    """Called after every arrival and every change of the workers."""

    def __init__(
        self,
        server: Server,
        compute: GradientComputer,
        budget: Budget,
        recorder: Recorder,
        settings: ObserverSettings,
    ) -> None:
        self.server, self.compute, self.budget, self.recorder = server, compute, budget, recorder
        self.settings, self.experiment = settings, settings.experiment
        self.state = ObserverState(self.experiment.eval_every or math.inf)
        self._pending: tuple[dict[str, Any], Evaluation] | None = None  # a row of the curve without scores
        self._shown, self._published = 0.0, time.monotonic()
        self._recent: deque[int] = deque(maxlen=RECENT_ARRIVALS)
        detects = settings.detects_collapse and compute.problem.classes
        self._detector = CollapseDetector(compute.problem) if detects else None
        live = LiveRun(self.experiment, self, settings.is_resumed)
        self.callbacks = CallbackCaller(settings.callbacks, live)
        self._samples_arrivals = self.callbacks.listens("on_arrival")
        self._shows_progress = self.callbacks.listens("on_progress")
        self.restore(self.state)

    def stop(self, reason: str) -> None:
        """End the run after the current arrival; the first reason counts."""
        self.state.stopped_by = self.state.stopped_by or reason

    @property
    def is_stopped(self) -> bool:
        """Whether the run must end although its budget is not spent."""
        return self.state.stopped_by is not None

    def start(self) -> None:
        """Record the initial model."""
        self.callbacks.call("on_start")
        self._take_snapshot()
        if self.experiment.eval_every:
            self.evaluate()

    def finish_state(self) -> ObserverState:
        """Wait for a pending evaluation and return the state for a checkpoint."""
        self._finish_evaluation()
        return self.state

    def restore(self, state: ObserverState) -> None:
        """Continue from the state of a checkpoint."""
        state.snapshots = [replace(one, x=one.x.cpu(), buffers=one.buffers.cpu()) for one in state.snapshots]
        self.state = state
        if state.snapshots:
            self._write_snapshots(state.snapshots)
        if self._detector is not None:
            self._detector.state = state.collapse

    def __call__(self, arrival: Arrival | Change, decision: Decision, staleness: int, before: Tensor) -> None:
        """Record an arrival; raise Diverged if the network has collapsed."""
        self.state.seconds = arrival.time
        if isinstance(arrival, Change):
            self.recorder.add_arrival(time=arrival.time, worker=arrival.worker, decision=decision)
        else:
            self._recent.append(staleness)
            self._record_arrival(arrival, decision, staleness, before)
        for job in self.server.cancelled:
            self._record_cancelled(job)
        if self.server.epochs >= self.state.next_evaluation:
            passed = math.floor(self.server.epochs / self.experiment.eval_every + ROUNDING)
            self.state.next_evaluation = (passed + 1) * self.experiment.eval_every
            self.evaluate()
        elif self._pending is not None and self._pending[1].is_ready():
            self._finish_evaluation()
        if self.experiment.snapshots and self._spent() * self.experiment.snapshots >= len(
            self.state.snapshots
        ):
            self._take_snapshot()
        now = time.monotonic()
        if self._shows_progress and now - self._shown > PROGRESS_SECONDS:
            self._shown = now
            self.callbacks.call("on_progress", self.progress())
        if now - self._published > PUBLISH_SECONDS:
            self._published = now
            self._publish_progress()
        if self._detector is not None:
            self._detector.check(self.server.epochs, self.server.x, self.server.buffers)

    def progress(self) -> RunProgress:
        """Return the current progress."""
        server, first = self.server, range(min(SHOWN_WORKERS, len(self.server.finished)))
        return RunProgress(
            spent=self._spent(),
            seconds=self.state.seconds,
            updates=server.k,
            loss=self.state.recent_loss,
            staleness=server.staleness_sum / max(1, server.ledger.applied),
            accuracy=self.state.last_row.get("test_accuracy"),
            recent=tuple(self._recent),
            behind=tuple(server.staleness(server.busy[w]) if w in server.busy else None for w in first),
            busy=len(server.busy),
            workers=len(server.finished),
        )

    def _publish_progress(self) -> None:
        """Write the progress to the record's summary, for readers in other processes."""
        server, now = self.server, self.progress()
        facts: dict[str, Any] = {"status": "running", "spent": now.spent, "seconds": now.seconds}
        facts |= {"updates": server.k, "gradients": server.gradients, "epochs": server.epochs}
        facts |= {"recent_loss": now.loss, "mean_staleness": now.staleness, "test_accuracy": now.accuracy}
        self.recorder.write_summary(facts)

    def _spent(self) -> float:
        return self.budget.spent(self.server, self.state.seconds)

    def _record_arrival(self, arrival: Arrival, decision: Decision, staleness: int, before: Tensor) -> None:
        job, gradient, state = arrival.job, arrival.fetched_message, self.state
        if gradient is not None:
            state.loss_sum, state.loss_count = state.loss_sum + gradient.loss, state.loss_count + 1
            mean = gradient.loss if math.isnan(state.recent_loss) else state.recent_loss
            state.recent_loss = mean + RECENT_LOSS_WEIGHT * (gradient.loss - mean)
        row = {
            "time": arrival.time,
            "started": arrival.started,
            "worker": arrival.worker,
            "index": job.index,
            "version": job.version,
            "compute": arrival.compute,
            "delay": arrival.delay,
            "staleness": staleness,
            "gap": compute_gap(before, job.x),
            "loss": None if gradient is None else gradient.loss,
            "gradient_norm": None if gradient is None else compute_norm(gradient.vector),
            "weight_norm": compute_norm(self.server.x),
            "decision": decision,
        }
        self.recorder.add_arrival(**row)
        state.arrivals += 1
        if self._samples_arrivals:
            self.callbacks.call_sampled(state.arrivals, row)

    def _record_cancelled(self, job: Job) -> None:
        self.recorder.add_arrival(
            time=self.state.seconds,
            worker=job.worker,
            index=job.index,
            version=job.version,
            staleness=self.server.k - job.version,
            decision="cancelled",
        )

    def evaluate(self) -> None:
        """Evaluate the current model, and add a row to the curve now or when the scores are ready."""
        self._finish_evaluation()
        server, state = self.server, self.state
        row: dict[str, Any] = {
            "seconds": state.seconds,
            "updates": server.k,
            "gradients": server.gradients,
            "epochs": server.epochs,
            "bytes_up": server.bytes_up,
            "bytes_down": server.bytes_down,
            "lr": server.lr,
            "batch_loss": state.loss_sum / state.loss_count if state.loss_count else None,
        }
        state.loss_sum, state.loss_count = 0.0, 0
        splits: tuple[Split, ...] = ("test", "validation")
        if self.experiment.train_metrics == "always":
            splits = (*splits, "train")
        self._pending = row, self._start_evaluation(splits)
        if not self.settings.evaluates_beside:
            self._finish_evaluation()

    def _start_evaluation(self, splits: Sequence[Split]) -> Evaluation:
        x, buffers = self.server.readout, self.server.buffers
        return Evaluation(self.compute, x, buffers, splits, self.experiment.metrics)

    def _finish_evaluation(self) -> None:
        """Wait for the pending evaluation, if there is one, and add its row to the curve."""
        if self._pending is None:
            return
        started = time.monotonic()
        row, evaluation = self._pending
        row |= evaluation.scores()
        self._pending, self.state.last_row = None, row
        if (predictions := evaluation.predictions.get("test")) is not None:
            self.state.test_predictions = torch.from_numpy(predictions)
        if (until := self.experiment.target) is not None and until.is_reached(row):
            self.stop("until")
        if self.recorder.add_evaluation(row, write=False):
            self.callbacks.call("on_evaluation", dict(row))
        if not self.is_stopped:  # otherwise a checkpoint has both the row and the reason, or neither
            self.recorder.write_curve()
        self.state.evaluation_seconds += time.monotonic() - started

    def evaluate_final_model(self) -> dict[str, Any]:
        """Return the final scores of every split, those of every class, and whether the run converged."""
        server, snapshots = self.server, self.state.snapshots
        if snapshots and snapshots[-1].updates != server.k:  # the budget ended between two snapshots
            self._take_snapshot()
        self._finish_evaluation()
        if self.state.last_row.get("gradients") != server.gradients:
            self.evaluate()
            self._finish_evaluation()
        scores: dict[str, Any] = {"train_accuracy": None, "test_accuracy": None}
        scores |= {k: v for k, v in self.state.last_row.items() if k == "batch_loss" or k.startswith(SPLITS)}
        if "train_loss" not in scores and self.experiment.train_metrics != "never":
            scores |= self._start_evaluation(("train",)).scores()
        initial_loss = None
        if scores["test_accuracy"] is None:
            first = Evaluation(self.compute, *self.compute.problem.initial_model(), ("test",)).scores()
            initial_loss = first.get("test_loss")
        converged = has_converged(self.compute.problem, server.readout, scores, initial_loss)
        return scores | self._score_classes() | {"converged": converged}

    def _score_classes(self) -> dict[str, Any]:
        """Return precision, recall and F1 of every class, and the confusion matrix."""
        if self.state.test_predictions is None:
            return {}
        # Importing scikit-learn takes a second.
        from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

        labels, predictions = self.state.test_predictions.cpu().numpy()
        names = self.compute.problem.classes
        numbers = list(range(len(names)))
        scores = precision_recall_fscore_support(labels, predictions, labels=numbers, zero_division=0.0)
        table = {
            name: dict(zip(("precision", "recall", "f1"), map(float, row), strict=True))
            for name, *row in zip(names, *scores[:3], strict=True)
        }
        return {"classes": table, "confusion": confusion_matrix(labels, predictions, labels=numbers).tolist()}

    def _take_snapshot(self) -> None:
        """Add a snapshot of the current model to the record, if snapshots are wanted."""
        if not self.experiment.snapshots:
            return
        model = self.server.x.cpu(), self.server.buffers.cpu()
        self.state.snapshots.append(Snapshot(*model, self.server.k, self.state.seconds))
        self._write_snapshots(self.state.snapshots)

    def _write_snapshots(self, snapshots: Sequence[Snapshot]) -> None:
        tensors = {
            "weights": torch.stack([one.x for one in snapshots]),
            "buffers": torch.stack([one.buffers for one in snapshots]),
            "updates": torch.tensor([one.updates for one in snapshots]),
            "seconds": torch.tensor([one.seconds for one in snapshots], dtype=torch.float64),
        }
        self.recorder.write_tensors("snapshots.safetensors", tensors)


def compute_norm(vector: Tensor) -> float:
    """Return the Euclidean norm."""
    return float(torch.linalg.vector_norm(vector))


def compute_gap(now: Tensor, then: Tensor) -> float:
    """Return the root mean square of the difference of two models."""
    return 0.0 if now is then else compute_norm(now - then) / math.sqrt(len(now))


def weights_sha256(x: Tensor, buffers: Tensor) -> str:
    """Return the SHA-256 of a model and its buffers."""
    return hashlib.sha256(b"".join(tensor.cpu().numpy().tobytes() for tensor in (x, buffers))).hexdigest()
