"""HOW: any `torch.optim` class on the flat vector, and optimizers with a momentum per worker."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import ConfigDict, Field, PrivateAttr, create_model
from torch import Tensor

from straggler.algorithms.matrix_optimizers import Muon
from straggler.algorithms.stale_momentum import DelayedNesterov, Fadas, OrMo, Predict, Smega2
from straggler.config.registry import Catalogue, build_entry, parse_entry
from straggler.core import Optimizer, Shapes

# Settings that the experiment sets itself (lr), or that only affect speed on other hardware.
HIDDEN = {"params", "lr", "foreach", "maximize", "capturable", "differentiable", "fused"}
DECOUPLED = (torch.optim.AdamW, torch.optim.Adafactor)  # weight decay does not go through the gradient
# Optimizers that need a closure, sparse gradients or matrices; a server has dense vectors.
UNUSABLE_OPTIMIZERS = {"Optimizer", "LBFGS", "SparseAdam", "Muon"}


@dataclass
class TorchState:
    """A torch optimizer and its only parameter, the model as one vector."""

    parameter: torch.nn.Parameter
    optimizer: torch.optim.Optimizer


class TorchOptimizer(Optimizer):
    """A torch.optim class on the whole model as one vector."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    torch_class: ClassVar[type[torch.optim.Optimizer]]
    torch_step: ClassVar[Callable[[torch.optim.Optimizer], Any]]
    _state: TorchState = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Raise ValueError for settings that torch does not accept."""
        if getattr(self, "nesterov", False) and not getattr(self, "momentum", 1.0):
            raise ValueError(
                "nesterov requires a momentum. Use momentum=0.9, or --no-nesterov (nesterov=false)."
            )
        for key, info in type(self).model_fields.items():
            if isinstance(info.default, list) and len(getattr(self, key)) != len(info.default):
                raise ValueError(
                    f"{key}={getattr(self, key)} must have {len(info.default)} values, "
                    f"as in {key}={info.default}."
                )
        try:
            self._create(torch.zeros(2))
        except Exception as error:
            raise ValueError(f"{self.torch_class.__name__} does not accept the settings: {error}") from None

    def _create(self, x: Tensor) -> TorchState:
        parameters = inspect.signature(self.torch_class).parameters
        settings: dict[str, Any] = {
            key: tuple(value) if isinstance(value := getattr(self, key), list) else value
            for key in type(self).model_fields
        }
        if "foreach" in parameters:
            settings["foreach"] = False  # torch's choice for one vector; saves its check at each step
        if "lr" in parameters and parameters["lr"].default is inspect.Parameter.empty:
            settings["lr"] = 1.0  # replaced before each step
        momentum = settings.get("momentum", 0.0)
        if momentum < 0:  # torch's steps support negative momentum, its constructors refuse it
            settings["momentum"] = -momentum
        parameter = torch.nn.Parameter(x.data)  # modifying it does not count as a modification of x
        optimizer = self.torch_class([parameter], **settings)
        if momentum < 0:
            optimizer.param_groups[0]["momentum"] = momentum
        return TorchState(parameter, optimizer)

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._state = self._create(x)

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int, version: int) -> Tensor:
        state, moved = self._state, x.clone()
        state.parameter.data, state.parameter.grad = moved, direction
        state.optimizer.param_groups[0]["lr"] = lr
        with torch.no_grad():
            type(self).torch_step(state.optimizer)
        state.parameter.grad = None  # do not keep the last gradient alive
        return moved

    def velocity(self) -> Tensor | None:
        state = self._state
        buffer: Tensor | None = state.optimizer.state[state.parameter].get("momentum_buffer")
        return buffer

    def decay(self) -> float:
        decoupled = self.torch_class in DECOUPLED or getattr(self, "decoupled_weight_decay", False)
        return 0.0 if decoupled else float(getattr(self, "weight_decay", 0.0))

    def state(self) -> dict[str, Any]:
        return super().state() | {"_state": self._state.optimizer.state_dict()["state"]}

    def restore(self, state: dict[str, Any]) -> None:
        private, current = dict(state), self._state
        (values,) = private.pop("_state").values() or ({},)
        current.optimizer.state[current.parameter] = dict(values)  # load_state_dict would cast them
        super().restore(private)


_ENTRIES: dict[type[torch.optim.Optimizer], type[TorchOptimizer]] = {}


def torch_entry(torch_class: type[torch.optim.Optimizer]) -> type[TorchOptimizer]:
    """Return the catalogue entry of a torch optimizer class, creating it at the first call."""
    if torch_class not in _ENTRIES:
        _ENTRIES[torch_class] = create_torch_entry(torch_class)
    return _ENTRIES[torch_class]


def create_torch_entry(torch_class: type[torch.optim.Optimizer]) -> type[TorchOptimizer]:
    """Return a catalogue entry whose settings are the arguments of a torch optimizer class."""
    is_built_in = torch_class.__module__.startswith("torch.optim")
    settings = [p for p in inspect.signature(torch_class).parameters.values() if p.name not in HIDDEN]
    fields: dict[str, Any] = {
        p.name: setting_field(p.default) for p in settings if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    if "momentum" in fields:
        fields["momentum"] = (float, Field(fields["momentum"][1], gt=-1, lt=1))
    entry = create_model(torch_class.__name__, __base__=TorchOptimizer, **fields)
    entry.name = torch_class.__name__.lower() if is_built_in else torch_class.__name__
    entry.torch_class, entry.__module__ = torch_class, __name__ if is_built_in else torch_class.__module__
    # Torch wraps `step` for profilers and compilers. Around plain SGD the wrapper takes as long as the step
    # (8 of 15 µs at 10 parameters), so it is removed; custom classes keep the wrappers of their step.
    step = inspect.unwrap(torch_class.step) if is_built_in else lambda optimizer: optimizer.step()
    entry.torch_step = staticmethod(step)
    module = "torch.optim" if is_built_in else torch_class.__module__
    entry.__doc__ = f"{module}.{torch_class.__name__} on the flat vector."
    return entry


def setting_field(default: Any) -> tuple[Any, Any]:
    """Return the type and default of a field; numbers are floats, so that 0 and 0.0 are the same setting."""
    if default is inspect.Parameter.empty:
        return Any, ...
    if isinstance(default, bool):
        return bool, default
    if isinstance(default, int | float):
        return float, float(default)
    return Any, list(default) if isinstance(default, tuple) else default


def torch_optimizer_classes() -> list[type[torch.optim.Optimizer]]:
    """Return the usable classes of torch.optim, SGD first."""
    classes = [
        candidate
        for name, candidate in vars(torch.optim).items()
        if inspect.isclass(candidate)
        and issubclass(candidate, torch.optim.Optimizer)
        and name not in UNUSABLE_OPTIMIZERS
    ]
    return sorted(classes, key=lambda each: (each is not torch.optim.SGD, each.__name__))


def optimizer_from_torch(
    torch_class: type[torch.optim.Optimizer], settings: Mapping[str, Any]
) -> TorchOptimizer:
    """Return the optimizer that a torch optimizer class with these settings stands for."""
    name = torch_class.__name__
    if torch_class.__module__.startswith("torch.optim") and name in UNUSABLE_OPTIMIZERS:
        raise ValueError(
            f"torch.optim.{name} needs a closure, sparse gradients or matrices. Use another optimizer."
        )
    if "lr" in settings:
        raise ValueError(f"{name}(lr={settings['lr']}): set the learning rate with the experiment's lr.")
    return build_entry(torch_entry(torch_class), [], dict(settings))


def coerce_optimizer(value: object) -> Optimizer:
    """Return the optimizer that a value stands for.

    The value may be text, an Optimizer, a torch optimizer class, or a functools.partial of such a class.
    """
    torch_class = value.func if isinstance(value, partial) else value
    if isinstance(torch_class, torch.optim.Optimizer):
        raise ValueError(
            "The optimizer is a torch object. Pass its class, or a functools.partial of the class."
        )
    if not (isinstance(torch_class, type) and issubclass(torch_class, torch.optim.Optimizer)):
        return parse_entry(value, OPTIMIZERS)
    if isinstance(value, partial) and value.args:
        raise ValueError(f"partial({torch_class.__name__}, …): pass settings by name, as in momentum=0.9.")
    return optimizer_from_torch(torch_class, value.keywords if isinstance(value, partial) else {})


@dataclass
class Velocities:
    """The velocity of each worker, created at its first gradient."""

    by_worker: dict[int, Tensor] = field(default_factory=dict)
    last: Tensor | None = None  # velocity of the last step
    total: Tensor | None = None  # sum of all velocities, which DANA updates in O(d)

    def accelerate(self, direction: Tensor, momentum: float, worker: int) -> Tensor:
        """Update a worker's velocity in place, v ← μv + direction, and return it."""
        velocity = self.by_worker.get(worker)
        if velocity is None:
            velocity = self.by_worker[worker] = torch.zeros_like(direction)
        self.last = torch.add(direction, velocity, alpha=momentum, out=velocity)
        return velocity


