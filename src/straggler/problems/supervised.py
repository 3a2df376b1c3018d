"""Supervised problem: a model, data and a loss, whose parameters and gradients are flat vectors."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from straggler.core import EvaluationChunk, Gradient, Split
from straggler.core.randomness import (
    addressed_rng,
    preserve_global_generators,
    seed_global_generators,
    torch_seed,
)
from straggler.problems.examples import Examples

LossFunction = Callable[[Tensor, Any], Tensor]
MakeModule = Callable[[], nn.Module]
EVALUATION_CHUNK = 500  # samples; fixed, so that a sum over chunks does not depend on the number of cores
TRAINABLE_TYPES = {torch.float16, torch.float32, torch.float64}
CACHED_ORDERS = 256  # shuffled orders in memory: one per worker and pass


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Compute with one thread, and restore the number of threads and the global generators afterwards.

    Several gradients are computed at the same time, so each must use one core only.
    """
    threads = torch.get_num_threads()
    with preserve_global_generators():
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def shuffle_part(seed: int, parts: Sequence[NDArray[np.int64]], worker: int, epoch: int) -> NDArray[np.int64]:
    """Return a worker's samples in the order of one pass over them."""
    return addressed_rng(seed, "batches", worker, epoch).permutation(parts[worker])


def describe_value(value: Any) -> str:
    """Return the shape and type of a value for an error message."""
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


