"""Reading of Parquet files that a stranger may have made: their memory is known before they are decoded.

It is computed from the headers of all pages, because the footer is only the file's own claim.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from straggler.running.untrusted_files import MAX_TABLE_BYTES, UnsafeFileError, read_regular_bytes

MAGIC = b"PAR1"
MAX_PAGES, MAX_FIELDS = 200_000, 2_000_000
BYTES_PER_VALUE = {0: 1, 1: 4, 2: 8, 4: 4, 5: 8, 6: 16}  # by physical type; 6 is text, as a view
BOOLEAN_TRUE, BOOLEAN_FALSE, BYTE, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12


def read_parquet(path: Path | str, within: Path | None = None, follow_links: bool = False) -> pl.DataFrame:
    """Read a Parquet file; raise OSError or ValueError if it is damaged or needs too much memory."""
    content = read_regular_bytes(path, MAX_TABLE_BYTES, within, follow_links)
    needed, limit = estimate_parquet_memory(content), MAX_TABLE_BYTES
    if needed > limit:
        raise UnsafeFileError(
            f"it needs {needed / 1e9:.3g} GB of memory, and the limit is {limit / 1e9:.3g} GB"
        )
    try:
        table = pl.read_parquet(content)  # bytes: polars takes a path for a pattern or an address
    except (pl.exceptions.PolarsError, OSError, pl.exceptions.PanicException) as error:
        raise UnsafeFileError(str(error)) from None
    texts = table.select(pl.col(pl.String, pl.Binary).cast(pl.Binary).bin.size().sum())
    if sum(size or 0 for row in texts.iter_rows() for size in row) > limit:
        raise UnsafeFileError("its texts are too long")  # a text that repeats takes no room in the file
    return table


def estimate_table(path: Path, within: Path) -> int:
    """Return an upper bound of the bytes that a Parquet file takes in memory; 0 if it cannot be read."""
    try:
        return estimate_parquet_memory(read_regular_bytes(path, MAX_TABLE_BYTES, within))
    except (OSError, ValueError):
        return 0


def estimate_parquet_memory(content: bytes) -> int:
    """Return an upper bound of the bytes that the table takes when it is decoded."""
    length = int.from_bytes(content[-8:-4], "little")
    if content[:4] != MAGIC or content[-4:] != MAGIC or not 0 < length <= len(content) - 12:
        raise UnsafeFileError("it is not a complete Parquet file")
    try:
        footer = ThriftReader(content, len(content) - 8 - length).read_struct()
        columns = max(1, len(footer[2]) - 1)
        total: int = 8 * footer[3] * columns  # readers reserve memory for the rows that are claimed
        for group in footer.get(4, []):
            total = max(total, 8 * group[3] * columns)
        return total + sum(estimate_chunks(content, footer.get(4, [])))
    except (KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise UnsafeFileError(f"its metadata are damaged ({type(error).__name__})") from None


def estimate_chunks(content: bytes, groups: list[dict[int, Any]]) -> Iterator[int]:
    """Yield the bytes of each page of each column, decompressed and decoded."""
    pages = 0
    for chunk in (chunk for group in groups for chunk in group[1]):
        if 1 in chunk:
            raise UnsafeFileError("a column is in another file")
        column = chunk[3]
        if column[1] not in BYTES_PER_VALUE:
            raise UnsafeFileError(f"a column has the physical type {column[1]}, which no record has")
        start = column.get(11) or column[9]
        if not len(MAGIC) <= start <= column[9]:
            raise UnsafeFileError("a column has no valid place in the file")
        end, values = start + column[7], 0
        while start < end:
            reader = ThriftReader(content, start)
            header = reader.read_struct()
            inner = header.get(5) or header.get(7) or header.get(8) or {1: 0}
            if min(header[2], header[3], inner[1]) < 0 or (pages := pages + 1) > MAX_PAGES:
                raise UnsafeFileError("its pages are damaged")
            yield header[2] + inner[1] * BYTES_PER_VALUE[column[1]]
            values += 0 if 7 in header else inner[1]
            start = reader.place + header[3]
        if start != end or column[5] > values:
            raise UnsafeFileError("its pages do not fill their column")


class ThriftReader:
    """Reads values in Thrift's compact protocol, in which Parquet writes its metadata."""

    def __init__(self, content: bytes, place: int) -> None:
        self.content, self.place, self.fields = content, place, 0

    def read_struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the fields of a struct by their numbers."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self.read_byte():
            number = number + (head >> 4) if head >> 4 else self.read_integer()
            fields[number] = self.read_value(head & 15, depth)
        return fields

    def read_value(self, kind: int, depth: int, is_item: bool = False) -> Any:
        self.fields += 1
        if depth > 16 or self.fields > MAX_FIELDS:
            raise UnsafeFileError("its metadata are too large")
        if kind in (BOOLEAN_TRUE, BOOLEAN_FALSE):
            return self.read_byte() == BOOLEAN_TRUE if is_item else kind == BOOLEAN_TRUE
        if kind == BYTE:
            return self.read_byte()
        if kind == DOUBLE:
            return self.skip(8)
        if kind == BINARY:
            return self.skip(self.read_varint())
        if kind in (LIST, SET):
            head = self.read_byte()
            count = head >> 4 if head >> 4 != 15 else self.read_varint()
            return [self.read_value(head & 15, depth + 1, True) for _ in range(count)]
        if kind == MAP:
            count = self.read_varint()
            kinds = self.read_byte() if count else 0
            for _ in range(count):
                self.read_value(kinds >> 4, depth + 1, True)
                self.read_value(kinds & 15, depth + 1, True)
            return None
        if kind == STRUCT:
            return self.read_struct(depth + 1)
        if kind > STRUCT or kind == 0:
            raise UnsafeFileError(f"its metadata have a value of the unknown type {kind}")
        return self.read_integer()

    def read_byte(self) -> int:
        self.place += 1
        return self.content[self.place - 1]

    def read_varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.read_byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise UnsafeFileError("its metadata have a number of more than 64 bits")

    def read_integer(self) -> int:
        value = self.read_varint()
        return value >> 1 ^ -(value & 1)

    def skip(self, count: int) -> None:
        self.place += count
