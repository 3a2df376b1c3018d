"""Where a study's rows come from: settings, protocol, versions, machine, and the seeds that are complete."""

from collections.abc import Iterable, Sequence
from datetime import datetime

import polars as pl

from straggler.reproduction.claims import Protocol
from straggler.sweeps.grid import Cell, ThroughputCell

RECORDED = {
    "weights_sha256": "weights",
    "torch_version": "torch",
    "straggler_version": "Straggler",
    "python_version": "Python",
    "processor": "CPU",
}
NO_PROTOCOL = (
    "This study has no protocol.toml. Its bounds could change at any time, so its claims are exploratory."
)


def describe_protocol(protocol: Protocol, summaries: pl.DataFrame) -> str:
    """Return what was fixed when, and how many rows are of runs after that."""
    if protocol.start is None:
        return NO_PROTOCOL
    later, columns = 0, ("protocol_sha256", "started")
    if set(columns) <= set(summaries.columns):
        mine = summaries.filter(protocol_sha256=protocol.sha256)["started"].drop_nulls()
        later = sum(datetime.fromisoformat(started) > protocol.start for started in mine)
    text = (
        "`protocol.toml` fixes the bounds, statistics, families of tests, margins and numbers of seeds since "
        f"{protocol.frozen} (SHA-256 `{protocol.sha256}`). {later:,} of {len(summaries):,} rows are of runs "
        "that started later under this file."
    )
    return f"{text} {protocol.note}".strip()


def describe_rows(summaries: pl.DataFrame) -> str:
    """Return what is recorded of the software and the machine of the rows."""
    items = []
    for column, name in RECORDED.items():
        known = summaries[column] if column in summaries.columns else pl.Series([None] * len(summaries))
        if column == "weights_sha256":
            known = known.is_null().replace_strict({True: None, False: "recorded"}, return_dtype=pl.String)
        counts = sorted(known.value_counts().rows(), key=lambda row: (-row[1], str(row[0])))
        texts = [f"{'not recorded' if value is None else value} ({count:,} rows)" for value, count in counts]
        items.append(f"{name}: {', '.join(texts)}")
    return "; ".join(items) + "."


def count_outdated(summaries: pl.DataFrame, cells: Iterable[Cell]) -> int:
    """Count the rows of runs with other settings than the study has now."""
    labels = list(dict.fromkeys(label for cell in cells for label in cell.labels))
    if missing := [label for label in labels if label not in summaries.columns]:
        summaries = summaries.with_columns(pl.lit(None).alias(label) for label in missing)
    by = {tuple(cell.labels.get(label) for label in labels): cell for cell in cells}
    rows = summaries.select(*labels, "seed", "id").iter_rows()
    return sum(
        (cell := by.get(tuple(place))) is None or cell.experiment(seed).id != id for *place, seed, id in rows
    )


def format_outdated(outdated: int) -> str:
    many = "1 row is of a run" if outdated == 1 else f"{outdated} rows are of runs"
    return f"{many} with other settings than the study has now." if outdated else ""


def count_runs(cells: Iterable[Cell], runs: pl.DataFrame) -> str:
    """Return the number of trainings, and of runs that only count gradients, as text."""
    counting = [str(cell.labels["table"]) for cell in cells if isinstance(cell, ThroughputCell)]
    counts = runs.filter(pl.col("table").is_in(counting))["id"].n_unique()
    trained = runs["id"].n_unique() - counts
    return f"{trained:,} trainings" + (f", {counts:,} timing runs without gradients" if counts else "")


def describe_coverage(cells: Sequence[Cell], runs: pl.DataFrame) -> str:
    """Return how many seeds of each table are complete, as text.

    A cell that is limited to fewer seeds is not missing from the others.
    """
    wanted: dict[tuple[str, str], list[int | None]] = {}
    for cell in cells:
        wanted.setdefault((str(cell.labels["table"]), str(cell.labels["protocol"])), []).append(cell.seeds)
    counts = runs.group_by("table", "protocol", "seed").agg(
        pl.struct("row", "column").n_unique().alias("cells")
    )
    found: dict[tuple[str, str], str] = {}
    for part, limits in wanted.items():
        seeds = counts.filter(table=part[0], protocol=part[1]).select("seed", "cells").rows()
        needed = {seed: sum(limit is None or seed < limit for limit in limits) for seed, _ in seeds}
        complete = sum(count >= needed[seed] > 0 for seed, count in seeds)
        found[part] = f"{complete}{' (another begun)' if 0 < complete < len(seeds) else ''}"
    texts: dict[str, dict[str, None]] = {}
    for (table, protocol), text in found.items():
        is_common = len({other for part, other in found.items() if part[0] == table}) == 1
        texts.setdefault(text, {})[table if is_common else f"{table} {protocol}"] = None
    ordered = sorted(texts, key=lambda text: -int(text.split()[0]))
    listed = "; ".join(f"{text}: {', '.join(texts[text])}" for text in ordered)
    return f"Complete seeds per table: {listed}."
