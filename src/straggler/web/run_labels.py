"""What users say about runs: names, tags, notes and the archive; and the deletion of runs."""

import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from filelock import FileLock, Timeout
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from straggler.config.registry import InputError, explain_validation_error
from straggler.record import LOCK_FILE, RecordError, find_locked_inodes, is_being_written
from straggler.running.atomic_files import write_json_atomically
from straggler.running.untrusted_files import is_regular_file, read_json

LABEL_FILE = ".labels"  # no suffix of a record: `run --force` keeps it
MAX_LABEL_BYTES = 100_000
MAX_TAGS = 20


def check_printable(text: str) -> str:
    """Refuse control characters, except for new lines and tabs."""
    if any(not letter.isprintable() and letter not in "\n\t" for letter in text):
        raise ValueError("control characters are not allowed. Remove them.")
    return text


def check_tag(text: str) -> str:
    """Refuse spaces and commas, which separate tags."""
    if any(letter.isspace() or letter == "," for letter in text):
        raise ValueError(f"tag {text[:40]!r} has a space or comma. Use a dash instead.")
    return text


def sort_tags(tags: list[str]) -> list[str]:
    return sorted(set(tags))


Printable = AfterValidator(check_printable)
Name = Annotated[str, StringConstraints(strip_whitespace=True, max_length=120), Printable]
Notes = Annotated[str, StringConstraints(strip_whitespace=True, max_length=4000), Printable]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=40), Printable, AfterValidator(check_tag)]
Tags = Annotated[list[Tag], Field(max_length=MAX_TAGS), AfterValidator(sort_tags)]


class RunLabels(BaseModel):
    """The labels of one run."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name = ""
    tags: Tags = []
    notes: Notes = ""
    archived: bool = False


class LabelChanges(BaseModel):
    """Changes of the labels of one or several runs; None leaves a label as it is."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: list[str] = Field(min_length=1, max_length=1000)
    name: Name | None = None
    notes: Notes | None = None
    archived: bool | None = None
    add_tags: Tags = []
    remove_tags: Tags = []


def read_labels(folder: Path) -> RunLabels:
    """Return the labels of a run; none if the file is missing or invalid."""
    if not is_regular_file(folder / LABEL_FILE):
        return RunLabels()
    try:
        return RunLabels.model_validate(read_json(folder / LABEL_FILE, MAX_LABEL_BYTES, within=folder))
    except (OSError, ValueError):
        return RunLabels()


def parse_label_changes(values: Any) -> LabelChanges:
    """Check the changes that a page sent."""
    try:
        return LabelChanges.model_validate(values)
    except ValidationError as error:
        raise InputError(explain_validation_error(error, LabelChanges.model_fields)) from None


def change_labels(folders: Sequence[Path], changes: LabelChanges) -> None:
    """Write the labels of some runs; either all changes are valid, or nothing is written."""
    new = {folder: apply_changes(read_labels(folder), changes, folder) for folder in folders}
    for folder, labels in new.items():
        if labels == RunLabels():
            (folder / LABEL_FILE).unlink(missing_ok=True)
        else:
            write_json_atomically(folder / LABEL_FILE, labels.model_dump(exclude_defaults=True))


def apply_changes(labels: RunLabels, changes: LabelChanges, folder: Path) -> RunLabels:
    tags = sort_tags([tag for tag in [*labels.tags, *changes.add_tags] if tag not in changes.remove_tags])
    if len(tags) > MAX_TAGS:
        raise InputError(f"{folder.name} would have {len(tags)} tags; the limit is {MAX_TAGS}. Remove some.")
    given = changes.model_dump(include={"name", "notes", "archived"}, exclude_none=True)
    return labels.model_copy(update={"tags": tags, **given})


def delete_runs(folders: Sequence[Path]) -> None:
    """Delete the folders of runs, unless one of them is being written: then nothing is deleted."""
    locks = [lock_idle_run(folder) for folder in folders]
    try:
        if any(lock is None for lock in locks):
            busy = folders[locks.index(None)].name
            raise InputError(f"{busy} is running. Stop it before you delete it. Nothing was deleted.")
        for folder in folders:
            delete_folder(folder)
    finally:
        for lock in locks:
            if lock is not None:
                lock.release()


def lock_idle_run(folder: Path) -> FileLock | None:
    """Lock a run's folder; return None if a process writes it."""
    if not is_regular_file(folder / "experiment.toml"):
        raise RecordError(f"{folder.name} is not a run: experiment.toml is missing. Nothing was deleted.")
    lock_file = folder / LOCK_FILE
    if lock_file.is_symlink() or is_being_written(folder, "summary.json", find_locked_inodes()):
        return None
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def delete_folder(folder: Path) -> None:
    """Rename a folder, so that no process finds it half deleted, then delete it; links are not followed."""
    doomed = folder.with_name(f".deleted-{folder.name}-{uuid.uuid4().hex[:8]}")
    folder.rename(doomed)
    shutil.rmtree(doomed)