class SupervisedProblem:
    """The problem of training an nn.Module with a loss on examples that are partitioned among workers.

    `classes` are the names of the classes: empty for a regression, None to count the module's outputs.
    """

    def __init__(
        self,
        model: nn.Module | MakeModule,
        train: Examples,
        test: Examples,
        parts: Sequence[NDArray[np.int64]],
        batch_size: int,
        seed: int,
        validation: Examples | None = None,
        loss: LossFunction | None = None,
        classes: tuple[str, ...] | None = (),
    ) -> None:
        self.model, self.loss = model, loss or F.cross_entropy
        self.splits: dict[str, Examples] = {"train": train, "test": test}
        if validation is not None:
            self.splits["validation"] = validation
        self.parts, self.batch_size, self.seed = parts, batch_size, seed
        self.samples = len(train)
        self._prepare()
        self.classes = self._count_outputs() if classes is None else classes

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "module" and key[0] != "_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    def _prepare(self) -> None:
        """Build the module; its parameters and their gradients become views of two flat vectors."""
        with preserve_global_generators():
            seed_global_generators(torch_seed(self.seed, "weights"))
            self.module = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model()
        if not self.module.training:  # if only some submodules are in evaluation mode, they stay so
            self.module.train()
        self._modes = [(part, part.training) for part in self.module.modules()]
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        if len(types := {p.dtype for p in parameters}) != 1 or not types <= TRAINABLE_TYPES:
            found = ", ".join(sorted(map(str, types))) or "none"
            raise ValueError(
                f"The model must have trainable parameters of one type (float32, float16 or float64), "
                f"got {found}"
            )
        self._flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        self._first = self._flat.clone()
        self._gradient = torch.zeros_like(self._flat)
        sizes = [p.numel() for p in parameters]
        pairs = zip(torch.split(self._flat, sizes), torch.split(self._gradient, sizes), strict=True)
        for parameter, (value, gradient) in zip(parameters, pairs, strict=True):
            parameter.data, parameter.grad = value.view(parameter.shape), gradient.view(parameter.shape)
        self._find_buffers()
        # A cached method would refer to this object, which would keep the data alive.
        self._order = lru_cache(CACHED_ORDERS)(partial(shuffle_part, self.seed, self.parts))

    def _find_buffers(self) -> None:
        """Find the places of all buffers; raise if a buffer would lose precision when it is sent."""
        parts = [part._buffers for part in self.module.modules()]
        self._slots = [(slots, name) for slots in parts for name in slots if slots[name] is not None]
        for (_, name), buffer in zip(self._slots, self._buffers(), strict=True):
            if not torch.equal(buffer.to(self._flat.dtype).to(buffer.dtype), buffer):
                raise ValueError(
                    f"Buffer {name!r} ({buffer.dtype}) has values that {self._flat.dtype} cannot represent. "
                    f"Buffers are sent in the type of the parameters. Make this one a plain attribute."
                )

    def initial_model(self) -> tuple[Tensor, Tensor]:
        return self._first.clone(), self._read_buffers()

    def count_batches(self, worker: int) -> int:
        return -(-len(self.parts[worker]) // self.batch_size)

    def batch_samples(self, worker: int, index: int) -> int:
        start = index % self.count_batches(worker) * self.batch_size
        return min(self.batch_size, len(self.parts[worker]) - start)

    def batch(self, worker: int, index: int) -> NDArray[np.int64]:
        """Return the training samples of a batch. Every pass over a worker's samples has another order."""
        epoch, position = divmod(index, self.count_batches(worker))
        start = position * self.batch_size
        return self._order(worker, epoch)[start : start + self.batch_size]

    def gradient(self, x: Tensor, buffers: Tensor, worker: int, index: int) -> Gradient:
        self._load(x, buffers)
        address = (self.seed, "augment", worker, index)
        inputs, targets = self.splits["train"].fetch(
            self.batch(worker, index), lambda: addressed_rng(*address)
        )
        seed_global_generators(torch_seed(self.seed, "dropout", worker, index))
        self._gradient.zero_()
        loss = self.loss(self.module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return Gradient(self._gradient.clone(), loss.item(), self._read_buffers())

    def try_out(self) -> None:
        """Compute the loss of two samples, and raise if model, data and loss do not fit together."""
        labels, chosen = self.splits["train"].known_labels, np.arange(2)
        if labels is not None and labels.ndim == 1:
            chosen = np.array([labels.argmin(), labels.argmax()])  # there may be too few outputs
        inputs, targets = self.splits["train"].fetch(chosen[: self.batch_size] % self.samples)
        buffers = self._read_buffers()
        try:
            with preserve_global_generators():
                outputs = self.module(inputs)
                loss = self.loss(outputs, targets)
                torch.as_tensor(loss).item()
        except Exception as error:
            raise ValueError(
                f"The model or the loss fails on a small batch: {str(error).splitlines()[0]} "
                f"(inputs {describe_value(inputs)}, targets {describe_value(targets)})"
            ) from error
        finally:
            self._load(self._first, buffers)
        if not isinstance(loss, Tensor) or not loss.requires_grad:
            raise ValueError(
                f"The loss must depend on the model's parameters, got {describe_value(loss)}. "
                f"Return the loss tensor (no item() or detach())."
            )
        if self.loss is F.cross_entropy and (outputs.dim() < 2 or outputs.shape[1] == 1):
            raise ValueError(
                "The model has one output, whose cross entropy is always 0. "
                "Give it one output per class, or pass a loss such as loss=torch.nn.functional.mse_loss."
            )

    def count_chunks(self, split: Split) -> int:
        return -(-len(self.splits[split]) // EVALUATION_CHUNK) if split in self.splits else 0

    def evaluate(self, x: Tensor, buffers: Tensor, split: Split, chunk: int) -> EvaluationChunk:
        """Return the loss and the predicted classes of one chunk, computed in evaluation mode."""
        self._load(x, buffers)
        examples = self.splits[split]
        chosen = np.arange(chunk * EVALUATION_CHUNK, min((chunk + 1) * EVALUATION_CHUNK, len(examples)))
        inputs, targets = examples.fetch(chosen)
        with self._evaluation_mode():
            outputs = self.module(inputs)
            loss = float(self.loss(outputs, targets)) * len(chosen)
        if not self._are_scores(outputs):
            return EvaluationChunk(loss, len(chosen))
        varied = len(chosen) < 2 or bool((outputs != outputs[:1]).any())
        return EvaluationChunk(loss, len(chosen), outputs.argmax(dim=1).numpy(), targets.numpy(), varied)

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        self.module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for part, training in self._modes:
                part.training = training

    def _are_scores(self, outputs: Any) -> bool:
        """Return whether outputs have a score per class, so that the largest score is the prediction."""
        is_matrix = isinstance(outputs, Tensor) and outputs.dim() == 2
        return is_matrix and outputs.shape[1] >= len(self.classes) > 0

    def _count_outputs(self) -> tuple[str, ...]:
        """Return one class name per output of the module, found by evaluating one sample."""
        inputs, _ = self.splits["train"].fetch(np.array([0]))
        buffers = self._read_buffers()
        try:
            with preserve_global_generators(), self._evaluation_mode():
                outputs = self.module(inputs)
        except Exception:  # try_out() reports the error
            return ()
        finally:
            self._load(self._first, buffers)
        scores = isinstance(outputs, Tensor) and outputs.dim() == 2 and outputs.shape[1] > 1
        return tuple(map(str, range(outputs.shape[1]))) if scores else ()

    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        self._load(x, buffers)
        return {name: tensor.clone() for name, tensor in self.module.state_dict().items()}

    def _load(self, x: Tensor, buffers: Tensor) -> None:
        """Copy a flat model and its buffers into the module."""
        self._flat.copy_(x)
        if self._slots:
            targets = self._buffers()
            sizes = [b.numel() for b in targets]
            for target, value in zip(targets, torch.split(buffers, sizes), strict=True):
                target.copy_((value if target.is_floating_point() else value.round()).view(target.shape))

    def _read_buffers(self) -> Tensor:
        """Return a flat copy of the module's buffers."""
        if not self._slots:
            return self._first[:0]
        return torch.cat([b.detach().reshape(-1).to(self._first.dtype) for b in self._buffers()])

    def _buffers(self) -> list[Tensor]:
        """Return the current buffers, looked up each time because a module may replace the tensors."""
        found = (slots[name] for slots, name in self._slots)
        return [torch.view_as_real(b) if b.is_complex() else b for b in found if b is not None]
