"""Construction of a problem from a data set, a model and a partition."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from straggler.core import Problem
from straggler.core.randomness import addressed_rng
from straggler.problems.computation import PLAIN, Computation
from straggler.problems.custom_data import CustomData
from straggler.problems.datasets import DataSet
from straggler.problems.downloads.sources import ReportFunction
from straggler.problems.examples import Examples, ExampleSubset, read_labels
from straggler.problems.losses import token_cross_entropy
from straggler.problems.metrics import Metric
from straggler.problems.models import Model
from straggler.problems.partitions import Partition
from straggler.problems.quadratic import QuadraticData, QuadraticProblem
from straggler.problems.supervised import LossFunction, SupervisedProblem
from straggler.problems.text import TokenData


def build_problem(
    dataset: DataSet | QuadraticData | CustomData,
    model: Model | nn.Module | Callable[[], nn.Module],
    partition: Partition,
    *,
    workers: int,
    batch_size: int | Sequence[int],
    seed: int,
    validation: float = 0.0,
    loss: LossFunction | None = None,
    metrics: Sequence[Metric] = (),
    computation: Computation = PLAIN,
    folder: Path | None = None,
    report: ReportFunction = lambda line: None,
) -> Problem:
    """Load the data, split off the validation set, partition the rest among workers and build the model."""
    if isinstance(dataset, QuadraticData):
        return QuadraticProblem(dataset, workers, batch_size, seed)
    data = dataset.load(folder, report)
    train: Examples = data.train
    classes, sequence, validation_set = data.classes, data.sequence, None
    if isinstance(data, TokenData) or (isinstance(model, Model) and model.takes_tokens):
        loss = loss or token_cross_entropy
    if isinstance(model, Model):
        if data.shape is None:
            raise ValueError(
                f"{model} takes one input tensor, but the inputs have several parts. Pass an nn.Module."
            )
        if classes is None:
            labels = read_labels(train, f"{model} needs the number of classes", report)
            classes = tuple(map(str, range(int(labels.max()) + 1)))
        model = partial(model.build, data.shape, len(classes), tokens=sequence is not None)
    if validation:
        train, validation_set = split_validation(train, validation, seed)
    if partition.needs_labels:
        labels = read_labels(train, f"partition={partition} needs labels", report)
    else:
        labels = train.known_labels if train.known_labels is not None else np.zeros(len(train), np.int8)
    parts = partition.split(labels, workers, addressed_rng(seed, "partition"))
    scoring = loss, classes, metrics, sequence
    problem = SupervisedProblem(
        model, train, data.test, parts, batch_size, seed, validation_set, *scoring, computation
    )
    if isinstance(data, TokenData):
        problem.chance = data.chance
    return problem


def split_validation(train: Examples, share: float, seed: int) -> tuple[Examples, Examples]:
    """Return the training set without a random share of its samples, and that share."""
    order = addressed_rng(seed, "validation").permutation(len(train))
    size = round(len(order) * share)
    if not 0 < size < len(order):
        raise ValueError(
            f"validation={share} selects {size:,} of {len(order):,} samples. Both the training set and the "
            f"validation set need samples: use for example validation=0.1."
        )
    return ExampleSubset(train, np.sort(order[size:])), ExampleSubset(train, np.sort(order[:size]))
