"""Learning-rate schedules: linear warm-up, then any scheduler of torch."""

import math
import re
from collections.abc import Callable
from functools import partial

import torch
from torch.optim import lr_scheduler

from straggler.config.registry import InputError, format_value, parse_call, suggest_name

# Schedulers that need a metric, a function or other schedulers, which text cannot express.
UNUSABLE_SCHEDULERS = {
    *("LRScheduler", "ReduceLROnPlateau", "LambdaLR", "MultiplicativeLR", "SequentialLR", "ChainedScheduler")
}


class LearningRate:
    """The learning rate as a function of the epoch. Goyal et al. 2017.

    The rate rises linearly from lr/workers during the warm-up. Schedules are text: `exponential(gamma=0.9)`
    is torch's ExponentialLR.
    """

    def __init__(self, lr: float, schedule: str = "constant", warmup: float = 0.0, workers: int = 1) -> None:
        self.schedule, self.warmup, self.workers = schedule, warmup, workers
        self._scheduler = create_scheduler(schedule, lr)
        self._epoch, self._rate = 0, self._current_rate()

    def __call__(self, epochs: float) -> float:
        """Return the learning rate after this many epochs; calls must not go back in time."""
        while self._epoch < int(epochs):
            self._advance()
            self._epoch += 1
            self._rate = self._current_rate()
        if epochs < self.warmup:
            start = 1 / self.workers
            return self._rate * (start + (1 - start) * epochs / self.warmup)
        return self._rate

    def _advance(self) -> None:
        try:
            self._scheduler.optimizer.step()
            self._scheduler.step()
        except ValueError as error:
            raise InputError(
                f"schedule={self.schedule!r} ends after {self._epoch} epochs ({error}). Make it last longer."
            ) from None
        except (ArithmeticError, TypeError) as error:
            raise InputError(
                f"schedule={self.schedule!r} fails after {self._epoch} epochs ({error}). Change its numbers."
            ) from None

    def _current_rate(self) -> float:
        rate = float(self._scheduler.get_last_lr()[0])
        if not 0 <= rate < math.inf:
            raise InputError(
                f"schedule={self.schedule!r} gives the learning rate {rate}. It must be finite, at least 0."
            )
        return rate


def create_scheduler(text: str, lr: float) -> lr_scheduler.LRScheduler:
    """Return the torch scheduler that a text names, attached to an optimizer that trains nothing."""
    name, positional, settings = parse_call(text)
    known = available_schedules()
    short = short_name(name)
    if short not in known:
        raise ValueError(f"Unknown schedule {name!r}. {suggest_name(short, known)}")
    lists = [value for value in (*positional, *settings.values()) if isinstance(value, list)]
    if any(not isinstance(number, int | float) for each in lists for number in each):
        raise ValueError(f"schedule {text!r}: a list may contain only numbers, as in milestones=[40, 60].")
    idle = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr, momentum=0.9)
    try:
        return known[short](idle, *positional, **settings)
    except Exception as error:
        raise ValueError(f"schedule {text!r}: torch does not accept the settings: {error}") from None


def coerce_schedule(value: object) -> str:
    """Return a schedule as text, given text, a torch scheduler class or a functools.partial of one."""
    if isinstance(value, str):
        return value
    scheduler, settings = (value.func, value.keywords) if isinstance(value, partial) else (value, {})
    name, known = short_name(getattr(scheduler, "__name__", "")), available_schedules()
    if known.get(name) is not scheduler or not isinstance(scheduler, type):
        raise ValueError(
            f"schedule={value!r} is not a usable scheduler. Use text, or one of these classes of "
            f"torch.optim.lr_scheduler (or a partial of it): "
            f"{', '.join(each.__name__ for each in known.values() if isinstance(each, type))}"
        )
    if isinstance(value, partial) and value.args:
        raise ValueError(f"partial({name}, …): pass settings by name, as in step_size=3.")
    arguments = ", ".join(f"{key}={format_value(setting)}" for key, setting in settings.items())
    return f"{name}({arguments})" if arguments else name


def short_name(name: str) -> str:
    """Return the name of a schedule in text: `StepLR`, `step-lr` and `step` are `step`."""
    return re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("lr")


def available_schedules() -> dict[str, Callable[..., lr_scheduler.LRScheduler]]:
    """Return the schedulers of torch that need only the epoch and numbers, by name."""
    classes = [
        getattr(lr_scheduler, name) for name in lr_scheduler.__all__ if name not in UNUSABLE_SCHEDULERS
    ]
    by_name = {short_name(each.__name__): each for each in classes if each is not lr_scheduler.ConstantLR}
    # torch's ConstantLR divides the first rates by 3
    return {"constant": lambda optimizer: lr_scheduler.ConstantLR(optimizer, factor=1.0)} | by_name
