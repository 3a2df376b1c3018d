"""Evaluation of a model on the splits of the data, at once or while training continues."""

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from straggler.core import EvaluationChunk, Split
from straggler.engines.pool.compute_task import ComputeTask
from straggler.engines.pool.gradient_pool import GradientComputer
from straggler.problems.metrics import Metric


class Evaluation:
    """The evaluation of one model on some splits, in chunks that the run's gradient computer evaluates."""

    def __init__(
        self,
        compute: GradientComputer,
        x: Tensor,
        buffers: Tensor,
        splits: Iterable[Split],
        metrics: Sequence[Metric] = (),
    ) -> None:
        self.compute, self.metrics = compute, metrics
        self.predictions: dict[Split, NDArray[np.int64]] = {}  # two rows: true classes, predicted classes
        self._tasks = {split: compute.evaluation_tasks(x, buffers, split) for split in splits}
        self._upcoming = chain.from_iterable(self._tasks.values())

    def is_ready(self) -> bool:
        """Start chunks where there is room, and return whether all chunks are evaluated."""
        self.compute.start_tasks(self._next, urgent=True)
        return all(task.done for tasks in self._tasks.values() for task in tasks)

    def scores(self) -> dict[str, float]:
        """Wait for all chunks, and return the loss, accuracy (percent) and metrics of every split."""
        scores: dict[str, float] = {}
        for split, tasks in self._tasks.items():
            scores |= self._score(split, tasks)
        return scores

    def _score(self, split: Split, tasks: list[ComputeTask]) -> dict[str, float]:
        """Return the loss, accuracy and metrics of one split; empty if the problem does not have it."""
        chunks: list[EvaluationChunk] = []
        for task in tasks:
            self.compute.start_tasks(self._next, urgent=True)
            chunks.append(self.compute.result(task))
        if not chunks:
            return {}
        samples = sum(chunk.samples for chunk in chunks)
        scores = {f"{split}_loss": sum(chunk.loss for chunk in chunks) / samples}
        counted = [chunk.correct for chunk in chunks if chunk.correct is not None]
        if counted:
            scores[f"{split}_accuracy"] = 100 * sum(counted) / samples
        predicted = [(chunk.targets, chunk.predictions) for chunk in chunks if chunk.predictions is not None]
        if predicted:
            targets, predictions = (np.concatenate(arrays) for arrays in zip(*predicted, strict=True))
            scores[f"{split}_accuracy"] = 100 * float(np.mean(predictions == targets))
            self.predictions[split] = np.stack([targets, predictions])
        for position, metric in enumerate(self.metrics):
            mean = sum(chunk.metrics[position] for chunk in chunks) / samples
            scores[f"{split}_{metric.label}"] = metric.finish(mean, scores[f"{split}_loss"])
        return scores

    def _next(self) -> ComputeTask | None:
        return next(self._upcoming, None)
