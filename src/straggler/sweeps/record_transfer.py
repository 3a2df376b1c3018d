"""A finished record on its way from one machine to another: its files by name, as bytes."""

import json
import shutil
from pathlib import Path

from straggler.record import Record
from straggler.running.atomic_files import write_text_atomically

Parcel = dict[str, bytes]


def pack(folder: Path) -> Parcel:
    """Everything in a record's folder but its lock."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != ".lock"}


def unpack(parcel: Parcel, folder: Path) -> Record:
    """The record here, whole or not at all; what an interrupted run left in its place goes."""
    arriving = folder.with_name(f".{folder.name}.arriving")
    shutil.rmtree(arriving, ignore_errors=True)
    arriving.mkdir(parents=True)
    for name, content in parcel.items():
        (arriving / Path(name).name).write_bytes(content)
    summary = Record(arriving).summary | {"record": str(folder)}
    write_text_atomically(arriving / "summary.json", json.dumps(summary, indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    arriving.rename(folder)
    return Record(folder)
