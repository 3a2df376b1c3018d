"""Checkpoints: one safetensors file with every tensor once, and the rest as JSON in its header."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from straggler.core import Arrival, Gradient, Job
from straggler.core.buffers import BufferAverage
from straggler.core.server import Ledger, ServerState

KEPT = 2  # so that one is left if the last is damaged
OBJECTS: dict[str, type] = {
    kind.__name__: kind for kind in (Job, Gradient, Ledger, ServerState, BufferAverage)
}


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be trusted."""


def save(folder: Path, number: int, state: Any) -> Path:
    """Write a state so that it is whole or absent; the oldest go."""
    tensors: dict[int, tuple[int, Tensor]] = {}
    text = json.dumps(encode(state, tensors))
    arrays = {str(position): tensor.detach().numpy() for position, tensor in tensors.values()}
    path, temporary = folder / f"checkpoint-{number:09d}.safetensors", folder / "checkpoint.tmp"
    save_file(arrays, temporary, metadata={"state": text, "sha256": digest(text, arrays)})
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    for old in checkpoints(folder)[:-KEPT]:
        old.unlink()
    return path


def load(path: Path) -> Any:
    """The state in a file, if every byte of it is as it was written."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if digest(metadata["state"], arrays) != metadata["sha256"]:
            raise CheckpointError(f"{path} is damaged: its checksum differs")
    except (OSError, SafetensorError, KeyError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    tensors = {int(name): torch.from_numpy(array) for name, array in arrays.items()}
    return decode(json.loads(metadata["state"]), tensors)


def newest(folder: Path, report: Callable[[str], None] = lambda line: None) -> Any | None:
    """The state of the latest checkpoint that is good."""
    for path in reversed(checkpoints(folder)):
        try:
            return load(path)
        except CheckpointError as error:
            report(f"{error}; the one before it is used")
    return None


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*.safetensors"))


def digest(text: str, arrays: dict[str, np.ndarray[Any, Any]]) -> str:
    sha = hashlib.sha256(text.encode())
    for name in sorted(arrays, key=int):
        sha.update(np.ascontiguousarray(arrays[name]).tobytes())
    return sha.hexdigest()


def encode(value: Any, tensors: dict[int, tuple[int, Tensor]]) -> Any:
    """A value as JSON; what JSON does not have is a one-key object, tensors are numbers of their own."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Tensor):
        position, _ = tensors.setdefault(id(value), (len(tensors), value))  # shared ones stay shared
        return {"tensor": position}
    if isinstance(value, list):
        return [encode(item, tensors) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(item, tensors) for item in value]}
    if type(value) is dict:  # another kind would come back as a plain one
        return {"dict": [[encode(k, tensors), encode(v, tensors)] for k, v in value.items()]}
    if isinstance(value, Arrival):
        value.keep()
        parts = (value.job, value.started, value.time, value.samples, value.gradient)
        return {"Arrival": encode(parts, tensors)}
    if type(value) in OBJECTS.values():
        return {type(value).__name__: encode(attributes(value), tensors)}
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__}")


def decode(value: Any, tensors: dict[int, Tensor]) -> Any:
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "tensor":
        return tensors[inside]
    content = decode(inside if kind != "dict" else [item for pair in inside for item in pair], tensors)
    if kind == "tuple":
        return tuple(content)
    if kind == "dict":
        return dict(zip(content[::2], content[1::2], strict=True))
    if kind == "Arrival":
        job, started, time, samples, gradient = content
        return Arrival(job, started, time, samples, lambda job: gradient)
    return rebuilt(OBJECTS[kind], content)


def attributes(value: Any) -> dict[str, Any]:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return dict(vars(value))


def rebuilt(kind: type, content: dict[str, Any]) -> Any:
    thing: Any = object.__new__(kind)
    for name, item in content.items():
        object.__setattr__(thing, name, item)  # frozen ones included
    return thing
