"""Drawing of loss landscapes: the surface from above and in three dimensions, with the paths of the runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from straggler.analysis.figures.description import (
    Axis,
    FigureSpec,
    Mark,
    Panel,
    Scatter,
    Surface,
    Trajectory,
    hide_labels,
)

VIEWS = ("both", "top", "3d")
LEVELS = 18
LIFT = 0.02  # how far above the surface a path is drawn, so that it stays visible
Grid = NDArray[np.float64]


def read_surface(points: pl.DataFrame) -> tuple[Grid, Grid, Grid]:
    """Return the two axes of the grid and its losses; losses that overflowed are NaN."""
    grid = points.filter(kind="grid")
    across, up = (np.unique(grid[axis].to_numpy()) for axis in ("a", "b"))
    losses = grid.sort("b", "a")["loss"].to_numpy().reshape(len(up), len(across))
    return across, up, np.where(np.isfinite(losses) & (losses > 0), losses, np.nan)


def choose_levels(losses: Grid) -> Grid:
    """Return levels at equal ratios, from the lowest loss to the highest."""
    low, high = float(np.nanmin(losses)), float(np.nanmax(losses))
    return np.geomspace(low, max(high, low * 1.001), LEVELS)


def build_landscape_figure(
    points: pl.DataFrame,
    explained: Sequence[float],
    samples: int | None,
    view: str = "both",
    colours: Mapping[str, int] | None = None,
) -> FigureSpec:
    """Describe the loss around the paths of runs: from above, in three dimensions, or both.

    Without a grid only the paths are drawn, at the heights of their losses.
    """
    has_grid = not points.filter(kind="grid").is_empty()
    across, up, losses = read_surface(points) if has_grid else (np.array([]), np.array([]), np.empty((0, 0)))
    known = losses if has_grid else np.maximum(points["loss"].to_numpy(), 1e-300)
    levels = choose_levels(known)
    marked = levels[:: LEVELS // 6]
    ticks: dict[str, Any] = {"ticks": np.log10(marked).tolist()}
    ticks["tick_labels"] = [f"{level:.3g}" for level in marked]
    names = [f"PC {n} ({100 * share:.1f} % of the variance)" for n, share in enumerate(explained, 1)]
    x, y = (Axis(name, grid=False) for name in names)
    ground: list[Mark] = []
    if has_grid:
        place = (across, up, np.log10(losses), np.log10(levels))
        ground = [Surface(*place, ticks["tick_labels"], ticks["ticks"], "loss (log levels)")]
    panels = []
    if view in ("both", "top"):
        panels.append(
            Panel([*ground, *draw_paths_from_above(points, across, up, losses, colours or {})], x, y)
        )
    if view in ("both", "3d"):
        paths = draw_paths_in_space(points, colours or {})
        space = Panel([*ground, *paths], x, y, Axis("loss", **ticks))
        panels.append(hide_labels(space) if panels else space)
    what = "the test set" if samples is None else f"{samples:,} test samples"
    title = f"Loss of {what} on the plane that explains {100 * sum(explained):.1f} % of the paths' variance"
    size = (11 if view == "both" else 6.5, 5.2)
    return FigureSpec("landscape", title, panels, caption=title, size=size, height=520, legend="below")


def split_runs(points: pl.DataFrame, kind: str) -> list[tuple[str, pl.DataFrame]]:
    """Return the points of a kind by run, in the order of the updates."""
    groups = points.filter(kind=kind).group_by(["run"], maintain_order=True)
    return [(str(run), group) for (run,), group in groups]


def describe_points(run: str, track: pl.DataFrame) -> list[str]:
    rows = track.select("updates", "seconds", "loss").iter_rows()
    return [f"{run}<br>update {update:,}, {time:.0f} s<br>loss {loss:.4g}" for update, time, loss in rows]


def draw_paths_from_above(
    points: pl.DataFrame, across: Grid, up: Grid, losses: Grid, colours: Mapping[str, int]
) -> list[Mark]:
    """Return the paths, their starts, and the lowest point of the grid."""
    tracks, marks = split_runs(points, "path"), list[Mark]()
    for position, (run, track) in enumerate(tracks):
        colour = colours.get(run, position)
        label = f"{run}: ends at {track['loss'][-1]:.3g}"
        marks.append(Trajectory(track["a"], track["b"], None, label, colour, describe_points(run, track)))
    starts = np.unique([(track["a"][0], track["b"][0]) for _, track in tracks], axis=0)
    look: dict[str, Any] = {"colour": "#000000", "fill": "#ffffff"}
    marks.append(Scatter(starts[:, 0], starts[:, 1], "start", marker="circle", **look))
    if losses.size:
        row, column = np.unravel_index(np.nanargmin(losses), losses.shape)
        label = f"lowest of the grid: {losses[row, column]:.3g}"
        marks.append(Scatter([across[column]], [up[row]], label, marker="star", size=10, **look))
    return marks


def draw_paths_in_space(points: pl.DataFrame, colours: Mapping[str, int]) -> list[Mark]:
    """Return the paths where they appear on the plane."""
    marks: list[Mark] = []
    for position, (run, track) in enumerate(split_runs(points, "shadow")):
        heights = np.log10(np.maximum(track["loss"].to_numpy(), 1e-300)) + LIFT
        colour = colours.get(run, position)
        marks.append(Trajectory(track["a"], track["b"], heights, run, colour, describe_points(run, track)))
    return marks
