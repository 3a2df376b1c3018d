"""Watching a run without touching it: rows per arrival, evaluations, snapshots, progress."""

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from straggler.core import Arrival, Change, Decision, Diverged, Job, Server, Split
from straggler.core.loop import Budget
from straggler.engines.pool.gradient_pool import GradientComputer
from straggler.record import Recorder
from straggler.running.collapse import CollapseDetector
from straggler.running.evaluation import Evaluation

CHANCE_MARGIN = 2.0  # points above chance that count as having learnt something
PROGRESS_SECONDS = 0.1
PUBLISH_SECONDS = 0.5  # how far the record's own word on its progress lags behind
RECENT_ARRIVALS = 60  # whose staleness is shown
MOST_WORKERS = 64  # whose state is shown
ROUNDING = 1e-9  # 1.0 // 0.1 is 9
RECENT = 0.02  # weight of the latest loss in the running mean that is shown

TrainMetrics = Literal["never", "end", "always"]


@dataclass(frozen=True)
class Progress:
    """What a progress bar shows."""

    spent: float  # of the budget, 0 to 1
    seconds: float  # on the run's clock
    updates: int
    loss: float  # running mean over the latest arrivals
    staleness: float  # mean so far
    accuracy: float | None  # at the last evaluation, percent
    recent: tuple[int, ...] = ()  # staleness of the latest arrivals
    behind: tuple[int | None, ...] = ()  # how old the model of each of the first workers is; None: it waits
    busy: int = 0  # workers that compute
    workers: int = 0


@dataclass(frozen=True)
class ObserverSettings:
    """What is to be seen of a run."""

    eval_every: float = 0.0  # epochs; 0: only at the end
    train_metrics: TrainMetrics = "end"  # when to evaluate the training set
    snapshots: int = 0  # weights kept, after the first ones
    beside: bool = False  # evaluate beside the training: in real time it must not wait
    ends_lost: bool = False  # look whether the network is lost; in real time the looking would be waited for
    progress: Callable[[Progress], None] | None = None


