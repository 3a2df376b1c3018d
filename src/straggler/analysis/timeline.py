"""What every worker did when: the jobs of a record as intervals of compute, delay and waiting."""

import polars as pl

COLUMNS = ("worker", "launch", "started", "computed", "time", "staleness", "decision", "idle_from")
JUST = 1e-9  # seconds that are no waiting


def jobs(arrivals: pl.DataFrame) -> pl.DataFrame:
    """A row per job: when it began, when its delay did, when it ended; since when its worker was idle.

    A cancelled job's beginning is not in the record: it is when its worker was free and its model there; what
    it was on when it was stopped is not known. One that was dropped is not taken to pieces either.
    """
    there = pl.col("started").min().over("version")
    before = pl.col("time").shift(1).over("worker").fill_null(0.0)
    began = pl.coalesce("started", pl.max_horizontal(before, there.fill_null(0.0)))
    timed = arrivals.select(
        "worker",
        "time",
        "staleness",
        "delay",
        decision=pl.col("decision").cast(pl.String),
        launch=pl.int_range(pl.len()).over("worker"),
        started=pl.min_horizontal(began, "time"),
        before=before,
    )
    used = pl.col("decision").is_in(["applied", "held"])
    delayed = pl.max_horizontal("started", pl.col("time") - pl.col("delay").fill_null(0.0))
    waited = pl.col("started") - pl.col("before") > JUST
    return timed.with_columns(
        computed=pl.when(used).then(delayed).otherwise("time"),
        idle_from=pl.when(waited).then("before").otherwise(None),
    ).select(COLUMNS)
