"""METRICS: the catalogue of metrics: numbers that describe a model's outputs on a split of the data."""

import math
from abc import abstractmethod
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from straggler.config.registry import Catalogue, CatalogueEntry
from straggler.problems.losses import IGNORED_TARGET


class Metric(CatalogueEntry):
    """A number that describes a model's outputs on a split; its `label` is its name in curves and tables."""

    @abstractmethod
    def compute(self, outputs: Any, targets: Any) -> Tensor | float:
        """Return the mean over these samples, or a tensor whose mean it is."""

    def finish(self, mean: float, loss: float) -> float:
        """Return the metric of a split from the mean over its samples and from its mean loss."""
        return mean


class Perplexity(Metric):
    """exp(mean loss): by how many equally likely choices the model is as uncertain."""

    name: ClassVar[str] = "perplexity"

    def compute(self, outputs: Any, targets: Any) -> float:
        return 0.0

    def finish(self, mean: float, loss: float) -> float:
        try:
            return math.exp(loss)
        except OverflowError:
            return math.inf


class TopKAccuracy(Metric):
    """Percentage of targets that are among the k classes with the highest scores."""

    name: ClassVar[str] = "top-k"
    k: int = Field(ge=1)

    def compute(self, outputs: Any, targets: Any) -> Tensor:
        if not isinstance(outputs, Tensor) or outputs.dim() < 2 or targets.is_floating_point():
            raise ValueError("it requires class scores as outputs and class numbers as targets")
        # Scores of sequences are (samples, length, classes), those of images (samples, classes, …).
        classes = outputs.dim() - 1 if outputs.shape[:-1] == targets.shape else 1
        if self.k > outputs.shape[classes]:
            raise ValueError(f"k must be at most the number of classes, {outputs.shape[classes]}")
        best = outputs.topk(self.k, dim=classes).indices
        found: Tensor = (best == targets.unsqueeze(classes)).any(dim=classes)
        return found[targets != IGNORED_TARGET].double().mul(100)


METRICS: Catalogue[Metric] = Catalogue("metric", "metrics", Metric, [Perplexity, TopKAccuracy])


def measure_outputs(metric: Metric, outputs: Any, targets: Any) -> float:
    """Return a metric's mean over these samples; raise ValueError if it fails or is not a number."""
    try:
        value = metric.compute(outputs, targets)
        if isinstance(value, Tensor):
            return float(value.cpu().double().mean())
        if not isinstance(value, Real | np.number | np.bool):
            raise TypeError(f"it must return a number or a tensor of numbers, got {value!r}")
        return float(value)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"The metric {metric.label} fails: {reason}") from error
