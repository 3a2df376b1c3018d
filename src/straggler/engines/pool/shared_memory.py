"""Memory shared with child processes that leaves nothing behind: a file without a name."""

import io
import mmap
import os
import tempfile
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

LARGE = 1 << 20  # bytes from which an array is shared instead of sent


class SharedMemory:
    """Bytes that a child started with `pass_fds=[memory.fd]` sees too; they go with the last process."""

    def __init__(self, size: int) -> None:
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create("straggler", 0)
        else:
            with tempfile.TemporaryFile() as nameless:
                self.fd = os.dup(nameless.fileno())
        os.ftruncate(self.fd, max(size, 1))
        self.bytes = mmap.mmap(self.fd, max(size, 1))

    def close(self) -> None:
        os.close(self.fd)  # the mapping lives as long as a tensor on it


def tensor_in(memory: mmap.mmap, offset: int, count: int, dtype: torch.dtype) -> Tensor:
    """A tensor on part of a mapping."""
    if count == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)


def attach(fd: int) -> mmap.mmap:
    return mmap.mmap(fd, os.fstat(fd).st_size)


def array_from(fd: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.frombuffer(attach(fd), dtype=dtype, count=int(np.prod(shape))).reshape(shape)


def tensor_from(array: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(array)


def memory_map(filename: str, dtype: str, shape: tuple[int, ...], offset: int) -> np.ndarray[Any, Any]:
    return np.memmap(filename, dtype=dtype, mode="r", shape=shape, offset=offset)


class _Packer(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Pickles for a child: memory-mapped files by name, large arrays by shared memory, the rest by value."""

    def __init__(self, file: io.BytesIO, shared: list[SharedMemory]) -> None:
        super().__init__(file)
        self.shared = shared

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, np.memmap) and isinstance(thing.base, mmap.mmap) and thing.flags.c_contiguous:
            return memory_map, (str(thing.filename), thing.dtype.str, thing.shape, thing.offset)
        if isinstance(thing, np.ndarray) and thing.nbytes >= LARGE and not thing.dtype.hasobject:
            return array_from, self._share(thing)
        if type(thing) is Tensor and thing.nbytes >= LARGE and thing.device.type == "cpu":
            return tensor_from, (thing.detach().numpy(),)
        return super().reducer_override(thing)

    def _share(self, array: np.ndarray[Any, Any]) -> tuple[int, str, tuple[int, ...]]:
        memory = SharedMemory(array.nbytes)
        np.frombuffer(memory.bytes, dtype=array.dtype).reshape(array.shape)[...] = array
        self.shared.append(memory)
        return memory.fd, array.dtype.str, array.shape


def pack(thing: object) -> tuple[bytes, list[SharedMemory]]:
    """An object as bytes for `pickle.loads` in a child that inherits the shared memory beside it."""
    file, shared = io.BytesIO(), []  # type: tuple[io.BytesIO, list[SharedMemory]]
    _Packer(file, shared).dump(thing)
    return file.getvalue(), shared
