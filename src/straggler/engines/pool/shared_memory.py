"""Memory that processes share, and pickles that leave large arrays out and refer to them."""

import io
import mmap
import os
import pickle
import tempfile
from typing import Any

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LARGE = 1 << 20  # bytes from which an array is shared instead of pickled
Bytes = NDArray[np.uint8]


class SharedMemory:
    """Memory that a child process maps by file descriptor. It has no name, so a crash leaves no file."""

    def __init__(self, size: int) -> None:
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create("straggler", 0)
        else:
            with tempfile.TemporaryFile() as file:
                self.fd = os.dup(file.fileno())
        os.ftruncate(self.fd, max(size, 1))
        self.bytes = mmap.mmap(self.fd, max(size, 1))

    def close(self) -> None:
        os.close(self.fd)  # the mapping stays valid while a tensor uses it


def map_tensor(memory: mmap.mmap, offset: int, count: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor that uses part of a mapping."""
    if count == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)


def map_file(fd: int) -> mmap.mmap:
    """Map a whole open file."""
    return mmap.mmap(fd, os.fstat(fd).st_size)


# The functions that the pickles of `pack_shared` and `pack_buffers` call.


def _map_array(fd: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.frombuffer(map_file(fd), dtype=dtype, count=int(np.prod(shape))).reshape(shape)


def _open_memory_map(filename: str, dtype: str, shape: tuple[int, ...], offset: int) -> NDArray[Any]:
    return np.memmap(filename, dtype=dtype, mode="r", shape=shape, offset=offset)


def _tensor_from_array(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array)


def _is_large_tensor(value: Any) -> bool:
    return type(value) is Tensor and value.nbytes >= LARGE and value.device.type == "cpu"


class _SharedPickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Pickle memory-mapped files by name, large arrays by shared memory, other values as usual."""

    def __init__(self, file: io.BytesIO, shared: list[SharedMemory]) -> None:
        super().__init__(file)
        self.shared = shared

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.memmap) and isinstance(value.base, mmap.mmap) and value.flags.c_contiguous:
            return _open_memory_map, (str(value.filename), value.dtype.str, value.shape, value.offset)
        if isinstance(value, np.ndarray) and value.nbytes >= LARGE and not value.dtype.hasobject:
            memory = SharedMemory(value.nbytes)
            np.frombuffer(memory.bytes, dtype=value.dtype).reshape(value.shape)[...] = value
            self.shared.append(memory)
            return _map_array, (memory.fd, value.dtype.str, value.shape)
        if _is_large_tensor(value):
            return _tensor_from_array, (value.detach().numpy(),)
        return super().reducer_override(value)


class _BufferPickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Pickle memory-mapped files and large tensors as plain arrays, which stay outside of the pickle."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.memmap):  # by value: another machine does not have the file
            return np.asarray(value).view(np.ndarray).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if _is_large_tensor(value):
            return _tensor_from_array, (value.detach().numpy(),)
        return super().reducer_override(value)


def pack_shared(value: object) -> list[SharedMemory]:
    """Return what a child process must inherit: the memory of a pickle, then that of its large arrays."""
    file, shared = io.BytesIO(), []  # type: tuple[io.BytesIO, list[SharedMemory]]
    _SharedPickler(file, shared).dump(value)
    pickled = SharedMemory(file.tell())
    pickled.bytes[: file.tell()] = file.getvalue()
    return [pickled, *shared]


def pack_buffers(value: object) -> tuple[bytes, list[Bytes]]:
    """Return a pickle and the arrays that it refers to, for a process that may be on another machine."""
    file, buffers = io.BytesIO(), []  # type: tuple[io.BytesIO, list[pickle.PickleBuffer]]
    _BufferPickler(file, pickle.HIGHEST_PROTOCOL, buffers.append).dump(value)
    return file.getvalue(), [np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in buffers]


def unpack_buffers(payload: bytes, arrays: list[Bytes]) -> Any:
    """Return the value that `pack_buffers` packed; its arrays use the memory of `arrays`."""
    return pickle.loads(payload, buffers=arrays)
