"""Atomic file writes: a reader sees the old file or the complete new one, never a part of it."""

import json
import math
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def replace_atomically(path: Path, sync: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and rename it to `path` if the block succeeds.

    With `sync`, the content is on disk before the rename, so that it survives a power failure.
    """
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)  # safetensors creates files that only their owner can read
        if sync:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text file in UTF-8."""
    with replace_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json_atomically(path: Path, value: Any) -> None:
    """Write a value as JSON. NaN and infinity, which JSON does not have, become null."""
    write_text_atomically(path, json.dumps(replace_nan_with_none(value), indent=1, allow_nan=False))


def write_parquet_atomically(path: Path, table: pl.DataFrame, sync: bool = False) -> None:
    """Write a table as Parquet."""
    with replace_atomically(path, sync) as temporary:
        table.write_parquet(temporary)


def write_tensors_atomically(path: Path, tensors: Mapping[str, "Tensor"]) -> None:
    """Write named tensors as safetensors."""
    from safetensors.torch import save_file  # imports torch, which readers of records do not need

    with replace_atomically(path) as temporary:
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, temporary)


def replace_nan_with_none(value: Any) -> Any:
    """Return a copy of nested dictionaries and lists with None for every NaN and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): replace_nan_with_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nan_with_none(item) for item in value]
    return value
