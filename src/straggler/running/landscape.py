"""Loss landscapes: the loss on the plane of the two principal components of the paths of runs."""

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

from straggler.algorithms.work import gradient_program
from straggler.config.registry import InputError
from straggler.config.settings import COMPONENTS
from straggler.core import Problem
from straggler.core.randomness import addressed_rng
from straggler.engines.pool.gradient_pool import create_computer
from straggler.experiment import Experiment
from straggler.problems.examples import ExampleSubset
from straggler.problems.supervised import SupervisedProblem, use_one_thread
from straggler.record import Record, RecordError, read_table
from straggler.running.atomic_files import write_parquet_atomically
from straggler.running.untrusted_files import MAX_TABLE_BYTES, is_regular_file, read_regular_bytes

SAVE_SECONDS = 10.0  # between writes to the cache: the work that an interruption may lose
CACHE_NAME = re.compile(r"[0-9a-f]{16}-(\d{1,3})-(\d+|all)-(\d+\.\d+)")  # key, grid, samples, margin
# Settings on which the loss of a model does not depend.
IRRELEVANT_SETTINGS = (*COMPONENTS, "partition", "compute", "delay")
FEWEST_SNAPSHOTS = 3  # that a path needs to be drawn without a surface
SCHEMA = {"kind": pl.String, "run": pl.Int64, "updates": pl.Int64, "seconds": pl.Float64}
SCHEMA |= {"a": pl.Float64, "b": pl.Float64}
Vectors = NDArray[np.float64]
WeightsAndBuffers = tuple[Tensor, Tensor]
Report = Callable[[str], None]
Advance = Callable[[float, str], None]


@dataclass(frozen=True)
class Plane:
    """The plane closest to the paths: their mean and two orthogonal directions."""

    middle: Vectors
    directions: Vectors  # two rows
    explained: tuple[float, float]  # shares of the variance, largest first

    @classmethod
    def through(cls, snapshots: Vectors) -> "Plane":
        """Return the plane that explains most of the variance of these weights, a row each."""
        from sklearn.decomposition import PCA  # takes a second to import

        found = PCA(n_components=2, svd_solver="full").fit(snapshots)
        first, second = map(float, np.nan_to_num(found.explained_variance_ratio_))
        return cls(found.mean_, found.components_, (first, second))

    def project(self, weights: Vectors) -> Vectors:
        """Return the coordinates of weights on the plane."""
        coordinates: Vectors = (weights - self.middle) @ self.directions.T
        return coordinates

    def at(self, a: float, b: float) -> Vectors:
        """Return the weights at a point of the plane."""
        point: Vectors = self.middle + a * self.directions[0] + b * self.directions[1]
        return point


@dataclass(frozen=True)
class Landscape:
    """Losses of a grid on the plane, of every run's snapshots, and of their projections."""

    points: pl.DataFrame  # kind (grid, path or shadow), run, updates, seconds, a, b, loss
    plane: Plane
    samples: int | None  # size of the part of the test set that was used; None = all of it


@dataclass(frozen=True)
class SnapshotPath:
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
    report: Report = lambda line: None,
    progress: Advance = lambda done, label: None,
) -> Landscape:
    """Evaluate the plane through the snapshots of runs, or read it from the cache."""
    ordered = sort_by_content(records)
    runs = list(ordered.values())
    experiment = check_same_problem(runs)
    plane, paths = fit_plane(runs, report)
    points = place_points(plane, paths, grid, margin)
    cache = find_cache_folder(runs) / f"{hash_runs(runs)}-{grid}-{samples or 'all'}-{margin}.parquet"
    if is_regular_file(cache):
        points = read_points(cache, points)
        partial = points["loss"].is_null().any()
        report(f"Resuming from {cache}." if partial else f"Read from {cache}.")
    if points["loss"].is_null().any():
        problem = limit_test_set(experiment.problem(data, report), samples, experiment.seed)
        points = evaluate_points(
            problem, plane, paths, points, cache, jobs or os.cpu_count() or 1, report, progress
        )
    return Landscape(restore_names(points, list(ordered), list(records)), plane, samples)


