"""How good a model is on the splits of the data: computed at once, or beside the training."""

from collections.abc import Iterable
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from straggler.core import EvaluationChunk, Split
from straggler.engines.pool.gradient_pool import ComputeTask, GradientComputer


class Evaluation:
    """One model on some splits; its chunks are computed by whoever computes for the run."""

    def __init__(
        self, compute: GradientComputer, x: Tensor, buffers: Tensor, splits: Iterable[Split]
    ) -> None:
        self.compute = compute
        self.predictions: dict[Split, NDArray[np.int64]] = {}  # true classes and predicted classes
        self._tasks = {split: compute.evaluation_tasks(x, buffers, split) for split in splits}
        self._upcoming = chain.from_iterable(self._tasks.values())

    def is_ready(self) -> bool:
        """Whether all of it is computed; what is not is started where there is room."""
        self.compute.start_tasks(self._next, urgent=True)
        return all(task.done for tasks in self._tasks.values() for task in tasks)

    def scores(self) -> dict[str, float]:
        """Loss and accuracy (percent) of every split, waited for."""
        scores: dict[str, float] = {}
        for split, tasks in self._tasks.items():
            scores |= self._score(split, tasks)
        return scores

    def _score(self, split: Split, tasks: list[ComputeTask]) -> dict[str, float]:
        chunks: list[EvaluationChunk] = []
        for task in tasks:
            self.compute.start_tasks(self._next, urgent=True)
            chunks.append(self.compute.result(task))
        if not chunks:
            return {}
        samples = sum(chunk.samples for chunk in chunks)
        scores = {f"{split}_loss": sum(chunk.loss for chunk in chunks) / samples}
        predicted = [(chunk.targets, chunk.predictions) for chunk in chunks if chunk.predictions is not None]
        if predicted:
            targets, predictions = (np.concatenate(arrays) for arrays in zip(*predicted, strict=True))
            scores[f"{split}_accuracy"] = 100 * float(np.mean(predictions == targets))
            self.predictions[split] = np.stack([targets, predictions])
        return scores

    def _next(self) -> ComputeTask | None:
        return next(self._upcoming, None)
