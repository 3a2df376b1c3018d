"""WORK: the catalogue of what a job computes at the worker, from one gradient to many local steps."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator, Field, PlainSerializer, PrivateAttr
from torch import Tensor

from straggler.algorithms.channels import Exact
from straggler.algorithms.optimizers import TorchOptimizer, coerce_optimizer
from straggler.config.registry import Catalogue
from straggler.core import Message, Optimizer, Problem, Shapes, Work, WorkerProgram

InnerOptimizer = Annotated[Optimizer, BeforeValidator(coerce_optimizer), PlainSerializer(str)]


class BatchGradient(Work):
    """The gradient of one batch."""

    name: ClassVar[str] = "gradient"
    is_gradient: ClassVar[bool] = True

    def compute(
        self,
        problem: Problem,
        x: Tensor,
        buffers: Tensor,
        memory: Tensor | None,
        worker: int,
        batches: range,
    ) -> Message:
        return problem.gradient(x, buffers, worker, batches[0])


class Accumulate(Work):
    """The mean gradient of several batches at the same model."""

    name: ClassVar[str] = "accumulate"
    batches: int = Field(2, ge=1)

    def count_batches(self, speed: float) -> int:
        return self.batches

    def compute(
        self,
        problem: Problem,
        x: Tensor,
        buffers: Tensor,
        memory: Tensor | None,
        worker: int,
        batches: range,
    ) -> Message:
        total, loss = torch.zeros_like(x), 0.0
        for batch in batches:
            gradient = problem.gradient(x, buffers, worker, batch)
            total, loss, buffers = total.add_(gradient.vector), loss + gradient.loss, gradient.buffers
        return Message(total.div_(len(batches)), loss / len(batches), buffers)


@dataclass
class InnerState:
    """The form of the state that the inner optimizer keeps."""

    shapes: Shapes
    template: Any  # the state after one step; its tensors have a shape and a type, but no memory


class InnerSteps(Work):
    """Base of the work that takes several steps with an optimizer of its own."""

    steps: int = Field(10, ge=1)
    lr: float = Field(0.01, gt=0)
    optimizer: InnerOptimizer = Field(default_factory=lambda: coerce_optimizer("sgd"), validate_default=True)
    balance: bool = False  # fewer steps on slower workers: max(1, ⌊steps · speed ÷ fastest speed⌋)
    _inner: InnerState = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if not isinstance(self.optimizer, TorchOptimizer):
            raise ValueError(
                f"optimizer={self.optimizer} is for a server, which knows versions and workers. "
                f"Use a torch.optim class, such as adamw."
            )

    @property
    def needs_speeds(self) -> bool:
        return self.balance

    def count_batches(self, speed: float) -> int:
        return max(1, int(self.steps * speed + 1e-9)) if self.balance else self.steps

    def prepare_inner(self, x: Tensor, shapes: Shapes) -> int:
        """Create the inner optimizer; return how many numbers its state has."""
        optimizer = copy.deepcopy(self.optimizer)
        optimizer.begin(x.clone(), 1, shapes)
        optimizer.step(x.clone(), torch.zeros_like(x), self.lr, 0, 0)
        self._inner = InnerState(shapes, map_tensors(optimizer.state(), lambda tensor: tensor.to("meta")))
        return sum(tensor.numel() for tensor in list_numbers(self._inner.template))

    def take_steps(
        self,
        problem: Problem,
        start: Tensor,
        centre: Tensor,
        proximal: float,
        state: Tensor | None,
        buffers: Tensor,
        worker: int,
        batches: range,
    ) -> tuple[Tensor, float, Tensor, Any]:
        """Take one step per batch from `start`.

        Return the last model, the mean loss, the buffers and the state of the inner optimizer.
        """
        optimizer, x, loss = copy.deepcopy(self.optimizer), start, 0.0
        optimizer.begin(x, 1, self._inner.shapes)
        if state is not None:
            optimizer.restore(unflatten_state(state, self._inner.template))
        for batch in batches:
            gradient = problem.gradient(x, buffers, worker, batch)
            direction = gradient.vector
            if proximal:
                direction = direction.add(x - centre, alpha=proximal)
            x = optimizer.step(x, direction, self.lr, 0, 0)
            loss, buffers = loss + gradient.loss, gradient.buffers
        return x, loss / len(batches), buffers, optimizer.state()


class Local(InnerSteps):
    """Take `steps` steps from the server's model and send how far they moved, x − x_H. McMahan et al. 2017.

    `keep` keeps the inner optimizer's state from job to job; `proximal` pulls towards the server's model.
    """

    name: ClassVar[str] = "local"
    keep: bool = False
    proximal: float = Field(0.0, ge=0)  # μ of FedProx (Li et al. 2020)

    def prepare(self, x: Tensor, shapes: Shapes) -> int:
        size = self.prepare_inner(x, shapes)
        return size if self.keep else 0

    def compute(
        self,
        problem: Problem,
        x: Tensor,
        buffers: Tensor,
        memory: Tensor | None,
        worker: int,
        batches: range,
    ) -> Message:
        state = memory if self.keep else None
        place = buffers, worker, batches
        last, loss, buffers, after = self.take_steps(problem, x, x, self.proximal, state, *place)
        kept = flatten_state(after, x) if self.keep else None
        return Message(x - last, loss, buffers, kept)


class Elastic(InnerSteps):
    """Steps of the worker's own model, which a spring ties to the server's. Zhang et al. 2015 (EASGD).

    After its steps the worker computes e = α(xᵢ − x), keeps xᵢ − e, and sends −e, so that outer SGD at rate 1
    moves the server by e. The exchange uses the model that the worker received at the start of the job.
    """

    name: ClassVar[str] = "elastic"
    alpha: float = Field(0.1, ge=0, le=1)

    def prepare(self, x: Tensor, shapes: Shapes) -> int:
        self.prepare_inner(x, shapes)
        return x.numel()

    def compute(
        self,
        problem: Problem,
        x: Tensor,
        buffers: Tensor,
        memory: Tensor | None,
        worker: int,
        batches: range,
    ) -> Message:
        start = x if memory is None else memory
        place = buffers, worker, batches
        last, loss, buffers, _ = self.take_steps(problem, start, x, 0.0, None, *place)
        force = (last - x).mul_(self.alpha)
        return Message(-force, loss, buffers, last - force)


def map_tensors(state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return a nested state with a function applied to its tensors."""
    if isinstance(state, Tensor):
        return function(state)
    if isinstance(state, dict):
        return {key: map_tensors(value, function) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map_tensors(value, function) for value in state)
    return state


