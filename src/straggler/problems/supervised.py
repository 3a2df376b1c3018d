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

from straggler.core import EvaluationChunk, Message, Split
from straggler.core.devices import CPU, move_tensors
from straggler.core.randomness import (
    addressed_rng,
    preserve_global_generators,
    seed_global_generators,
    torch_seed,
)
from straggler.problems.computation import PLAIN, Computation
from straggler.problems.examples import Examples
from straggler.problems.loading import BatchLoader
from straggler.problems.losses import IGNORED_TARGET, default_cross_entropy, has_token_scores
from straggler.problems.metrics import Metric, measure_outputs

LossFunction = Callable[[Tensor, Any], Tensor]
MakeModule = Callable[[], nn.Module]
EVALUATION_CHUNK = 500  # samples; fixed, so that a sum over chunks does not depend on the number of cores
MAX_CHUNK_SCORES = 2**22  # in a chunk of sequences, which have a score per token and class
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
    If every token of a sequence has a target, `sequence` is the number of tokens, and scores count tokens.
    """

    chance = 0.0  # accuracy (percent) of guessing, if it is more than one of the classes
    loading: tuple[int, float] | None = None  # processes that load batches ahead, and their timeout
    _loader: BatchLoader | None = None

    def __init__(
        self,
        model: nn.Module | MakeModule,
        train: Examples,
        test: Examples,
        parts: Sequence[NDArray[np.int64]],
        batch_size: int | Sequence[int],  # of all workers, or of each
        seed: int,
        validation: Examples | None = None,
        loss: LossFunction | None = None,
        classes: tuple[str, ...] | None = (),
        metrics: Sequence[Metric] = (),
        sequence: int | None = None,
        computation: Computation = PLAIN,
    ) -> None:
        self.model, self.loss, self.sequence = model, loss or default_cross_entropy, sequence
        self.metrics, self.device, self.computation = tuple(metrics), CPU, computation
        self.splits: dict[str, Examples] = {"train": train, "test": test}
        if validation is not None:
            self.splits["validation"] = validation
        self.parts, self.seed = parts, seed
        self.batch_sizes = [batch_size] * len(parts) if isinstance(batch_size, int) else list(batch_size)
        self.samples = len(train)
        self._prepare()
        self.classes = self._count_outputs() if classes is None else classes
        scores = len(self.classes) * (self.sequence or 0)
        self.chunk = max(1, min(EVALUATION_CHUNK, MAX_CHUNK_SCORES // scores if scores else EVALUATION_CHUNK))

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "module" and key[0] != "_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    def move_to(self, device: torch.device) -> None:
        self.device = device
        if isinstance(self.loss, nn.Module):  # a copy, because the loss belongs to the user
            self.loss = copy.deepcopy(self.loss).to(device)
        self._prepare()

    def _prepare(self) -> None:
        """Build the module; its parameters and their gradients become views of two flat vectors."""
        self._compiled: Callable[..., Any] | None = None  # the module of gradients
        with preserve_global_generators():
            seed_global_generators(torch_seed(self.seed, "weights"))
            self.module = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model()
        self.module.to(self.device)
        if not self.module.training:  # if only some submodules are in evaluation mode, they stay so
            self.module.train()
        self._modes = [(part, part.training) for part in self.module.modules()]
        named = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        parameters, self.shapes = list(named.values()), {name: tuple(p.shape) for name, p in named.items()}
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
        return -(-len(self.parts[worker]) // self.batch_sizes[worker])

    def batch_samples(self, worker: int, index: int) -> int:
        size = self.batch_sizes[worker]
        return min(size, len(self.parts[worker]) - index % self.count_batches(worker) * size)

    def batch(self, worker: int, index: int) -> NDArray[np.int64]:
        """Return the training samples of a batch. Every pass over a worker's samples has another order."""
        epoch, position = divmod(index, self.count_batches(worker))
        start = position * self.batch_sizes[worker]
        return self._order(worker, epoch)[start : start + self.batch_sizes[worker]]

    def load_batch(self, worker: int, index: int) -> tuple[Tensor, Any]:
        """Return inputs and targets of a batch, augmented as in training."""
        address = (self.seed, "augment", worker, index)
        return self.splits["train"].fetch(self.batch(worker, index), lambda: addressed_rng(*address))

    def gradient(self, x: Tensor, buffers: Tensor, worker: int, index: int) -> Message:
        self._load(x, buffers)
        if self.loading is None:
            batch = self.load_batch(worker, index)
        else:
            self._loader = self._loader or BatchLoader(*self.loading)
            batch = self._loader.load(self.load_batch, worker, index)
        inputs, targets = move_tensors(batch, self.device)
        if self._compiled is None:
            self._compiled = self.computation.compile_module(self.module)
        for scale in self.computation.loss_scales:
            seed_global_generators(torch_seed(self.seed, "dropout", worker, index), self.device)
            self._gradient.zero_()
            loss = self.loss(self.computation.apply(self._compiled, inputs, self.device), targets)
            scaled = loss if scale == 1.0 else loss * scale
            scaled.backward()  # type: ignore[no-untyped-call]
            if scale == 1.0 or bool(self._gradient.isfinite().all()):
                break
            self._load(x, buffers)  # this pass has changed the buffers
        gradient = self._gradient.clone() if scale == 1.0 else self._gradient / scale
        return Message(gradient, loss.item(), self._read_buffers())

    def _apply_module(self, inputs: Any) -> Any:
        """Return the module's outputs. Evaluations and trials do not compile it."""
        return self.computation.apply(self.module, inputs, self.device)

    def try_out(self) -> None:
        """Compute the loss of two samples, and raise if model, data and loss do not fit together."""
        labels, chosen = self.splits["train"].known_labels, np.arange(2)
        if labels is not None and labels.ndim == 1:
            chosen = np.array([labels.argmin(), labels.argmax()])  # there may be too few outputs
        self.computation.check()
        batch = self.splits["train"].fetch(chosen[: max(self.batch_sizes)] % self.samples)
        inputs, targets = move_tensors(batch, self.device)
        buffers = self._read_buffers()
        try:
            with preserve_global_generators():
                outputs = self._apply_module(inputs)
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
        is_cross_entropy = self.loss in (F.cross_entropy, default_cross_entropy)
        if is_cross_entropy and not self.sequence and (outputs.dim() < 2 or outputs.shape[1] == 1):
            raise ValueError(
                "The model has one output, whose cross entropy is always 0. "
                "Give it one output per class, or pass a loss such as loss=torch.nn.functional.mse_loss."
            )

        if self.metrics:
            with preserve_global_generators(), self._evaluation_mode():
                outputs = self._apply_module(inputs)
                for metric in self.metrics:
                    measure_outputs(metric, outputs, targets)

    def count_chunks(self, split: Split) -> int:
        return -(-len(self.splits[split]) // self.chunk) if split in self.splits else 0

    def evaluate(self, x: Tensor, buffers: Tensor, split: Split, chunk: int) -> EvaluationChunk:
        """Return the loss and the predicted classes of one chunk, computed in evaluation mode.

        Predictions of tokens are counted at once, because there may be millions of them.
        """
        self._load(x, buffers)
        examples = self.splits[split]
        chosen = np.arange(chunk * self.chunk, min((chunk + 1) * self.chunk, len(examples)))
        inputs, targets = move_tensors(examples.fetch(chosen), self.device)
        with self._evaluation_mode():
            outputs = self._apply_module(inputs)
            loss = float(self.loss(outputs, targets))
        is_sequence = self.sequence is not None and has_token_scores(outputs, targets)
        count = int((targets != IGNORED_TARGET).sum()) if is_sequence else len(chosen)
        sums = tuple(count * measure_outputs(one, outputs, targets) for one in self.metrics)
        if not is_sequence and not self._are_scores(outputs):
            return EvaluationChunk(loss * count, count, metrics=sums)
        varied = len(chosen) < 2 or bool((outputs != outputs[:1]).any())
        predicted = outputs.argmax(dim=-1)
        if is_sequence:
            correct = int((predicted == targets).sum())
            return EvaluationChunk(loss * count, count, varied=varied, metrics=sums, correct=correct)
        predictions = predicted.cpu().numpy(), targets.cpu().numpy()
        return EvaluationChunk(loss * count, count, *predictions, varied, sums)

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
        """Return one class name per score of the module, found by evaluating one sample."""
        inputs, targets = move_tensors(self.splits["train"].fetch(np.array([0])), self.device)
        buffers = self._read_buffers()
        try:
            with preserve_global_generators(), self._evaluation_mode():
                outputs = self._apply_module(inputs)
        except Exception:  # try_out() reports the error
            return ()
        finally:
            self._load(self._first, buffers)
        if has_token_scores(outputs, targets) and self.loss is not F.cross_entropy:
            self.sequence = targets.shape[1]
        elif not isinstance(outputs, Tensor) or outputs.dim() != 2 or targets.dim() != 1:
            return ()
        return tuple(map(str, range(outputs.shape[-1]))) if outputs.shape[-1] > 1 else ()

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
