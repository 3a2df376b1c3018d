"""Verification: run random rows of a study's summaries again, and compare all numbers."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from straggler.config.registry import InputError
from straggler.running.recorder import describe_processor
from straggler.sweeps.grid import Cell, PlannedRun
from straggler.sweeps.runner import Pool, SweepPlan
from straggler.sweeps.summaries import SummaryStore, read_summaries

# Facts that do not depend on how kernels round, as long as the run converges.
SCHEDULE = {"updates", "gradients", "dispatched", "applied", "dropped", "cancelled", "in_flight", "epochs"}
SCHEDULE |= {"mean_staleness", "max_staleness", "seconds", "speed"}
# Times of this machine, and facts about the row instead of the run.
NOT_COMPARED = {"train_seconds", "host_seconds", "started", "torch_version", "straggler_version", "id"}
NOT_COMPARED |= {"python_version", "processor", "protocol_sha256", "status", "error", "restarts", "source"}
NOT_COMPARED |= {"value", "weights_sha256"}
SHOWN = 3  # differences per row


@dataclass(frozen=True)
class Comparison:
    """A committed row against the same run now."""

    name: str
    compared: int
    differences: tuple[str, ...]
    weights: str  # "identical", "different" or "not recorded"
    made_on: str | None  # the kind of processor of the committed row, if it is recorded
    accepted: bool  # nothing differs but what another kind of processor may change

    @property
    def verdict(self) -> str:
        if not self.differences:
            return "identical"
        count = len(self.differences)
        kind, more = (
            "rounding: " if self.accepted else "",
            f" and {count - SHOWN} more" if count > SHOWN else "",
        )
        return f"{kind}{count} of {self.compared} differ: {', '.join(self.differences[:SHOWN])}{more}"


def choose_rows(
    cells: Sequence[Cell], summaries: pl.DataFrame, count: int, seed: int, max_seconds: float | None
) -> list[PlannedRun]:
    """Return random rows as runs: in virtual time, with the settings that the study has now."""
    labels = list(dict.fromkeys(label for cell in cells for label in cell.labels))
    by_place = {tuple(cell.labels.get(label) for label in labels): cell for cell in cells}
    rows = summaries.sort("id", *labels, "seed", nulls_last=True)
    seconds = pl.col("train_seconds").fill_null(0.0) if "train_seconds" in rows.columns else pl.lit(0.0)
    rows = rows.with_columns(train_seconds=seconds)
    if max_seconds is not None:
        rows = rows.filter(pl.col("train_seconds") <= max_seconds)
    places = rows.select(*labels, "train_seconds", "seed", "id").rows()
    random.Random(seed).shuffle(places)
    chosen: dict[str, PlannedRun] = {}
    for *place, took, number, id in places:
        cell = by_place.get(tuple(place))
        if id in chosen or cell is None:
            continue
        run = PlannedRun(cell.experiment(number), number, cell.measurements, [cell], seconds=took)
        if run.id == id and not run.is_real_time:
            chosen[id] = run
        if len(chosen) == count:
            break
    if not chosen:
        limit = "" if max_seconds is None else f" of at most {max_seconds:g} s"
        raise InputError(
            f"The summaries have no row{limit} in virtual time with the study's settings of now."
        )
    return list(chosen.values())


def plan_verification(name: str, runs: list[PlannedRun], pool: Pool, folder: Path) -> SweepPlan:
    """Return the plan that runs the rows which the folder does not have yet."""
    store = SummaryStore(folder)
    missing = [run for run in runs if not store.has(run)]
    return SweepPlan(name, missing, runs, sorted({run.seed for run in runs}), pool, store)


def compare_rows(
    runs: Iterable[PlannedRun], summaries: pl.DataFrame, folder: Path, allow_rounding: bool
) -> list[Comparison]:
    """Compare the rows of the folder with the committed ones."""
    again, found, here = read_summaries(folder), list[Comparison](), describe_processor()
    for run in runs:
        old, new = (find_row(table, run) for table in (summaries, again))
        columns = [
            name
            for name in old
            if name in new and name not in NOT_COMPARED and name not in run.cells[0].labels
        ]
        different = [name for name in columns if not are_equal(old[name], new[name])]
        digests = old.get("weights_sha256"), new.get("weights_sha256")
        weights = (
            "not recorded" if digests[0] is None else "identical" if digests[0] == digests[1] else "different"
        )
        made_on = old.get("processor")
        may_round = allow_rounding and made_on != here and old["converged"] == new["converged"]
        accepted = may_round and not SCHEDULE & set(different)
        texts = [f"{name} {format_fact(old[name])} → {format_fact(new[name])}" for name in different]
        texts += ["weights"] if weights == "different" else []
        found.append(
            Comparison(run.name, len(columns), tuple(texts), weights, made_on, accepted or not texts)
        )
    return found


def find_row(table: pl.DataFrame, run: PlannedRun) -> dict[str, Any]:
    """Return the row of a run's first cell."""
    labels = run.cells[0].labels
    place = [pl.col(label).eq_missing(value) for label, value in labels.items()]
    return table.filter(*place, pl.col("seed") == run.seed, pl.col("id") == run.id).row(0, named=True)


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two facts are equal to the last digit; NaN equals NaN."""
    both_nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    return both_nan or one == other


def format_fact(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value) if not isinstance(value, list) else "…"
