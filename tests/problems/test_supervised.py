"""Supervised problems: gradients, batches, evaluation and buffers."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import classification_report
from torch import nn
from torch.utils.data import TensorDataset

from story import run_story
from straggler.experiment import Experiment
from straggler.problems.supervised import SupervisedProblem, use_one_thread


def problem_of(**settings: Any) -> SupervisedProblem:
    problem = Experiment(**{"dataset": "digits", "workers": 3} | settings).problem()
    assert isinstance(problem, SupervisedProblem)
    return problem


@pytest.mark.parametrize("model", ["lenet5", "cnn", "asu-fashion", "mlp", "linear"])
def test_a_gradient_depends_only_on_model_worker_and_index(model: str) -> None:
    problem = problem_of(model=model)
    x, buffers = problem.initial_model()
    with use_one_thread():
        first = problem.gradient(x, buffers, 1, 5)
        problem.gradient(x * 2, buffers, 0, 3)
        problem.evaluate(x * 3, buffers, "test", 0)
        torch.rand(7)
        again = problem.gradient(x, buffers, 1, 5)
        other = problem.gradient(x, buffers, 1, 6)
    assert torch.equal(first.vector, again.vector)
    assert torch.equal(first.buffers, again.buffers)
    assert first.loss == again.loss
    assert not torch.equal(first.vector, other.vector)
    assert torch.equal(x, problem.initial_model()[0])


def test_a_problem_is_freed_at_once() -> None:
    """A reference cycle would keep its memory-mapped data until the next garbage collection."""
    gc.disable()
    try:
        there = weakref.ref(problem_of(model="lenet5"))
        assert there() is None
    finally:
        gc.enable()


def test_a_gradient_is_the_slope_of_the_loss() -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(40, 6, dtype=torch.float64), torch.randint(0, 3, (40,))
    problem = problem_of(
        dataset=(inputs, labels, inputs, labels),
        model=lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double(),
    )
    x, buffers = problem.initial_model()
    gradient = problem.gradient(x, buffers, 0, 0).vector
    direction = torch.randn_like(x)
    ahead, behind = (problem.gradient(x + s * 1e-6 * direction, buffers, 0, 0).loss for s in (1, -1))
    assert (ahead - behind) / 2e-6 == pytest.approx(float(gradient @ direction), rel=1e-6)


def test_batches_of_a_pass_cover_the_workers_data_once_and_passes_differ() -> None:
    problem = problem_of(batch_size=32)
    passes = problem.count_batches(1)
    first = np.concatenate([problem.batch(1, i) for i in range(passes)])
    second = np.concatenate([problem.batch(1, passes + i) for i in range(passes)])
    assert sorted(first) == sorted(second) == sorted(problem.parts[1])
    assert list(first) != list(second)
    assert sum(problem.batch_samples(1, i) for i in range(passes)) == len(problem.parts[1])


def test_scores_equal_those_of_scikit_learn(tmp_path: Any) -> None:
    record = Experiment(dataset="digits", model="mlp", lr=0.1, workers=2, epochs=2).run(tmp_path, jobs=1)
    problem = problem_of(model="mlp")
    module = problem.model()
    module.load_state_dict(record.weights())
    inputs, labels = problem.splits["test"].fetch(np.arange(len(problem.splits["test"])))
    with torch.no_grad():
        outputs = module(inputs)
    facts = record.summary
    expected = classification_report(labels, outputs.argmax(1), output_dict=True, zero_division=0)
    assert facts["test_accuracy"] == pytest.approx(100 * expected["accuracy"])
    assert facts["test_loss"] == pytest.approx(float(F.cross_entropy(outputs, labels)), rel=1e-5)
    for name, scores in facts["classes"].items():
        assert scores["f1"] == pytest.approx(expected[name]["f1-score"])
        assert scores["recall"] == pytest.approx(expected[name]["recall"])
    assert np.trace(facts["confusion"]) == round(expected["accuracy"] * len(labels))


def test_evaluation_uses_trained_buffers_and_restores_training_mode() -> None:
    problem = problem_of(model="asu-fashion")
    x, buffers = problem.initial_model()
    with use_one_thread():
        trained = problem.gradient(x, buffers, 0, 0).buffers
        assert not torch.equal(trained, buffers)
        assert problem.evaluate(x, buffers, "test", 0).loss != problem.evaluate(x, trained, "test", 0).loss
    assert all(module.training for module in problem.module.modules())


def test_the_servers_buffers_are_the_mean_of_every_workers_latest() -> None:
    story = run_story(dataset="digits", model="asu-fashion", workers=3, gradients=7)
    latest = {arrival.worker: arrival.message.buffers for arrival, _, _ in story.arrivals}
    assert torch.allclose(story.server.buffers, torch.stack(list(latest.values())).mean(dim=0))


def test_validation_samples_are_not_trained_on() -> None:
    problem = problem_of(validation=0.1)
    train, validation = problem.splits["train"], problem.splits["validation"]
    assert len(train) + len(validation) == 1437
    assert len(validation) == 144
    assert not set(train.chosen) & set(validation.chosen)  # type: ignore[attr-defined]


def test_a_dataset_gives_the_gradients_of_its_tensors() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(60, 4), torch.randint(0, 3, (60,))
    tensors = problem_of(dataset=(x, y, x, y), model="linear", workers=2)
    wrapped = problem_of(dataset=(TensorDataset(x, y), TensorDataset(x, y)), model="linear", workers=2)
    start, buffers = tensors.initial_model()
    assert tensors.classes == wrapped.classes == ("0", "1", "2")
    assert torch.equal(
        tensors.gradient(start, buffers, 0, 0).vector, wrapped.gradient(start, buffers, 0, 0).vector
    )


def test_regression_has_a_loss_and_no_accuracy(tmp_path: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 3)
    y = x @ torch.tensor([[1.0], [2.0], [3.0]])
    experiment = Experiment(
        dataset=(x, y, x, y),
        model=lambda: nn.Linear(3, 1),
        loss=F.mse_loss,
        lr=0.1,
        workers=2,
        epochs=5,
        seed=1,
    )
    facts = experiment.run(tmp_path, jobs=1).summary
    assert facts["test_loss"] < 1e-3
    assert facts["test_accuracy"] is None
    assert facts["converged"]


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="trainable parameters"):
        problem_of(model=nn.Flatten)