def list_numbers(state: Any) -> list[Tensor]:
    """Return the tensors and numbers of a nested state, in order, as flat tensors."""
    if isinstance(state, Tensor):
        return [state.detach().reshape(-1)]
    if isinstance(state, bool | str) or state is None:
        return []
    if isinstance(state, int | float):
        return [torch.tensor([state], dtype=torch.float64)]
    values = state.values() if isinstance(state, dict) else state
    return [tensor for value in values for tensor in list_numbers(value)]


def flatten_state(state: Any, x: Tensor) -> Tensor:
    """Return the numbers of a nested state as one vector of the type and on the device of `x`."""
    return torch.cat([x[:0], *(tensor.to(x.dtype).to(x.device) for tensor in list_numbers(state))])


def unflatten_state(vector: Tensor, template: Any) -> Any:
    """Return a state with the form of `template` and the numbers of a vector, in new memory."""
    position = 0

    def build(form: Any) -> Any:
        nonlocal position
        if isinstance(form, Tensor):
            numbers = vector[position : position + form.numel()]
            position += form.numel()
            numbers = numbers.to(form.dtype, copy=True).view(form.shape)
            return numbers if form.dim() else numbers.cpu()  # where torch's optimizers count their steps
        if isinstance(form, bool | str) or form is None:
            return form
        if isinstance(form, int | float):
            position += 1
            return type(form)(vector[position - 1].item())
        if isinstance(form, dict):
            return {key: build(value) for key, value in form.items()}
        return type(form)(build(value) for value in form)

    return build(template)


def gradient_program(problem: Problem) -> WorkerProgram:
    """Return the program of workers that send the exact gradient of one batch."""
    return WorkerProgram(problem, BatchGradient(), Exact())


WORK = Catalogue("kind of work", "work", Work, [BatchGradient, Accumulate, Local, Elastic])
