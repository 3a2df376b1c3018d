"""The loss around the paths of runs: on the plane of their two principal components, point by point."""

import hashlib
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from straggler.config.registry import InputError
from straggler.config.settings import PIECES
from straggler.core import Problem
from straggler.core.randomness import addressed_rng
from straggler.engines.pool.gradient_pool import on_cores
from straggler.experiment import Experiment
from straggler.problems.examples import ExampleSubset
from straggler.problems.supervised import SupervisedProblem, use_one_thread
from straggler.record import Record, RecordError, read_table
from straggler.running.atomic_files import write_parquet_atomically

SAVE_SECONDS = 10.0  # what an interrupted grid may lose
KEPT = re.compile(r"[0-9a-f]{16}-(\d{1,3})-(\d+|all)-(\d+\.\d+)")  # key, grid, samples, margin
TRAINING = (*PIECES, "partition", "compute", "delay")  # how a path came about, which no loss depends on
Vectors = NDArray[np.float64]
Model = tuple[Tensor, Tensor]  # weights and buffers


@dataclass(frozen=True)
class Plane:
    """Where the paths lie, nearly: their mean and two orthogonal directions."""

    middle: Vectors
    directions: Vectors  # two rows
    explained: tuple[float, float]  # shares of the variance

    @classmethod
    def through(cls, snapshots: Vectors) -> "Plane":
        """The plane that explains most of the variance of these weights, a row each."""
        # scikit-learn takes a second to import, so only who uses it waits
        from sklearn.decomposition import PCA

        found = PCA(n_components=2, svd_solver="full").fit(snapshots)
        first, second = map(float, np.nan_to_num(found.explained_variance_ratio_))
        return cls(found.mean_, found.components_, (first, second))

    def project(self, weights: Vectors) -> Vectors:
        shadow: Vectors = (weights - self.middle) @ self.directions.T
        return shadow

    def at(self, a: float, b: float) -> Vectors:
        """The weights at a point of the plane."""
        point: Vectors = self.middle + a * self.directions[0] + b * self.directions[1]
        return point


@dataclass(frozen=True)
class Landscape:
    """Losses of a grid, of every run's snapshots, and of where these are seen on the plane."""

    points: pl.DataFrame  # kind (grid, path or shadow), run, updates, seconds, a, b, loss
    plane: Plane
    samples: int | None  # of the test set, if it is a part of it


@dataclass(frozen=True)
class Track:
    """The finite snapshots of a run."""

    weights: Vectors
    buffers: Tensor
    updates: list[int]
    seconds: list[float]


def compute_landscape(
    records: Mapping[str, Record],
    grid: int = 25,
    samples: int | None = None,
    margin: float = 0.2,
    jobs: int | None = None,
    data: Path | None = None,
    report: Callable[[str], None] = lambda line: None,
    progress: Callable[[float, str], None] = lambda done, what: None,
) -> Landscape:
    """Evaluate the plane through the snapshots of runs, or read what an earlier call evaluated."""
    sorted_records = by_content(records)
    runs = list(sorted_records.values())
    experiment = same_problem(runs)
    plane, tracks = plane_of(runs, report)
    points = layout(plane, tracks, grid, margin)
    kept = folder_of(runs) / f"{key(runs)}-{grid}-{samples or 'all'}-{margin}.parquet"
    if kept.is_file():
        points = read_points(kept, points)
        report(f"goes on from {kept}" if points["loss"].is_null().any() else f"read from {kept}")
    if points["loss"].is_null().any():
        problem = part_of(experiment.problem(data, report), samples, experiment.seed)
        points = evaluate(problem, plane, tracks, points, kept, jobs or os.cpu_count() or 1, report, progress)
    return Landscape(with_names(points, list(sorted_records), list(records)), plane, samples)


def find_landscape(records: Mapping[str, Record], report: Callable[[str], None]) -> Landscape | None:
    """The latest landscape of just these runs that was kept whole; files that cannot be read are reported."""
    sorted_records = by_content(records)
    runs = list(sorted_records.values())
    files = folder_of(runs).glob(f"{key(runs)}-*.parquet")
    kept = [(file, asked) for file in files if (asked := KEPT.fullmatch(file.stem))]
    if not kept:
        return None
    plane, tracks = plane_of(runs, report)
    for file, asked in sorted(kept, key=lambda one: one[0].stat().st_mtime, reverse=True):
        grid, samples, margin = asked.groups()
        try:
            points = read_points(file, layout(plane, tracks, int(grid), float(margin)))
        except RecordError as error:
            report(str(error))
            continue
        if not points["loss"].is_null().any():
            points = with_names(points, list(sorted_records), list(records))
            return Landscape(points, plane, None if samples == "all" else int(samples))
    return None