def find_landscape(records: Mapping[str, Record], report: Report) -> Landscape | None:
    """Return the latest complete landscape of exactly these runs from the cache; report unreadable files."""
    ordered = sort_by_content(records)
    runs = list(ordered.values())
    files = find_cache_folder(runs).glob(f"{hash_runs(runs)}-*.parquet")
    named = [(file, match) for file in files if (match := CACHE_NAME.fullmatch(file.stem))]
    if not named:
        return None
    plane, paths = fit_plane(runs, report)
    for file, match in sorted(named, key=lambda pair: pair[0].stat().st_mtime, reverse=True):
        grid, samples, margin = match.groups()
        try:
            points = read_points(file, place_points(plane, paths, int(grid), float(margin)))
        except RecordError as error:
            report(str(error))
            continue
        if not points["loss"].is_null().any():
            points = restore_names(points, list(ordered), list(records))
            return Landscape(points, plane, None if samples == "all" else int(samples))
    return None


def find_trajectories(records: Mapping[str, Record], report: Report) -> Landscape | None:
    """Return the cached landscape of runs or, without one, their paths with the losses of their curves.

    Runs without snapshots, and those with another number of weights than the first, are left out.
    """
    paths: dict[str, SnapshotPath] = {}
    for name, record in records.items():
        if is_regular_file(record.path / "snapshots.safetensors"):
            try:
                path = read_path(record, report)
            except (RecordError, KeyError, InputError) as error:
                report(f"{record.path.name} has no path: {error}")
                continue
            size = next(iter(paths.values()), path).weights.shape[1]
            if len(path.updates) >= FEWEST_SNAPSHOTS and path.weights.shape[1] == size:
                paths[name] = path
    if not paths:
        return None
    try:
        cached = find_landscape({name: records[name] for name in paths}, report)
    except (OSError, ValueError, RecordError, pl.exceptions.PolarsError) as error:
        report(f"The surface cannot be read: {str(error).splitlines()[0]}")
        cached = None
    if cached is not None:
        losses = cached.points.filter(kind="grid")["loss"]
        if (losses.is_finite() & (losses > 0)).any():
            return cached
        report("The surface is left out: no loss of the grid is positive and finite.")
    return interpolate_losses({name: (records[name], path) for name, path in paths.items()})


def interpolate_losses(paths: Mapping[str, tuple[Record, SnapshotPath]]) -> Landscape | None:
    """Return the paths with losses interpolated between the evaluations of their runs."""
    plane = Plane.through(np.concatenate([path.weights for _, path in paths.values()]))
    rows: list[tuple[Any, ...]] = []
    for name, (record, path) in paths.items():
        column = next((name for name in ("test_loss", "batch_loss") if name in record.curve.columns), None)
        known = record.curve.select("updates", column).drop_nulls() if column else pl.DataFrame()
        if len(known):
            losses = np.interp(path.updates, known["updates"], known[column or ""])
            places = plane.project(path.weights).T.tolist()
            columns = zip(path.updates, path.seconds, *places, losses.tolist(), strict=True)
            rows += [(kind, name, *column) for column in columns for kind in ("path", "shadow")]
    schema = SCHEMA | {"run": pl.String, "loss": pl.Float64}
    points = pl.DataFrame(rows, schema=schema, orient="row")
    return Landscape(points, plane, None) if rows else None


def fit_plane(runs: Sequence[Record], report: Report) -> tuple[Plane, list[SnapshotPath]]:
    """Return the plane through the snapshots of runs, and the runs' paths."""
    paths = [read_path(record, report) for record in runs]
    return Plane.through(np.concatenate([path.weights for path in paths])), paths


