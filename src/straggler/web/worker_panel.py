"""The workers of a run: utilisation, gradients, restarts and the last sign of life."""

from collections import Counter
from typing import Any

import polars as pl

from straggler.analysis.figures.timeline import split_jobs
from straggler.web.run_facts import RunFacts

MAX_WORKERS = 200
Row = dict[str, Any]


def describe_workers(run: RunFacts) -> list[Row]:
    """Return a row per worker: the share of time in which it computes, is delayed or waits, and its jobs.

    The time of a job that has not arrived yet counts as computing while the run is running.
    """
    jobs = split_jobs(run.jobs) if len(run.jobs) else run.jobs
    if jobs.is_empty():
        return []
    end = float(jobs["time"].max())  # type: ignore[arg-type]
    computing, late = pl.col("computed") - pl.col("started"), pl.col("time") - pl.col("computed")
    used = pl.col("decision").is_in(["applied", "held"])
    table = (
        jobs.group_by("worker")
        .agg(
            computing=computing.sum(),
            delayed=late.sum(),
            waiting=(pl.col("started") - pl.col("idle_from")).sum(),
            gradients=used.sum(),
            dropped=(pl.col("decision") == "dropped").sum(),
            cancelled=(pl.col("decision") == "cancelled").sum(),
            staleness=pl.col("staleness").filter(pl.col("decision") != "cancelled").mean(),
            last=pl.col("time").max(),
        )
        .sort("worker")
        .head(MAX_WORKERS)
    )
    events = [event for event in run.events if isinstance(event["worker"], int)]
    failures = Counter(event["worker"] for event in events)
    reasons = {event["worker"]: str(event["what"])[:200] for event in events}
    rows = []
    for row in [*table.to_dicts(), *list_silent_workers(run, set(table["worker"]))]:
        span = {key: row[key] / end if end > 0 else 0.0 for key in ("computing", "delayed", "waiting")}
        worker = row["worker"]
        shares = {key: round(100 * value, 2) for key, value in span.items()}
        quiet = None if row["last"] is None else end - row["last"]
        more = {"restarts": failures[worker], "reason": reasons.get(worker, ""), "quiet": quiet}
        rows.append(row | shares | more)
    return rows


def list_silent_workers(run: RunFacts, seen: set[int]) -> list[Row]:
    """Return rows of the workers that have not delivered anything."""
    count = run.settings.get("workers")
    expected = range(min(count, MAX_WORKERS)) if isinstance(count, int) else range(0)
    counts = dict.fromkeys(("computing", "delayed", "waiting", "gradients", "dropped", "cancelled"), 0)
    return [
        {"worker": worker, **counts, "staleness": None, "last": None}
        for worker in expected
        if worker not in seen
    ]