def plane_of(runs: Sequence[Record], report: Callable[[str], None]) -> tuple[Plane, list[Track]]:
    tracks = [track_of(record, report) for record in runs]
    return Plane.through(np.concatenate([track.weights for track in tracks])), tracks


def read_points(kept: Path, expected: pl.DataFrame) -> pl.DataFrame:
    """The points of a file, if they are those that are expected."""
    points = read_table(kept)
    places = ["kind", "run", "updates"]
    if points.schema != expected.schema or not points.select(places).equals(expected.select(places)):
        raise RecordError(f"{kept} is not the landscape its name says; remove it and compute it again")
    return points


def with_names(points: pl.DataFrame, kept: Sequence[str], wanted: Sequence[str]) -> pl.DataFrame:
    """Runs by name instead of number, in the order that is wanted; the grid comes last."""
    names = pl.col("run").replace_strict(dict(enumerate(kept)), return_dtype=pl.String)
    position = pl.col("run").replace_strict(
        {name: wanted.index(name) for name in kept}, return_dtype=pl.Int64
    )
    return points.with_columns(run=names).sort(position, nulls_last=True, maintain_order=True)


def same_problem(runs: Sequence[Record]) -> Experiment:
    """The first run's experiment, if all have its data and model."""
    first, *others = [record.settings for record in runs]
    for record, other in zip(runs[1:], others, strict=True):
        for setting in ("dataset", "model"):
            if other[setting] != first[setting]:
                raise InputError(
                    f"{record.path} has {setting}={other[setting]}, but {runs[0].path} has {first[setting]}; "
                    f"a landscape is of one: leave one out"
                )
    return Experiment.recorded(runs[0], but=TRAINING)


def track_of(record: Record, report: Callable[[str], None]) -> Track:
    kept = record.snapshots()
    weights = kept["weights"].double().numpy()
    good = np.isfinite(weights).all(axis=1)
    if not good.all():
        report(f"{record.path}: {np.sum(~good)} snapshots that are not finite are left out")
    if len(weights[good]) < 2 or weights.shape[1] < 2:
        raise InputError(f"{record.path}: a plane needs two finite snapshots of two weights; leave it out")
    chosen = np.flatnonzero(good).tolist()
    updates, seconds = kept["updates"].tolist(), kept["seconds"].tolist()
    return Track(
        weights[good], kept["buffers"][chosen], [updates[i] for i in chosen], [seconds[i] for i in chosen]
    )


def by_content(records: Mapping[str, Record]) -> dict[str, Record]:
    """Runs in an order of their own: in whatever order they are given, they have one landscape."""
    return dict(sorted(records.items(), key=lambda named: digest(named[1])))


def digest(run: Record) -> str:
    """What tells a path from another: the snapshots themselves, and the settings."""
    snapshots = run.path / "snapshots.safetensors"
    if not snapshots.is_file():
        raise InputError(f"{run.path} kept no snapshots; run it again with --snapshots 20")
    return hashlib.sha256(snapshots.read_bytes() + run.text.encode()).hexdigest()


def key(runs: Sequence[Record]) -> str:
    """The beginning of the names of these runs' landscapes; where they are evaluated follows it."""
    return hashlib.sha256("".join(map(digest, runs)).encode()).hexdigest()[:16]


def folder_of(runs: Sequence[Record]) -> Path:
    return runs[0].path.parent / "landscapes"