class Observer:
    """Called after every arrival."""

    _KEPT = (
        "seconds", "measuring", "_loss_sum", "_loss_count", "_last",
        "_recent_loss", "_accuracy", "_next_evaluation", "_kept",
    )  # fmt: skip

    def __init__(
        self,
        server: Server,
        compute: GradientComputer,
        budget: Budget,
        recorder: Recorder,
        watch: ObserverSettings,
    ) -> None:
        self.server, self.compute, self.budget, self.recorder = server, compute, budget, recorder
        self.watch = watch
        self.seconds, self.measuring = 0.0, 0.0  # the run's clock; host seconds spent on measuring
        self._loss_sum, self._loss_count = 0.0, 0  # of the batches since the last evaluation
        self._last: dict[str, Any] = {}  # the latest row of the curve
        self._pending: tuple[dict[str, Any], Evaluation] | None = None  # a row of the curve to come
        self._predictions: dict[Split, NDArray[np.int64]] = {}
        self._recent_loss = math.nan
        self._accuracy: float | None = None
        self._next_evaluation = watch.eval_every or math.inf
        self._kept: list[tuple[Tensor, Tensor, int, float]] = []
        self._shown, self._published = 0.0, time.monotonic()
        self._recent: deque[int] = deque(maxlen=RECENT_ARRIVALS)
        problem = compute.problem
        self._pulse = CollapseDetector(problem) if watch.ends_lost and problem.classes else None

    def begin(self) -> None:
        """The model before the first step."""
        self._snapshot()
        if self.watch.eval_every:
            self.measure()

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep."""
        self._conclude()
        found = {split: torch.from_numpy(found) for split, found in self._predictions.items()}
        kept = {name: getattr(self, name) for name in self._KEPT} | {"_predictions": found}
        return kept | {"pulse": self._pulse and (self._pulse.next_look, self._pulse.silent)}

    def restore(self, state: dict[str, Any]) -> None:
        for name in self._KEPT:
            setattr(self, name, state[name])
        self._predictions = {split: found.numpy() for split, found in state["_predictions"].items()}
        if self._pulse:
            self._pulse.next_look, self._pulse.silent = state["pulse"]

    def __call__(
        self, arrival: Arrival | Change, decision: Decision, staleness: int, before: Tensor
    ) -> Diverged | None:
        """Write it down; the answer ends the run."""
        self.seconds = arrival.time
        if isinstance(arrival, Change):
            self.recorder.arrival(time=arrival.time, worker=arrival.worker, decision=decision)
        else:
            self._recent.append(staleness)
            self._write(arrival, decision, staleness, before)
        for job in self.server.cancelled:
            self._write_cancelled(job)
        if self.server.epochs >= self._next_evaluation:
            passed = math.floor(self.server.epochs / self.watch.eval_every + ROUNDING)
            self._next_evaluation = (passed + 1) * self.watch.eval_every
            self.measure()
        elif self._pending is not None and self._pending[1].ready():
            self._conclude()
        if self.watch.snapshots and self._spent() * self.watch.snapshots >= len(self._kept):
            self._snapshot()
        now = time.monotonic()
        if self.watch.progress is not None and now - self._shown > PROGRESS_SECONDS:
            self._shown = now
            self.watch.progress(self.now())
        if now - self._published > PUBLISH_SECONDS:
            self._published = now
            self._publish()
        server = self.server
        return None if self._pulse is None else self._pulse.check(server.epochs, server.x, server.buffers)

    def now(self) -> Progress:
        server = self.server
        staleness = server.staleness_sum / max(1, server.ledger.applied)
        seen = (self._spent(), self.seconds, server.k, self._recent_loss, staleness, self._accuracy)
        first = range(min(MOST_WORKERS, len(server.finished)))
        behind = tuple(server.staleness(server.busy[w]) if w in server.busy else None for w in first)
        return Progress(*seen, tuple(self._recent), behind, len(server.busy), len(server.finished))

    def _publish(self) -> None:
        """Say in the record how far the run is, for those who watch from outside."""
        server, now = self.server, self.now()
        facts: dict[str, Any] = {"status": "running", "spent": now.spent, "seconds": now.seconds}
        facts |= {"updates": server.k, "gradients": server.gradients, "epochs": server.epochs}
        facts |= {"recent_loss": now.loss, "mean_staleness": now.staleness, "test_accuracy": now.accuracy}
        self.recorder.summary(facts)

    def _spent(self) -> float:
        return self.budget.spent(self.server, self.seconds)

    def _write(self, arrival: Arrival, decision: Decision, staleness: int, before: Tensor) -> None:
        job, gradient = arrival.job, arrival.fetched_gradient
        if gradient is not None:
            self._loss_sum, self._loss_count = self._loss_sum + gradient.loss, self._loss_count + 1
            before_loss = gradient.loss if math.isnan(self._recent_loss) else self._recent_loss
            self._recent_loss = before_loss + RECENT * (gradient.loss - before_loss)
        self.recorder.arrival(
            time=arrival.time,
            started=arrival.started,
            worker=arrival.worker,
            index=job.index,
            version=job.version,
            compute=arrival.compute,
            delay=arrival.delay,
            staleness=staleness,
            gap=root_mean_square(before, job.x),
            loss=None if gradient is None else gradient.loss,
            gradient_norm=None if gradient is None else norm(gradient.vector),
            weight_norm=norm(self.server.x),
            decision=decision,
        )

    def _write_cancelled(self, job: Job) -> None:
        self.recorder.arrival(
            time=self.seconds,
            worker=job.worker,
            index=job.index,
            version=job.version,
            staleness=self.server.k - job.version,
            decision="cancelled",
        )

    def measure(self) -> None:
        """Evaluate the model now; the row of the curve follows at once, or when it is computed beside."""
        self._conclude()
        server = self.server
        row: dict[str, Any] = {
            "seconds": self.seconds,
            "updates": server.k,
            "gradients": server.gradients,
            "epochs": server.epochs,
            "lr": server.lr,
            "batch_loss": self._loss_sum / self._loss_count if self._loss_count else None,
        }
        splits: tuple[Split, ...] = (
            ("test", "validation", "train")
            if self.watch.train_metrics == "always"
            else ("test", "validation")
        )
        self._loss_sum, self._loss_count = 0.0, 0
        self._pending = row, Evaluation(self.compute, server.x, server.buffers, splits)
        if not self.watch.beside:
            self._conclude()

    def _conclude(self) -> None:
        """Write the row of an evaluation that was begun."""
        if self._pending is None:
            return
        started = time.monotonic()
        row, evaluation = self._pending
        row |= evaluation.scores()
        self._pending, self._last = None, row
        self._predictions |= evaluation.predictions
        self._accuracy = row.get("test_accuracy")
        self.recorder.evaluation(row)
        self.measuring += time.monotonic() - started

    def final(self) -> dict[str, Any]:
        """The last word on the model: every split, class by class."""
        if self._kept and self._kept[-1][0] is not self.server.x:  # the budget ended between two snapshots
            self._snapshot()
        self._conclude()
        if self._last.get("gradients") != self.server.gradients:
            self.measure()
            self._conclude()
        last = self._last
        facts: dict[str, Any] = {"train_accuracy": None, "test_accuracy": None}
        facts |= {key: value for key, value in last.items() if key.endswith(("_accuracy", "_loss"))}
        if "train_loss" not in facts and self.watch.train_metrics != "never":
            facts |= Evaluation(self.compute, self.server.x, self.server.buffers, ("train",)).scores()
        return facts | self._by_class()

    def converged(self, test_accuracy: float | None) -> bool:
        classes = len(self.compute.problem.classes)
        if not bool(torch.isfinite(self.server.x).all()):
            return False
        return test_accuracy is None or test_accuracy > 100 / classes + CHANCE_MARGIN

    def _by_class(self) -> dict[str, Any]:
        if "test" not in self._predictions:
            return {}
        labels, found = self._predictions["test"]
        # scikit-learn takes a second to import, so only who uses it waits
        from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

        names = self.compute.problem.classes
        numbers = list(range(len(names)))
        scores = precision_recall_fscore_support(labels, found, labels=numbers, zero_division=0.0)
        table = {
            name: dict(zip(("precision", "recall", "f1"), map(float, row), strict=True))
            for name, *row in zip(names, *scores[:3], strict=True)
        }
        return {"classes": table, "confusion": confusion_matrix(labels, found, labels=numbers).tolist()}

    def _snapshot(self) -> None:
        if not self.watch.snapshots:
            return
        self._kept.append((self.server.x, self.server.buffers, self.server.k, self.seconds))
        x, buffers, updates, seconds = zip(*self._kept, strict=True)
        self.recorder.tensors(
            "snapshots.safetensors",
            {
                "weights": torch.stack(x),
                "buffers": torch.stack(buffers),
                "updates": torch.tensor(updates),
                "seconds": torch.tensor(seconds, dtype=torch.float64),
            },
        )


def norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))


def root_mean_square(now: Tensor, then: Tensor) -> float:
    """The gap between two models."""
    return 0.0 if now is then else norm(now - then) / math.sqrt(len(now))


def weights_sha256(x: Tensor, buffers: Tensor) -> str:
    """The fingerprint of a model: equal if and only if every bit is."""
    return hashlib.sha256(x.numpy().tobytes() + buffers.numpy().tobytes()).hexdigest()
