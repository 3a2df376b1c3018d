"""Tables that users bring: CSV and Parquet files on this machine, read and checked the same way."""

import hashlib
from pathlib import Path

import polars as pl

from straggler.running.parquet_files import read_parquet
from straggler.running.untrusted_files import read_regular_bytes

MAX_TRACE_BYTES = 1 << 30


def read_table(owner: object, file: str, columns: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    """Return these columns of a file, in these types, with a worker number in every row.

    `owner` is the catalogue entry that names the file; error messages begin with it.
    """
    if "://" in file:
        raise ValueError(f"{owner}: the file must be on this machine, not at an address. Download it first.")
    suffix = Path(file).suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise ValueError(f"{owner}: the file is neither .csv nor .parquet. Convert it to one of them.")
    try:
        table = read_csv(file) if suffix == ".csv" else read_parquet(file, follow_links=True)
        table = table.select("worker", *(pl.col(name).cast(kind) for name, kind in columns.items()))
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        *first, last = ("worker", *columns)
        numeric = "numeric " if set(columns.values()) == {pl.Float64} else ""
        needed = f"It needs the {numeric}columns {', '.join(first)} and {last}."
        raise ValueError(f"{owner}: {str(error).splitlines()[0]}. {needed}") from None
    if not table["worker"].dtype.is_integer() or table["worker"].null_count():
        raise ValueError(f"{owner}: the column worker must contain whole numbers from 0 in every row.")
    return table


def read_csv(file: str) -> pl.DataFrame:
    """Read a CSV file from its content: polars takes a path for a pattern or an address."""
    return pl.read_csv(read_regular_bytes(file, MAX_TRACE_BYTES, follow_links=True))


def check_column(owner: object, table: pl.DataFrame, name: str, good: pl.Expr, rule: str) -> None:
    """Raise ValueError with the first row whose value is not good."""
    bad = table.with_row_index("row").filter(~good.fill_null(False))
    if bad.height:
        raise ValueError(f"{owner}: row {bad['row'][0] + 1} has {name}={bad[name][0]}, which must be {rule}.")


def hash_file(file: str) -> str:
    """Return the SHA-256 of a file, so that an id changes with its content."""
    return hashlib.sha256(read_regular_bytes(file, MAX_TRACE_BYTES, follow_links=True)).hexdigest()