def layout(plane: Plane, tracks: Sequence[Track], grid: int, margin: float) -> pl.DataFrame:
    """All points to evaluate, without their losses."""
    rows: list[tuple[Any, ...]] = []
    shadows = [plane.project(track.weights) for track in tracks]
    for kind in ("path", "shadow"):
        for run, (track, shadow) in enumerate(zip(tracks, shadows, strict=True)):
            places = zip(track.updates, track.seconds, *shadow.T.tolist(), strict=True)
            rows += [(kind, run, *place) for place in places]
    across, up = axes_of(np.concatenate(shadows), grid, margin)
    rows += [("grid", None, None, None, a, b) for b in up.tolist() for a in across.tolist()]
    names = {"kind": pl.String, "run": pl.Int64, "updates": pl.Int64, "seconds": pl.Float64}
    table = pl.DataFrame(rows, schema=names | {"a": pl.Float64, "b": pl.Float64}, orient="row")
    return table.with_columns(loss=pl.lit(None, dtype=pl.Float64))


def axes_of(shadows: Vectors, grid: int, margin: float) -> list[Vectors]:
    """The grid's two axes: as far as the paths go and a margin; never without width."""
    low, high = shadows.min(axis=0), shadows.max(axis=0)
    widths = np.maximum(high - low, 0.1 * (high - low).max() or 1.0)
    middle = (low + high) / 2
    reach = widths * (0.5 + margin)
    return [np.linspace(m - r, m + r, grid) for m, r in zip(middle, reach, strict=True)]


def part_of(problem: Problem, samples: int | None, seed: int) -> Problem:
    """The problem with only so many test samples, drawn once."""
    if (
        samples is not None
        and isinstance(problem, SupervisedProblem)
        and samples < len(problem.splits["test"])
    ):
        whole = problem.splits["test"]
        drawn = addressed_rng(seed, "landscape").permutation(len(whole))[:samples]
        problem.splits["test"] = ExampleSubset(whole, np.sort(drawn))
    return problem


def evaluate(
    problem: Problem,
    plane: Plane,
    tracks: Sequence[Track],
    points: pl.DataFrame,
    kept: Path,
    jobs: int,
    report: Callable[[str], None],
    progress: Callable[[float, str], None],
) -> pl.DataFrame:
    """Fill in the losses that are missing; what is known is kept on disk as it grows."""
    losses = points["loss"].to_list()
    missing = [place for place, loss in enumerate(losses) if loss is None]
    kept.parent.mkdir(parents=True, exist_ok=True)
    models = list(models_of(plane, tracks, points, missing[:1]))
    with use_one_thread():
        report(announcement(problem, models[0], len(missing), jobs))
        with closing(on_cores(problem, jobs)) as compute:
            saved = time.monotonic()
            for done, chunks in enumerate(
                compute.evaluate_each(models_of(plane, tracks, points, missing), "test")
            ):
                losses[missing[done]] = sum(c.loss for c in chunks) / sum(c.samples for c in chunks)
                progress(done / len(missing), f"{done:,} of {len(missing):,} points")
                if time.monotonic() - saved > SAVE_SECONDS:
                    saved = time.monotonic()
                    write_parquet_atomically(
                        kept, points.with_columns(loss=pl.Series(losses, dtype=pl.Float64))
                    )
    points = points.with_columns(loss=pl.Series(losses, dtype=pl.Float64))
    write_parquet_atomically(kept, points)
    return points


def announcement(problem: Problem, model: Model, points: int, jobs: int) -> str:
    """What it will cost, from one evaluation (the second: the first warms up)."""
    for _ in range(2):
        started = time.monotonic()
        for chunk in range(problem.count_chunks("test")):
            problem.evaluate(*model, "test", chunk)
        each = time.monotonic() - started
    whole = points * each / jobs
    minutes = f"{whole / 60:.1f} minutes" if whole > 90 else f"{math.ceil(whole)} seconds"
    return f"{points:,} points × {1000 * each:.1f} ms ÷ {jobs} processes: about {minutes}"


def models_of(
    plane: Plane, tracks: Sequence[Track], points: pl.DataFrame, places: Sequence[int]
) -> Iterator[Model]:
    """The weights at these points, made when needed; on the plane with the mean of the last buffers."""
    last = torch.stack([track.buffers[-1] for track in tracks]).mean(dim=0)
    dtype = last.dtype
    own = [(run, step) for run, track in enumerate(tracks) for step in range(len(track.updates))]
    for place in places:
        if place < len(own):  # the paths come first
            track, step = tracks[own[place][0]], own[place][1]
            yield torch.from_numpy(track.weights[step]).to(dtype), track.buffers[step]
        else:
            yield torch.from_numpy(plane.at(points["a"][place], points["b"][place])).to(dtype), last
