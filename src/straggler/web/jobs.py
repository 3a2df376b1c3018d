"""What every worker did when: the jobs of a record as intervals of compute, delay and waiting."""

import polars as pl

from straggler.delays import Durations

__all__ = ["COLUMNS", "intervals", "with_delays"]

COLUMNS = ("worker", "launch", "started", "computed", "time", "staleness", "decision", "idle_from")
JUST = 1e-9  # seconds that are no waiting


def intervals(arrivals: pl.DataFrame) -> pl.DataFrame:
    """A row per job: which of its worker's it is, when it began, and since when the worker was idle.

    A cancelled job's beginning is not in the record: it is when its worker was free and its model there.
    """
    there = pl.col("started").min().over("version")
    before = pl.col("time").shift(1).over("worker").fill_null(0.0)
    began = pl.coalesce("started", pl.max_horizontal(before, there.fill_null(0.0)))
    return arrivals.select(
        "worker",
        "time",
        "staleness",
        pl.col("decision").cast(pl.String),
        launch=pl.int_range(pl.len()).over("worker"),
        started=pl.min_horizontal(began, "time"),
        idle_from=before,
    )


def with_delays(jobs: pl.DataFrame, durations: Durations | None) -> pl.DataFrame:
    """When each job's compute ended and its delay began; without durations all of it is compute."""
    ends = []
    for worker, launch, started, time in jobs.select("worker", "launch", "started", "time").iter_rows():
        delay = durations.parts(worker, launch)[1] if durations else 0.0
        ends.append(max(started, time - delay))
    waited = pl.col("started") - pl.col("idle_from") > JUST
    computed = jobs.with_columns(
        computed=pl.Series(ends, dtype=pl.Float64),
        idle_from=pl.when(waited).then("idle_from").otherwise(None),
    )
    # a cancelled job was stopped somewhere on the way: what it was on is not known
    return computed.with_columns(
        computed=pl.when(pl.col("decision") == "cancelled").then("time").otherwise("computed")
    ).select(COLUMNS)
