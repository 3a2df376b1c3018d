"""Checkpoint files: one safetensors file with every tensor once, and the other values as JSON.

Reading a checkpoint executes no code: only registered state classes are constructed, from their fields.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from straggler.core import Arrival, Gradient, Job
from straggler.core.buffers import BufferAverage
from straggler.core.interfaces import as_dict
from straggler.core.server import Ledger, Server, ServerState
from straggler.record import RecordError
from straggler.running.atomic_files import replace_atomically

CHECKPOINTS_KEPT = 2  # one is left if the newest is damaged
StateClass = TypeVar("StateClass", bound=type)
STATE_CLASSES: dict[str, type] = {
    kind.__name__: kind for kind in (Job, Gradient, Ledger, ServerState, BufferAverage)
}


class CheckpointError(RuntimeError):
    """Raised if a checkpoint is damaged."""


def register_state(kind: StateClass) -> StateClass:
    """Allow a dataclass in checkpoints (a class decorator)."""
    STATE_CLASSES[kind.__name__] = kind
    return kind


def write_checkpoint(folder: Path, number: int, state: Any) -> Path:
    """Write a state, synced to disk, and delete the oldest checkpoints of the folder."""
    tensors: dict[int, tuple[int, Tensor]] = {}
    text = json.dumps(encode_value(state, tensors))
    arrays = {str(position): tensor.detach().numpy() for position, tensor in tensors.values()}
    path = folder / f"checkpoint-{number:09d}.safetensors"
    with replace_atomically(path, sync=True) as temporary:
        save_file(arrays, temporary, metadata={"state": text, "sha256": compute_checksum(text, arrays)})
    for old in list_checkpoints(folder)[:-CHECKPOINTS_KEPT]:
        old.unlink()
    return path


def read_checkpoint(path: Path) -> Any:
    """Return the state in a checkpoint file; raise CheckpointError if a byte of it has changed."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if compute_checksum(metadata["state"], arrays) != metadata["sha256"]:
            raise CheckpointError(f"{path} is damaged: its checksum differs")
    except (OSError, SafetensorError, KeyError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    tensors = {int(name): torch.from_numpy(array) for name, array in arrays.items()}
    try:
        return decode_value(json.loads(metadata["state"]), tensors)
    except (KeyError, TypeError) as error:  # a class or a field that this version does not have
        raise make_version_error(path, error) from error


def make_version_error(path: Path, error: Exception) -> RecordError:
    """Return the error for a checkpoint that this version cannot read."""
    return RecordError(
        f"{path} was written by another version of Straggler ({error!r}). "
        f"Resume with that version, or pass --force to start over."
    )


def read_newest_checkpoint(folder: Path, report: Callable[[str], None] = lambda line: None) -> Any | None:
    """Return the state of the newest intact checkpoint in a folder; None if there is none."""
    for path in reversed(list_checkpoints(folder)):
        try:
            return read_checkpoint(path)
        except CheckpointError as error:
            report(f"{error}; using the previous checkpoint.")
    return None


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint files of a folder, oldest first."""
    return sorted(folder.glob("checkpoint-*.safetensors"))


def compute_checksum(text: str, arrays: dict[str, np.ndarray[Any, Any]]) -> str:
    """Return the SHA-256 of the JSON text and all arrays."""
    sha = hashlib.sha256(text.encode())
    for name in sorted(arrays, key=int):
        sha.update(np.ascontiguousarray(arrays[name]).tobytes())
    return sha.hexdigest()


def encode_value(value: Any, tensors: dict[int, tuple[int, Tensor]]) -> Any:
    """Return a value as JSON, with references into `tensors`, to which every new tensor is added.

    Values that JSON does not have become objects with one key, the name of their type.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Tensor):
        position, _ = tensors.setdefault(id(value), (len(tensors), value))  # a shared tensor stays shared
        return {"tensor": position}
    if isinstance(value, list):
        return [encode_value(item, tensors) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [encode_value(item, tensors) for item in value]}
    if type(value) is dict:  # a subclass of dict would come back as a plain dict
        return {"dict": [[encode_value(k, tensors), encode_value(v, tensors)] for k, v in value.items()]}
    if isinstance(value, Arrival):
        value.keep()
        parts = (value.job, value.started, value.time, value.samples, value.gradient)
        return {"Arrival": encode_value(parts, tensors)}
    if type(value) in STATE_CLASSES.values():
        return {type(value).__name__: encode_value(as_dict(value), tensors)}
    raise TypeError(f"a checkpoint cannot store {type(value).__name__}")


def decode_value(value: Any, tensors: dict[int, Tensor]) -> Any:
    """Return the value that `encode_value` encoded."""
    if isinstance(value, list):
        return [decode_value(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "tensor":
        return tensors[inside]
    content = decode_value(inside if kind != "dict" else [item for pair in inside for item in pair], tensors)
    if kind == "tuple":
        return tuple(content)
    if kind == "dict":
        return dict(zip(content[::2], content[1::2], strict=True))
    if kind == "Arrival":
        job, started, time, samples, gradient = content
        return Arrival(job, started, time, samples, lambda job: gradient)
    return STATE_CLASSES[kind](**content)


def check_checkpointable(server: Server) -> None:
    """Raise ValueError if a custom component keeps state that a checkpoint cannot store."""
    for component in (server.policy, server.correction, server.optimizer):
        try:
            encode_value(component.state(), {})
        except TypeError as error:
            remedy = "Use numbers, texts, tensors, and lists, tuples and dicts of these."
            raise ValueError(f"{component}: {error}. {remedy}") from None
