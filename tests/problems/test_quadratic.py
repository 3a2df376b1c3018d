"""Quadratic problems: curvature, noise and optimum."""

import pytest
import torch

from straggler.experiment import Experiment
from straggler.problems.quadratic import QuadraticProblem


def test_quadratics_have_the_stated_condition_gradient_noise_and_optimum() -> None:
    problem = Experiment(
        dataset="quadratic(dimension=5, condition=100, noise=0.3, spread=1)", workers=2
    ).problem()
    assert isinstance(problem, QuadraticProblem)
    x, buffers = problem.initial_model()
    assert problem.curvature[0] / problem.curvature[-1] == pytest.approx(100)
    noisy = torch.stack([problem.gradient(x, buffers, 1, i).vector for i in range(2000)])
    exact = problem.curvature * (x - problem.minima[1])
    assert torch.allclose(noisy.mean(0), exact, atol=0.03)
    assert noisy.std(0).mean().item() == pytest.approx(0.3, rel=0.03)
    assert problem.evaluate(problem.optimum, buffers, "test", 0).loss == 0
