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

from straggler.core import Arrival, Job, Message
from straggler.core.buffers import BufferAverage
from straggler.core.devices import CPU
from straggler.core.interfaces import as_dict
from straggler.core.server import Ledger, Server, ServerState
from straggler.record import RecordError
from straggler.running.atomic_files import replace_atomically
from straggler.running.untrusted_files import is_regular_file

FORMAT = "2"  # of checkpoint files; older ones have no number
CHECKPOINTS_KEPT = 2  # one is left if the newest is damaged
StateClass = TypeVar("StateClass", bound=type)
STATE_CLASSES: dict[str, type] = {
    kind.__name__: kind for kind in (Job, Message, Ledger, ServerState, BufferAverage)
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
    arrays = {str(position): tensor.detach().cpu().numpy() for position, tensor in tensors.values()}
    path = folder / f"checkpoint-{number:09d}.safetensors"
    with replace_atomically(path, sync=True) as temporary:
        checksum = compute_checksum(text, arrays)
        save_file(arrays, temporary, metadata={"state": text, "sha256": checksum, "format": FORMAT})
    for old in list_checkpoints(folder)[:-CHECKPOINTS_KEPT]:
        old.unlink()
    return path


def read_checkpoint(path: Path, device: torch.device = CPU) -> Any:
    """Return the state in a checkpoint file; raise CheckpointError if a byte of it has changed.

    Its tensors are on the device, except single numbers: torch's optimizers count their steps on the CPU.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if "state" in metadata and metadata.get("format") != FORMAT:
                raise make_version_error(path, f"checkpoint format {metadata.get('format', '1')}")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if compute_checksum(metadata["state"], arrays) != metadata["sha256"]:
            raise CheckpointError(f"{path} is damaged: its checksum differs")
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    loaded = {int(name): torch.from_numpy(array) for name, array in arrays.items()}
    tensors = {number: tensor.to(device) if tensor.dim() else tensor for number, tensor in loaded.items()}
    try:
        return decode_value(json.loads(metadata["state"]), tensors)
    except (KeyError, TypeError) as error:  # a class or a field that this version does not have
        raise make_version_error(path, repr(error)) from error


def make_version_error(path: Path, reason: str) -> RecordError:
    """Return the error for a checkpoint that this version cannot read."""
    return RecordError(
        f"{path} was written by another version of Straggler ({reason}). "
        f"Resume with that version, or pass --force to start over."
    )


def read_newest_checkpoint(
    folder: Path, report: Callable[[str], None] = lambda line: None, device: torch.device = CPU
) -> Any | None:
    """Return the state of the newest intact checkpoint in a folder; None if there is none."""
    for path in reversed(list_checkpoints(folder)):
        try:
            return read_checkpoint(path, device)
        except CheckpointError as error:
            report(f"{error}; using the previous checkpoint.")
    return None


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint files of a folder, oldest first."""
    return sorted(filter(is_regular_file, folder.glob("checkpoint-*.safetensors")))


def compute_checksum(text: str, arrays: dict[str, np.ndarray[Any, Any]]) -> str:
    """Return the SHA-256 of the JSON text and all arrays, with their names, types and shapes."""
    sha = hashlib.sha256(text.encode())
    for name in sorted(arrays, key=int):
        sha.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
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
        parts = (value.job, value.started, value.time, value.samples, value.message)
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
    for component in (server.policy, server.correction, server.aggregation, server.optimizer):
        try:
            encode_value(component.state(), {})
        except TypeError as error:
            remedy = "Use numbers, texts, tensors, and lists, tuples and dicts of these."
            raise ValueError(f"{component}: {error}. {remedy}") from None
