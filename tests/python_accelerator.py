"""An accelerator written in Python: two devices, `npy`, whose tensors are in fact in CPU memory.

Importing this module registers it with torch. Every operation that mixes its tensors with those of the CPU
raises an error, as on a GPU. Results are the CPU's, bit for bit.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "npy"
aten: Any = torch.ops.aten


class AcceleratorModule(_DummyBackendModule):
    """The module `torch.npy`. Random numbers come from the CPU's generator, so that results are the CPU's."""

    def __init__(self) -> None:
        self.seeds: list[int] = []  # that the generators of the accelerator received

    def device_count(self) -> int:
        return 1

    def manual_seed_all(self, seed: int) -> None:
        self.seeds.append(seed)


MODULE = AcceleratorModule()
_setup_privateuseone_for_python_backend(NAME, MODULE)


class AcceleratorTensor(torch.Tensor):
    """A tensor that says it is on the accelerator; the object of its storage refers to the CPU's storage."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._to_copy.default:
            return copy_to(args[0], **kwargs)
        if func is aten.copy_.default:
            unwrap(args[0]).copy_(unwrap(args[1]))
            return args[0]
        if func is aten.native_dropout.default:  # the CPU has no such kernel with the same bits
            return drop_out(*args)
        tensors = [value for value in flatten((args, kwargs)) if isinstance(value, Tensor)]
        device = find_device(func, tensors)
        if "device" in kwargs and kwargs["device"] is not None:
            device = torch.device(kwargs["device"])
            kwargs = kwargs | {"device": torch.device("cpu")}
        elif "device" in kwargs:
            kwargs = {key: value for key, value in kwargs.items() if key != "device"}
        if "out" in kwargs and not kwargs["out"].numel():  # the operation allocates the memory
            result = func(*map_tensors(args, unwrap), **kwargs | {"out": unwrap(kwargs["out"]).clone()})
            return share_storage(kwargs["out"], wrap(result, device))
        results = func(*map_tensors(args, unwrap), **map_tensors(kwargs, unwrap))
        if written := [kwargs[name] if name in kwargs else args[place] for place, name in find_written(func)]:
            return written[0] if len(written) == 1 else tuple(written)
        owners = {get_storage(each)._cdata: each for each in tensors if isinstance(each, AcceleratorTensor)}
        return map_tensors(results, functools.partial(wrap, device=device, owners=owners))


def flatten(value: Any) -> list[Any]:
    """Return the values in nested tuples, lists and dictionaries."""
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for each in value for leaf in flatten(each)] if isinstance(value, list | tuple) else [value]


def map_tensors(value: Any, function: Any) -> Any:
    """Return nested tuples, lists and dictionaries with a function applied to their tensors."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(each, function) for key, each in value.items()}
    return (
        type(value)(map_tensors(each, function) for each in value) if type(value) in (list, tuple) else value
    )


def find_device(func: Any, tensors: list[Tensor]) -> torch.device:
    """Return the device of an operation; raise if its tensors are on several (single numbers may be)."""
    devices = {tensor.device for tensor in tensors if isinstance(tensor, AcceleratorTensor)}
    devices |= {tensor.device for tensor in tensors if tensor.dim()}
    if len(devices) != 1:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, got {devices}")
    return devices.pop()


@functools.cache
def find_written(func: Any) -> list[tuple[int, str]]:
    """Return the places and names of the arguments that an in-place operation returns."""
    schema = func._schema
    if not schema.returns or schema.returns[0].alias_info is None:
        return []
    arguments = enumerate(schema.arguments)
    return [(place, each.name) for place, each in arguments if each.alias_info and each.alias_info.is_write]


def get_storage(tensor: Tensor) -> Any:
    """Return the CPU's storage of a tensor."""
    storage = tensor.untyped_storage()
    return storage.on_cpu if isinstance(tensor, AcceleratorTensor) else storage


def unwrap(tensor: Tensor) -> Tensor:
    """Return the CPU's tensor with the same memory."""
    if not isinstance(tensor, AcceleratorTensor):
        return tensor
    empty = torch.empty(0, dtype=tensor.dtype)
    return empty.set_(get_storage(tensor), tensor.storage_offset(), tensor.shape, tensor.stride())


