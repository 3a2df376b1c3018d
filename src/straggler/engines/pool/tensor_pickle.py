"""An object as a few bytes and its arrays, so that whoever shares the arrays' memory need not copy them."""

import io
import pickle
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from straggler.engines.pool.shared_memory import LARGE, tensor_from

Bytes = NDArray[np.uint8]


class _Flattener(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Plain arrays stay outside of the pickle by themselves; mapped files and tensors are made plain."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, np.memmap):  # by value: another machine does not have the file
            return np.asarray(thing).view(np.ndarray).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if type(thing) is Tensor and thing.nbytes >= LARGE and thing.device.type == "cpu":
            return tensor_from, (thing.detach().numpy(),)
        return super().reducer_override(thing)


def flatten(thing: object) -> tuple[bytes, list[Bytes]]:
    """The pickle, and what it refers to."""
    file, outside = io.BytesIO(), []  # type: tuple[io.BytesIO, list[pickle.PickleBuffer]]
    _Flattener(file, pickle.HIGHEST_PROTOCOL, outside.append).dump(thing)
    return file.getvalue(), [np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in outside]


def restore(payload: bytes, arrays: list[Bytes]) -> Any:
    """The object again, its arrays on the given memory."""
    return pickle.loads(payload, buffers=arrays)
