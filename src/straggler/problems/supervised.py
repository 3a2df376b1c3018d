"""A model, data and a loss as gradients of one flat vector."""

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

Loss = Callable[[Tensor, Any], Tensor]
CHUNK = 500  # samples evaluated at once: fixed, so that a sum over chunks is the same on any number of cores
TYPES = {torch.float16, torch.float32, torch.float64}  # that numpy has too
CACHED_ORDERS = 256  # shuffles kept: one per worker and pass


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Gradients use one thread each (cores are spent across gradients) and leave the process as it was."""
    threads = torch.get_num_threads()
    with preserve_global_generators():
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def shuffled(seed: int, parts: Sequence[NDArray[np.int64]], worker: int, passes: int) -> NDArray[np.int64]:
    """A worker's samples in the order of this pass."""
    return addressed_rng(seed, "batches", worker, passes).permutation(parts[worker])


def described(part: Any) -> str:
    """Of what size and type it is."""
    return f"{tuple(part.shape)} {part.dtype}" if isinstance(part, Tensor) else type(part).__name__


class SupervisedProblem:
    """Any nn.Module, any loss, examples dealt to workers."""

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        train: Examples,
        test: Examples,
        parts: Sequence[NDArray[np.int64]],
        batch_size: int,
        seed: int,
        validation: Examples | None = None,
        loss: Loss = F.cross_entropy,
        classes: tuple[str, ...] = (),
    ) -> None:
        self.model, self.loss, self.classes = model, loss, classes
        self.splits: dict[str, Examples] = {"train": train, "test": test}
        if validation is not None:
            self.splits["validation"] = validation
        self.parts, self.batch_size, self.seed = parts, batch_size, seed
        self.samples = len(train)
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        kept = ("model", "loss", "classes", "splits", "parts", "batch_size", "seed", "samples")
        return {key: self.__dict__[key] for key in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def _prepare(self) -> None:
        """Build the module on one flat vector: its parameters and their gradients are views."""
        with preserve_global_generators():
            seed_global_generators(torch_seed(self.seed, "weights"))
            self.module = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model()
        if not self.module.training:  # it was used, and is to be trained; parts that are frozen stay so
            self.module.train()
        self._modes = [(part, part.training) for part in self.module.modules()]
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        if len(kinds := {p.dtype for p in parameters}) != 1 or not kinds <= TYPES:
            found = ", ".join(sorted(map(str, kinds))) or "none"
            raise ValueError(
                f"the trainable parameters are {found}; there must be some, all float32 (or 16, or 64)"
            )
        self._flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        self._first = self._flat.clone()
        self._gradient = torch.zeros_like(self._flat)
        for parameter, view, slope in zip(
            parameters,
            self._views(self._flat, parameters),
            self._views(self._gradient, parameters),
            strict=True,
        ):
            parameter.data, parameter.grad = view, slope
        self._find_buffers()
        # of no method of this object, which would then hold itself, and the data with it
        self._order = lru_cache(CACHED_ORDERS)(partial(shuffled, self.seed, self.parts))

    def _find_buffers(self) -> None:
        """Where they are; what would lose digits on its way is refused."""
        self._slots = [
            (part._buffers, name)
            for part in self.module.modules()
            for name, buffer in part._buffers.items()
            if buffer is not None
        ]
        for (_, name), buffer in zip(self._slots, self._buffers(), strict=True):
            if not torch.equal(buffer.to(self._flat.dtype).to(buffer.dtype), buffer):
                raise ValueError(
                    f"buffer {name!r} ({buffer.dtype}) has values that {self._flat.dtype}, as which buffers "
                    f"travel, cannot hold; make it a plain attribute"
                )

    @staticmethod
    def _views(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        parts = torch.split(flat, [p.numel() for p in parameters])
        return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]

    def initial_model(self) -> tuple[Tensor, Tensor]:
        return self._first.clone(), self._read_buffers()

    def count_batches(self, worker: int) -> int:
        return -(-len(self.parts[worker]) // self.batch_size)

    def batch_samples(self, worker: int, index: int) -> int:
        start = index % self.count_batches(worker) * self.batch_size
        return min(self.batch_size, len(self.parts[worker]) - start)

    def batch(self, worker: int, index: int) -> NDArray[np.int64]:
        """Which training samples: every pass over the worker's data is shuffled anew."""
        passes, position = divmod(index, self.count_batches(worker))
        start = position * self.batch_size
        return self._order(worker, passes)[start : start + self.batch_size]

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
        """The model and the loss on a small batch, so that what cannot work is refused before it runs."""
        labels = self.splits["train"].labels
        chosen = np.array([labels.argmin(), labels.argmax()]) if labels.ndim == 1 else np.arange(2)
        inputs, targets = self.splits["train"].fetch(chosen[: self.batch_size] % self.samples)
        buffers = self._read_buffers()
        try:
            with preserve_global_generators():
                outputs = self.module(inputs)
                loss = self.loss(outputs, targets)
                torch.as_tensor(loss).item()
        except Exception as error:
            raise ValueError(
                f"the model and the loss fail on a small batch: {str(error).splitlines()[0]} "
                f"(inputs {described(inputs)}, targets {described(targets)}); let them fit"
            ) from error
        finally:
            self._load(self._first, buffers)
        if not isinstance(loss, Tensor) or not loss.requires_grad:
            raise ValueError(
                f"the loss is {described(loss)}, which leads back to no parameter; "
                f"let it return the tensor it computes, without item() or detach()"
            )
        if self.loss is F.cross_entropy and (outputs.dim() < 2 or outputs.shape[1] == 1):
            raise ValueError(
                "the model has one output, of which the cross entropy says nothing; "
                "give it one for each class, or another loss, such as loss=torch.nn.functional.mse_loss"
            )

    def count_chunks(self, split: Split) -> int:
        return -(-len(self.splits[split]) // CHUNK) if split in self.splits else 0

    def evaluate(self, x: Tensor, buffers: Tensor, split: Split, chunk: int) -> EvaluationChunk:
        """Loss and predicted classes of one chunk, in evaluation mode."""
        self._load(x, buffers)
        examples = self.splits[split]
        chosen = np.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, len(examples)))
        inputs, targets = examples.fetch(chosen)
        self.module.eval()
        try:
            with torch.no_grad():
                outputs = self.module(inputs)
                loss = float(self.loss(outputs, targets)) * len(chosen)
        finally:
            for part, training in self._modes:
                part.training = training
        if not self._scores(outputs):
            return EvaluationChunk(loss, len(chosen))
        varied = len(chosen) < 2 or bool((outputs != outputs[:1]).any())
        return EvaluationChunk(loss, len(chosen), outputs.argmax(dim=1).numpy(), varied)

    def _scores(self, outputs: Any) -> bool:
        """Whether an output is a score for every class, the largest of which is a prediction."""
        classes = len(self.classes)
        return (
            classes > 0 and isinstance(outputs, Tensor) and outputs.dim() == 2 and outputs.shape[1] >= classes
        )

    def labels(self, split: Split) -> NDArray[np.int64] | None:
        return self.splits[split].labels if self.classes and split in self.splits else None

    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        self._load(x, buffers)
        return {name: tensor.clone() for name, tensor in self.module.state_dict().items()}

    def _load(self, x: Tensor, buffers: Tensor) -> None:
        self._flat.copy_(x)
        if self._slots:
            targets = self._buffers()
            sizes = [b.numel() for b in targets]
            for target, value in zip(targets, torch.split(buffers, sizes), strict=True):
                target.copy_((value if target.is_floating_point() else value.round()).view(target.shape))

    def _read_buffers(self) -> Tensor:
        if not self._slots:
            return self._first[:0]
        return torch.cat([b.detach().reshape(-1).to(self._first.dtype) for b in self._buffers()])

    def _buffers(self) -> list[Tensor]:
        """The buffers as they are now: a module may have put others in their place."""
        found = (slots[name] for slots, name in self._slots)
        return [torch.view_as_real(b) if b.is_complex() else b for b in found if b is not None]