def wrap(result: Tensor, device: torch.device, owners: dict[int, Tensor] | None = None) -> Tensor:
    """Return the accelerator's tensor for a result; a view shares the storage of the tensor that it views."""
    if device.type != NAME:
        return result
    storage = result.untyped_storage()
    place = torch.device(NAME, device.index or 0)
    wrapped = torch.Tensor._make_wrapper_subclass(
        AcceleratorTensor,
        result.shape,
        result.stride(),
        result.storage_offset(),
        dtype=result.dtype,
        device=place,
        storage_size=storage.nbytes(),
    )
    owner = (owners or {}).get(storage._cdata)
    if owner is None:
        wrapped.untyped_storage().on_cpu = storage  # type: ignore[attr-defined]
        return wrapped
    return share_storage(wrapped, owner, wrapped)


def share_storage(tensor: Tensor, owner: Tensor, form: Tensor | None = None) -> Tensor:
    """Make a tensor a view of another one's storage, with the shape of `form`, by default the owner's."""
    form = owner if form is None else form
    place = form.storage_offset(), form.shape, form.stride()
    with torch._C._DisableTorchDispatch():
        before = torch._C._meta_in_tls_dispatch_include()
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            aten.set_.source_Storage_storage_offset(tensor, owner.untyped_storage(), *place)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)
    return tensor


def copy_to(tensor: Tensor, device: Any = None, **options: Any) -> Tensor:
    """Copy a tensor to another device or type."""
    target = tensor.device if device is None else torch.device(device)
    if target.type == "meta":
        return aten._to_copy.default(unwrap(tensor), device=target, **options)
    options.pop("non_blocking", None)
    return wrap(aten._to_copy.default(unwrap(tensor), **options), target)


def drop_out(tensor: Tensor, share: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Return the output and the mask of a dropout, drawn like on the CPU."""
    kept = torch.empty_like(unwrap(tensor)).bernoulli_(1 - share)
    return wrap(unwrap(tensor) * (kept / (1 - share)), tensor.device), wrap(kept, tensor.device)


def create_empty(size: Any, device: Any, **options: Any) -> Tensor:
    """Return a tensor with undefined values."""
    return wrap(torch.empty(size, **options), torch.device(device or NAME))


@torch.library.impl("aten::empty.memory_format", NAME)
def empty_memory_format(size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None) -> Tensor:  # fmt: skip  # noqa: E501
    return create_empty(size, device, dtype=dtype, memory_format=memory_format or torch.contiguous_format)


@torch.library.impl("aten::empty_strided", NAME)
def empty_strided(size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Tensor:  # fmt: skip  # noqa: E501
    return wrap(torch.empty_strided(size, stride, dtype=dtype), torch.device(device or NAME))


@torch.library.impl("aten::_copy_from", NAME)
def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    unwrap(target).copy_(unwrap(source))
    return target


class SmallNet(nn.Sequential):
    """A convolution, batch normalisation, dropout and a dense layer. Worker processes that use it import this
    module, which registers the accelerator there; the devices of its inputs are written into a file.
    """

    def __init__(self, file: Path | None = None) -> None:
        layers = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(0.5)
        super().__init__(*layers, nn.Flatten(), nn.Linear(18, 3))
        self.file = file

    def forward(self, x: Tensor) -> Tensor:
        if self.file is not None:
            with self.file.open("a") as file:
                file.write(f"{'train' if self.training else 'test'} {x.device}\n")
        return super().forward(x)


def make_images(samples: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return random images and their classes."""
    random = np.random.default_rng(samples)
    labels = random.integers(0, 3, samples)
    images = random.standard_normal((samples, 1, 8, 8)) + labels[:, None, None, None]
    return images.astype(np.float32), labels


SMALL: dict[str, Any] = {
    "dataset": (*make_images(60), *make_images(20)),
    "model": SmallNet,
    "workers": 3,
    "batch_size": 4,
    "lr": 0.05,
    "updates": 6,
    "compute": "exponential(mean=1)",
}