class PerWorkerMomentum(Optimizer):
    """Base of the optimizers that keep a velocity per worker: v ← μv + g + λx."""

    per_worker: ClassVar[bool] = True
    momentum: float = Field(0.9, gt=-1, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    _state: Velocities = PrivateAttr(default_factory=Velocities)

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._state = Velocities()

    def add_decay(self, x: Tensor, direction: Tensor) -> Tensor:
        """Return the direction with weight decay."""
        return direction.add(x, alpha=self.weight_decay) if self.weight_decay else direction

    def left(self, worker: int) -> None:
        self._state.by_worker.pop(worker, None)

    def velocity(self) -> Tensor | None:
        return self._state.last

    def decay(self) -> float:
        return self.weight_decay


class Multi(PerWorkerMomentum):
    """Multi-ASGD: a momentum per worker at the server. Hakimi et al. 2019; Giladi et al. 2020."""

    name: ClassVar[str] = "multi"
    nesterov: bool = False  # send a worker the model ahead along its velocity

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int, version: int) -> Tensor:
        velocity = self._state.accelerate(self.add_decay(x, direction), self.momentum, worker)
        return x.add(velocity, alpha=-lr)

    def send(self, x: Tensor, lr: float, worker: int) -> Tensor:
        velocity = self._state.by_worker.get(worker)
        return x if velocity is None or not self.nesterov else x.add(velocity, alpha=-lr * self.momentum)