def read_points(cache: Path, expected: pl.DataFrame) -> pl.DataFrame:
    """Read a cached landscape, or raise RecordError if its points are not the expected ones."""
    points = read_table(cache)
    columns = ["kind", "run", "updates"]
    if points.schema != expected.schema or not points.select(columns).equals(expected.select(columns)):
        raise RecordError(f"{cache} does not match its name. Remove it and compute the landscape again.")
    return points


def restore_names(points: pl.DataFrame, ordered: Sequence[str], wanted: Sequence[str]) -> pl.DataFrame:
    """Replace run numbers with names, in the order of `wanted`; the grid comes last."""
    names = pl.col("run").replace_strict(dict(enumerate(ordered)), return_dtype=pl.String)
    places = {name: wanted.index(name) for name in ordered}
    position = pl.col("run").replace_strict(places, return_dtype=pl.Int64)
    return points.with_columns(run=names).sort(position, nulls_last=True, maintain_order=True)


def check_same_problem(runs: Sequence[Record]) -> Experiment:
    """Return the first run's experiment, or raise if another run has other data or another model."""
    first = runs[0].settings
    for record in runs[1:]:
        for setting in ("dataset", "model"):
            if record.settings[setting] != first[setting]:
                raise InputError(
                    f"{record.path} has {setting}={record.settings[setting]}, but {runs[0].path} has "
                    f"{first[setting]}. A landscape shows one problem: leave one of them out."
                )
    return Experiment.from_record(runs[0], defaults_for=IRRELEVANT_SETTINGS)


def read_path(record: Record, report: Report) -> SnapshotPath:
    """Return the finite snapshots of a run."""
    snapshots = record.snapshots()
    weights = snapshots["weights"].double().numpy()
    finite = np.isfinite(weights).all(axis=1)
    if not finite.all():
        report(f"{record.path}: left out {np.sum(~finite)} snapshots that are not finite.")
    if finite.sum() < 2 or weights.shape[1] < 2:
        raise InputError(f"{record.path} needs at least two finite snapshots of two weights. Leave it out.")
    chosen = np.flatnonzero(finite).tolist()
    updates, seconds = snapshots["updates"].tolist(), snapshots["seconds"].tolist()
    times = [updates[i] for i in chosen], [seconds[i] for i in chosen]
    return SnapshotPath(weights[finite], snapshots["buffers"][chosen], *times)


def sort_by_content(records: Mapping[str, Record]) -> dict[str, Record]:
    """Sort runs by their content, so that their landscape does not depend on the order of the arguments."""
    return dict(sorted(records.items(), key=lambda pair: hash_run(pair[1])))


def hash_run(run: Record) -> str:
    """Return a hash of the snapshots and the settings."""
    snapshots = run.path / "snapshots.safetensors"
    if not is_regular_file(snapshots):
        raise InputError(f"{run.path} has no snapshots. Run it again with --snapshots 20.")
    return hashlib.sha256(read_regular_bytes(snapshots, MAX_TABLE_BYTES) + run.text.encode()).hexdigest()


def hash_runs(runs: Sequence[Record]) -> str:
    """Return the beginning of the names of these runs' cached landscapes."""
    return hashlib.sha256("".join(map(hash_run, runs)).encode()).hexdigest()[:16]


def find_cache_folder(runs: Sequence[Record]) -> Path:
    """Return the folder of cached landscapes, next to the first run."""
    return runs[0].path.parent / "landscapes"


def place_points(plane: Plane, paths: Sequence[SnapshotPath], grid: int, margin: float) -> pl.DataFrame:
    """Return all points to evaluate, without their losses."""
    rows: list[tuple[Any, ...]] = []
    projections = [plane.project(path.weights) for path in paths]
    for kind in ("path", "shadow"):
        for run, (path, projection) in enumerate(zip(paths, projections, strict=True)):
            places = zip(path.updates, path.seconds, *projection.T.tolist(), strict=True)
            rows += [(kind, run, *place) for place in places]
    across, up = place_grid(np.concatenate(projections), grid, margin)
    rows += [("grid", None, None, None, a, b) for b in up.tolist() for a in across.tolist()]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").with_columns(loss=pl.lit(None, dtype=pl.Float64))


