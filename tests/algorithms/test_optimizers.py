"""Optimizers and schedules given as torch classes and partials equal their text forms."""

from functools import partial
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ConstantLR, MultiStepLR, StepLR

from straggler.algorithms.optimizers import coerce_optimizer
from straggler.algorithms.schedules import coerce_schedule
from straggler.config.registry import is_custom
from straggler.experiment import Experiment

QUADRATIC: dict[str, Any] = {"dataset": "quadratic(dimension=3)", "workers": 2, "updates": 5}


class ScaledSign(torch.optim.Optimizer):
    """A custom torch optimizer whose learning rate has no default."""

    def __init__(self, params: Any, lr: float, scale: float = 2) -> None:
        super().__init__(params, {"lr": lr, "scale": scale})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad.sign(), alpha=-group["lr"] * group["scale"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.optim.Adam, "adam"),
        (partial(torch.optim.SGD, momentum=0.9), "sgd(momentum=0.9)"),
        (partial(torch.optim.Adam, betas=(0.8, 0.99)), "adam(betas=[0.8, 0.99])"),
    ],
)
def test_torch_classes_equal_their_text(value: Any, text: str) -> None:
    assert coerce_optimizer(value) == coerce_optimizer(text)
    assert Experiment(**QUADRATIC, optimizer=value).id == Experiment(**QUADRATIC, optimizer=text).id


def test_a_custom_torch_optimizer_moves_the_model_and_is_custom() -> None:
    optimizer = coerce_optimizer(partial(ScaledSign, scale=3))
    assert is_custom(type(optimizer)) and str(optimizer) == "ScaledSign(scale=3.0)"
    optimizer.begin(torch.zeros(2), workers=1, shapes={"x": (2,)})
    moved = optimizer.step(torch.zeros(2), torch.tensor([5.0, -1.0]), lr=0.1, worker=0, version=0)
    assert torch.allclose(moved, torch.tensor([-0.3, 0.3]))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.optim.LBFGS, "closure"),
        (partial(torch.optim.SGD, lr=0.1), "learning rate"),
        (partial(torch.optim.SGD, 0.1), "by name"),
        ("adam(betas=[0.9, 0.9, 0.9])", "2 values"),
        ("adam(betas=[2, 0.9])", "does not accept"),
        (torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1), "class"),
    ],
)
def test_unusable_optimizers_are_refused(value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        coerce_optimizer(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("step(3)", "step(3)"),
        (partial(StepLR, step_size=3), "step(step_size=3)"),
        (partial(MultiStepLR, milestones=[3, 6]), "multistep(milestones=[3, 6])"),
    ],
)
def test_schedules_become_text(value: Any, text: str) -> None:
    assert coerce_schedule(value) == text


@pytest.mark.parametrize("value", [ConstantLR, partial(StepLR, 3), 5])
def test_unusable_schedules_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"usable|by name"):
        coerce_schedule(value)