class Dana(PerWorkerMomentum):
    """DANA-Zero: send the model after the momentum of all workers, x − ημ Σⱼvⱼ. Hakimi et al. 2019."""

    name: ClassVar[str] = "dana"

    def begin(self, x: Tensor, workers: int, shapes: Shapes) -> None:
        self._state = Velocities(total=torch.zeros_like(x))

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int, version: int) -> Tensor:
        state, direction = self._state, self.add_decay(x, direction)
        assert state.total is not None
        if worker in state.by_worker:
            state.total.add_(state.by_worker[worker], alpha=self.momentum - 1)
        state.total.add_(direction)
        return x.add(state.accelerate(direction, self.momentum, worker), alpha=-lr)

    def left(self, worker: int) -> None:
        """Remove the velocity from the sum, since this worker will not move the model again."""
        state = self._state
        if worker in state.by_worker:
            assert state.total is not None
            state.total.sub_(state.by_worker.pop(worker))

    def send(self, x: Tensor, lr: float, worker: int) -> Tensor:
        total = self._state.total
        assert total is not None
        return x.add(total, alpha=-lr * self.momentum) if self.momentum else x


class DanaSlim(PerWorkerMomentum):
    """DANA-Slim: the worker sends μv + g and keeps v; the server is plain ASGD. Hakimi et al. 2019.

    Here the server keeps each worker's v, so that a gradient is a pure function of its job.
    """

    name: ClassVar[str] = "dana-slim"

    def step(self, x: Tensor, direction: Tensor, lr: float, worker: int, version: int) -> Tensor:
        direction = self.add_decay(x, direction)
        velocity = self._state.accelerate(direction, self.momentum, worker)
        return x.add(direction.add(velocity, alpha=self.momentum), alpha=-lr)


OWN: list[type[Optimizer]] = [Multi, Dana, DanaSlim, OrMo, DelayedNesterov, Smega2, Predict, Fadas, Muon]
OPTIMIZERS = Catalogue(
    "optimizer", "optimizers", Optimizer, [*map(torch_entry, torch_optimizer_classes()), *OWN]
)
