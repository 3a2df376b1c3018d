"""The loss around the paths of runs: on the plane of their two principal components, point by point."""

import hashlib
import json
import math
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from torch import Tensor

from straggler.catalogue import InputError
from straggler.data.examples import Subset
from straggler.engines.compute import Compute, Pool
from straggler.experiment import Experiment
from straggler.problem import Problem, Supervised, one_thread
from straggler.randomness import rng
from straggler.record import Record, read_table, write_parquet

__all__ = ["Landscape", "Plane", "landscape"]

SAVE_SECONDS = 10.0  # what an interrupted grid may lose
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


def landscape(
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
    runs = list(records.values())
    experiment = same_problem(runs)
    tracks = [track_of(record, report) for record in runs]
    plane = Plane.through(np.concatenate([track.weights for track in tracks]))
    points = layout(plane, tracks, grid, margin)
    kept = runs[0].path.parent / "landscapes" / f"{key(runs, grid, samples, margin)}.parquet"
    if kept.is_file():
        points = read_table(kept)
        report(f"goes on from {kept}" if points["loss"].is_null().any() else f"read from {kept}")
    if points["loss"].is_null().any():
        problem = part_of(experiment.problem(data, report), samples, experiment.seed)
        points = evaluate(problem, plane, tracks, points, kept, jobs or os.cpu_count() or 1, report, progress)
    names = dict(enumerate(records))
    return Landscape(
        points.with_columns(pl.col("run").replace_strict(names, return_dtype=pl.String)), plane, samples
    )


def same_problem(runs: Sequence[Record]) -> Experiment:
    """The first run's experiment, if all have its data and model."""
    first, *others = [tomllib.loads(record.text) for record in runs]
    for record, other in zip(runs[1:], others, strict=True):
        for setting in ("dataset", "model"):
            if other[setting] != first[setting]:
                raise InputError(
                    f"{record.path} has {setting}={other[setting]}, but {runs[0].path} has {first[setting]}; "
                    f"a landscape is of one: leave one out"
                )
    return Experiment(**first)


def track_of(record: Record, report: Callable[[str], None]) -> Track:
    if not (record.path / "snapshots.safetensors").is_file():
        raise InputError(f"{record.path} kept no snapshots; run it again with --snapshots 20")
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


def key(runs: Sequence[Record], grid: int, samples: int | None, margin: float) -> str:
    """What tells one landscape from another: the snapshots themselves, and where it is evaluated."""
    weights = [hashlib.sha256((run.path / "snapshots.safetensors").read_bytes()).hexdigest() for run in runs]
    facts = [weights, [run.text for run in runs], grid, samples, margin]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


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
    if samples is not None and isinstance(problem, Supervised) and samples < len(problem.splits["test"]):
        whole = problem.splits["test"]
        drawn = rng(seed, "landscape").permutation(len(whole))[:samples]
        problem.splits["test"] = Subset(whole, np.sort(drawn))
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
    with one_thread():
        report(announcement(problem, models[0], len(missing), jobs))
        with closing(Pool(problem, jobs) if jobs > 1 else Compute(problem)) as compute:
            saved = time.monotonic()
            for done, chunks in enumerate(
                compute.evaluate_each(models_of(plane, tracks, points, missing), "test")
            ):
                losses[missing[done]] = sum(c.loss for c in chunks) / sum(c.samples for c in chunks)
                progress(done / len(missing), f"{done:,} of {len(missing):,} points")
                if time.monotonic() - saved > SAVE_SECONDS:
                    saved = time.monotonic()
                    write_parquet(points.with_columns(loss=pl.Series(losses, dtype=pl.Float64)), kept)
    points = points.with_columns(loss=pl.Series(losses, dtype=pl.Float64))
    write_parquet(points, kept)
    return points


def announcement(problem: Problem, model: Model, points: int, jobs: int) -> str:
    """What it will cost, from one evaluation (the second: the first warms up)."""
    for _ in range(2):
        started = time.monotonic()
        for chunk in range(problem.chunks("test")):
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