def place_grid(projections: Vectors, grid: int, margin: float) -> list[Vectors]:
    """Return the two axes of the grid, which covers the paths and a margin."""
    low, high = projections.min(axis=0), projections.max(axis=0)
    widths = np.maximum(high - low, 0.1 * (high - low).max() or 1.0)
    middle, reach = (low + high) / 2, widths * (0.5 + margin)
    return [np.linspace(m - r, m + r, grid) for m, r in zip(middle, reach, strict=True)]


def limit_test_set(problem: Problem, samples: int | None, seed: int) -> Problem:
    """Reduce the problem's test set to a random part of this size, and return the problem."""
    if samples is None or not isinstance(problem, SupervisedProblem):
        return problem
    whole = problem.splits["test"]
    if samples < len(whole):
        drawn = addressed_rng(seed, "landscape").permutation(len(whole))[:samples]
        problem.splits["test"] = ExampleSubset(whole, np.sort(drawn))
    return problem


def evaluate_points(
    problem: Problem,
    plane: Plane,
    paths: Sequence[SnapshotPath],
    points: pl.DataFrame,
    cache: Path,
    jobs: int,
    report: Report,
    progress: Advance,
) -> pl.DataFrame:
    """Compute the missing losses and write them to the cache, periodically and at the end."""
    losses = points["loss"].to_list()
    missing = [place for place, loss in enumerate(losses) if loss is None]
    cache.parent.mkdir(parents=True, exist_ok=True)
    with use_one_thread():
        report(estimate_cost(problem, next(build_models(plane, paths, points, missing)), len(missing), jobs))
        with closing(create_computer(gradient_program(problem), jobs)) as compute:
            saved, models = time.monotonic(), build_models(plane, paths, points, missing)
            for done, chunks in enumerate(compute.evaluate_each(models, "test")):
                losses[missing[done]] = sum(c.loss for c in chunks) / sum(c.samples for c in chunks)
                progress(done / len(missing), f"{done:,} of {len(missing):,} points")
                if time.monotonic() - saved > SAVE_SECONDS:
                    saved = time.monotonic()
                    write_parquet_atomically(cache, points.with_columns(loss=pl.Series(losses)))
    points = points.with_columns(loss=pl.Series(losses, dtype=pl.Float64))
    write_parquet_atomically(cache, points)
    return points


def estimate_cost(problem: Problem, model: WeightsAndBuffers, points: int, jobs: int) -> str:
    """Return a line that estimates the time of the evaluation from one point, measured after a warm-up."""
    for _ in range(2):
        started = time.monotonic()
        for chunk in range(problem.count_chunks("test")):
            problem.evaluate(*model, "test", chunk)
        each = time.monotonic() - started
    whole = points * each / jobs
    minutes = f"{whole / 60:.1f} minutes" if whole > 90 else f"{math.ceil(whole)} seconds"
    return f"{points:,} points × {1000 * each:.1f} ms ÷ {jobs} processes: about {minutes}"


def build_models(
    plane: Plane, paths: Sequence[SnapshotPath], points: pl.DataFrame, places: Sequence[int]
) -> Iterator[WeightsAndBuffers]:
    """Yield the models at these points; models on the plane have the mean of the runs' last buffers."""
    last = torch.stack([path.buffers[-1] for path in paths]).mean(dim=0)
    snapshots = [(path, step) for path in paths for step in range(len(path.updates))]
    for place in places:
        if place < len(snapshots):  # the paths come first
            path, step = snapshots[place]
            yield torch.from_numpy(path.weights[step]).to(last.dtype), path.buffers[step]
        else:
            yield torch.from_numpy(plane.at(points["a"][place], points["b"][place])).to(last.dtype), last
