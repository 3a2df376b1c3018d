"""Reading of files that a stranger may have made: regular files of limited size and depth, behind no link."""

import errno
import json
import os
import re
import stat
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MAX_JSON_BYTES, MAX_TOML_BYTES = 8 << 20, 1 << 20
MAX_TABLE_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4  # in memory
MAX_DEPTH = 64  # of lists and tables in each other
MAX_NUMBER = 2**1000
# More parts of one key than any file of ours has. The time that tomllib needs grows with the square of them.
LONG_KEY = re.compile(r"""(?:(?:(?<![\w-])[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){16}""")
FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # O_NONBLOCK: to open a FIFO would wait for a writer


class UnsafeFileError(ValueError):
    """Raised for a file that is not regular, too large, or too deeply nested."""


@contextmanager
def open_regular(
    path: Path | str, limit: int, within: Path | None = None, follow_links: bool = False
) -> Iterator[tuple[int, int]]:
    """Open a regular file of at most `limit` bytes; yield its descriptor and its size.

    No folder between `within` (by default the file's own folder) and the file may be a link. With
    `follow_links`, the path is one that the user named, and may contain links.
    """
    path = Path(path)
    if follow_links:
        descriptor = os.open(path, FLAGS)
    else:
        folder = path.parent if within is None else within
        descriptor = open_below(folder, path.relative_to(folder))
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise UnsafeFileError("it is not a regular file")
        if status.st_size > limit:
            raise UnsafeFileError(f"it has {status.st_size:,} bytes, more than the limit of {limit:,}")
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)


def open_below(folder: Path, relative: Path) -> int:
    """Open a file below a folder without following links, and without leaving the folder."""
    *folders, name = relative.parts
    if ".." in relative.parts:
        raise UnsafeFileError("it is outside its folder")
    parent = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        for each in folders:
            child = os.open(each, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            os.close(parent)
            parent = child
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise UnsafeFileError("it is a link")
        return os.open(name, FLAGS | os.O_NOFOLLOW, dir_fd=parent)
    finally:
        os.close(parent)


def read_regular_bytes(
    path: Path | str, limit: int, within: Path | None = None, follow_links: bool = False
) -> bytes:
    """Return the content of a regular file of at most `limit` bytes."""
    with (
        open_regular(path, limit, within, follow_links) as (descriptor, size),
        open(descriptor, "rb", closefd=False) as file,
    ):
        content = file.read(size + 1)  # a file may grow, but not beyond what was checked
    return content[:size]


def is_regular_file(path: Path) -> bool:
    """Return whether a path is a regular file and not a link."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def list_regular_files(folder: Path, suffix: str) -> list[Path]:
    """Return the regular files with this suffix, sorted; none if the folder is missing or a link."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        found = [e.path for e in entries if e.name.endswith(suffix) and e.is_file(follow_symlinks=False)]
    return sorted(map(Path, found))


def read_json(path: Path, limit: int = MAX_JSON_BYTES, within: Path | None = None) -> Any:
    """Return the value in a JSON file."""
    try:
        value = json.loads(read_regular_bytes(path, limit, within), parse_constant=lambda name: None)
    except RecursionError:
        raise UnsafeFileError(f"it is nested more than {MAX_DEPTH} levels deep") from None
    check_value(value)
    return value


def read_toml(path: Path | str) -> dict[str, Any]:
    """Return the tables in a TOML file that the user named."""
    return parse_toml(read_regular_bytes(path, MAX_TOML_BYTES, follow_links=True).decode())


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text."""
    if len(text) > MAX_TOML_BYTES:
        raise UnsafeFileError(f"it has {len(text):,} letters, more than the limit of {MAX_TOML_BYTES:,}")
    if LONG_KEY.search(text):
        raise UnsafeFileError("a key has more than 16 parts")
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise UnsafeFileError(f"it is nested more than {MAX_DEPTH} levels deep") from None
    check_value(tables)
    return tables


def check_value(value: Any) -> None:
    """Raise if a value is nested too deeply, or contains a number that no field has room for."""
    level = [value]
    for _ in range(MAX_DEPTH):
        if any(isinstance(each, int | float) and not abs(each) <= MAX_NUMBER for each in level):
            raise UnsafeFileError("a number is too large, or not finite")
        groups = (each.values() if isinstance(each, dict) else each for each in level
                  if isinstance(each, dict | list))  # fmt: skip
        level = [item for group in groups for item in group]
        if not level:
            return
    raise UnsafeFileError(f"it is nested more than {MAX_DEPTH} levels deep")


def decompress_gzip(content: bytes, limit: int) -> bytes:
    """Return what a gzip file of one member contains; raise if that is more than `limit` bytes."""
    decoder = zlib.decompressobj(wbits=31)
    found = decoder.decompress(content, limit + 1)
    if len(found) > limit:
        raise UnsafeFileError(f"it decompresses to more than {limit:,} bytes")
    if not decoder.eof or decoder.unused_data.strip(b"\0"):
        raise UnsafeFileError("it is truncated, or something follows the compressed data")
    return found
