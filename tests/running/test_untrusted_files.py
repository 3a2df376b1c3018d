"""Files that a stranger may have made: regular, bounded, and behind no link."""

import gzip
import io
import os
import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from straggler.problems.downloads import formats
from straggler.problems.downloads.sources import DataError
from straggler.running.parquet_files import estimate_parquet_memory, read_parquet
from straggler.running.untrusted_files import (
    UnsafeFileError,
    decompress_gzip,
    list_regular_files,
    parse_toml,
    read_json,
    read_regular_bytes,
)


def test_only_regular_files_within_the_folder_are_read(tmp_path: Path) -> None:
    inner = tmp_path / "folder" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_text("content")
    (tmp_path / "secret").write_text("secret")
    os.mkfifo(inner / "pipe")
    (inner / "link").symlink_to("file")
    (tmp_path / "folder" / "elsewhere").symlink_to(tmp_path)
    folder = tmp_path / "folder"
    assert read_regular_bytes(inner / "file", 7, within=folder) == b"content"
    with pytest.raises(UnsafeFileError, match="limit of 6"):
        read_regular_bytes(inner / "file", 6)
    for path in (inner / "pipe", inner, inner / "link", folder / ".." / "secret", Path("/dev/zero")):
        with pytest.raises((UnsafeFileError, ValueError, IsADirectoryError)):
            read_regular_bytes(path, 100, within=folder)
    with pytest.raises(OSError):
        read_regular_bytes(folder / "elsewhere" / "secret", 100, within=folder)
    assert read_regular_bytes(inner / "link", 100, follow_links=True) == b"content"  # the user named it
    with pytest.raises(UnsafeFileError, match="regular"):
        read_regular_bytes("/dev/zero", 100, follow_links=True)
    assert list_regular_files(inner, "") == [inner / "file"]
    assert list_regular_files(folder / "elsewhere", "") == []


def test_descriptors_are_closed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        read_regular_bytes(tmp_path / "file", 10, within=tmp_path.parent)
        with pytest.raises(UnsafeFileError):
            read_regular_bytes(tmp_path / "link", 10)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 200 + "1" + "}" * 200, "[1e999]"])
def test_json_is_limited(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UnsafeFileError):
        read_json(tmp_path / "x.json")


def test_json_without_nan(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": NaN, "b": [Infinity, 1]}')
    assert read_json(tmp_path / "x.json") == {"a": None, "b": [None, 1]}


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 50_000, ".".join("a" * 300_000) + " = 1", "['a'.\"b\". c" + ".d" * 20 + "]", "a = inf"],
)
def test_toml_is_limited(text: str) -> None:
    with pytest.raises(UnsafeFileError):
        parse_toml(text)


def test_ordinary_toml_passes() -> None:
    text = 'a = "1.2.3.4.5.6.7.8"\nb = [1.5, 2.5]\n[c.d]\ne = 1\n' + "f = [" + "0.5, " * 1000 + "]"
    assert parse_toml(text)["c"] == {"d": {"e": 1, "f": [0.5] * 1000}}


def test_gzip_bombs_are_not_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(bytes(30_000_000))
    with pytest.raises(UnsafeFileError, match="more than"):
        decompress_gzip(bomb, 1_000_000)
    assert decompress_gzip(gzip.compress(b"abc"), 3) == b"abc"
    with pytest.raises(UnsafeFileError, match="truncated"):
        decompress_gzip(gzip.compress(b"abc")[:-1], 100)
    monkeypatch.setattr(formats, "MAX_DATA_BYTES", 1_000_000)
    (tmp_path / "x.gz").write_bytes(bomb)
    with pytest.raises(DataError, match="more than"):
        formats.decode_file(tmp_path / "x.gz", lambda content: np.frombuffer(content, np.uint8))


# Parquet.


def write_parquet(table: pl.DataFrame, **options: object) -> bytes:
    table.write_parquet(file := io.BytesIO(), **options)  # type: ignore[arg-type]
    return file.getvalue()


TABLE = pl.DataFrame(
    {
        "number": [1.5, None, 2.5],
        "text": ["a", None, "bcd"],
        "list": [[1], [], [2, 3]],
        "struct": [{"a": True}, {"a": False}, {"a": None}],
        "choice": pl.Series(["a", "b", "a"], dtype=pl.Enum(["a", "b"])),
    }
)


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "lz4", "brotli", "uncompressed"])
def test_tables_are_read_and_their_memory_is_known(compression: str, tmp_path: Path) -> None:
    for table in (TABLE, TABLE.clear(), pl.DataFrame(), pl.DataFrame({"a": [7] * 300_000})):
        content = write_parquet(table, compression=compression)
        assert table.estimated_size() <= estimate_parquet_memory(content) <= 500 + 5 * table.estimated_size()
        (tmp_path / "x.parquet").write_bytes(content)
        assert read_parquet(tmp_path / "x.parquet").equals(table)


def test_pages_count_and_not_the_claim_of_the_footer() -> None:
    """A footer may claim fewer rows than the pages have, and a decoder trusts the pages."""
    content = bytearray(write_parquet(pl.DataFrame({"a": [7] * 3_000_000}), row_group_size=3_000_000))
    assert len(content) < 20_000 and estimate_parquet_memory(bytes(content)) > 24_000_000
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    rows = bytes(content[footer:])
    claimed = b"\x80\x9b\xee\x02"  # 3,000,000 as a zigzag varint
    assert claimed in rows
    content[footer:] = rows.replace(claimed, b"\x82\x80\x80\x00")
    try:
        assert estimate_parquet_memory(bytes(content)) > 24_000_000
    except UnsafeFileError as error:  # or the file is refused, because claim and pages differ
        assert "column" in str(error) or "damaged" in str(error)


def test_damaged_tables_raise_an_ordinary_error(tmp_path: Path) -> None:
    """Polars panics at some of them, which is not an Exception."""
    content, file, generator = write_parquet(TABLE), tmp_path / "x.parquet", random.Random(1)
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(generator.choice([1, 2, 8])):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        if generator.random() < 0.1:
            del damaged[generator.randrange(len(damaged)) :]
        file.write_bytes(damaged)
        try:
            read_parquet(file)
        except (OSError, ValueError) as error:
            assert str(error)
