"""Landscapes as figures: from above and in three dimensions, for paper and for the browser."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.patheffects as effects
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from straggler.analysis.style import COLOURS, drawn, place_legend
from straggler.running.atomic_files import replace_atomically

VIEWS = ("both", "top", "3d")
LEVELS = 18
COLOUR_MAP, PLOTLY_MAP = "cividis", "Cividis"
ABOVE = 0.02  # how far over the surface a path is drawn, so that it is seen
Grid = NDArray[np.float64]


def surface(points: pl.DataFrame) -> tuple[Grid, Grid, Grid]:
    """The grid's two axes and its losses, a row for each place on the second; what overflowed is missing."""
    grid = points.filter(pl.col("kind") == "grid")
    across, up = (np.unique(grid[axis].to_numpy()) for axis in ("a", "b"))
    losses = grid.sort("b", "a")["loss"].to_numpy().reshape(len(up), len(across))
    return across, up, np.where(np.isfinite(losses) & (losses > 0), losses, np.nan)


def heights(losses: Grid) -> Grid:
    """Levels at equal ratios, from the lowest loss to the highest."""
    low, high = float(np.nanmin(losses)), float(np.nanmax(losses))
    return np.geomspace(low, max(high, low * 1.001), LEVELS)


def level(losses: Grid) -> Grid:
    """The height of losses in three dimensions: their logarithm."""
    return np.log10(np.maximum(losses, 1e-300))


def level_ticks(losses: Grid) -> dict[str, list[Any]]:
    """Where plotly marks the heights of these losses, and with which words."""
    marked = heights(losses)[:: max(1, LEVELS // 6)]
    return {"tickvals": np.log10(marked).tolist(), "ticktext": [f"{loss:.3g}" for loss in marked]}


def paths(points: pl.DataFrame, kind: str) -> list[tuple[str, pl.DataFrame]]:
    """Every run's points of a kind, in the order of its updates."""
    groups = points.filter(pl.col("kind") == kind).group_by(["run"], maintain_order=True)
    return [(str(run), group) for (run,), group in groups]


def titled(axis: int, explained: Sequence[float]) -> str:
    return f"PC {axis + 1} ({100 * explained[axis]:.1f} % of the variance)"


def subject(explained: Sequence[float], samples: int | None) -> str:
    what = "the test set" if samples is None else f"{samples:,} test samples"
    return f"Loss of {what} on the plane that explains {100 * sum(explained):.1f} % of the paths' variance"


def landscape_figure(
    points: pl.DataFrame, explained: Sequence[float], samples: int | None, path: Path, view: str = "both"
) -> Path:
    """The surface with every run's path, from above, in three dimensions, or both."""
    wide = view == "both"
    with drawn(path, 11 if wide else 6.5, 5.2) as figure:
        if view in ("both", "top"):
            draw_top(figure, figure.add_subplot(1, 2 if wide else 1, 1), points, explained)
        if view in ("both", "3d"):
            space = figure.add_subplot(1, 2 if wide else 1, 2 if wide else 1, projection="3d")
            draw_space(space, points, explained)
        figure.suptitle(subject(explained, samples), fontsize=9)
        place_legend(figure, figure.axes[0], inside=False)
    return path


def draw_top(figure: Figure, axes: Axes, points: pl.DataFrame, explained: Sequence[float]) -> None:
    across, up, losses = surface(points)
    levels = heights(losses)
    norm = LogNorm(levels[0], levels[-1])
    filled = axes.contourf(across, up, losses, levels=levels, cmap=COLOUR_MAP, norm=norm)
    axes.contour(across, up, losses, levels=levels, colors="white", linewidths=0.3, alpha=0.6)
    ticks = levels[:: max(1, LEVELS // 6)]
    bar = figure.colorbar(filled, ax=axes, label="loss (log levels)", ticks=ticks)
    bar.ax.set_yticks(ticks, [f"{tick:.3g}" for tick in ticks])
    bar.ax.minorticks_off()
    outline = [effects.withStroke(linewidth=3, foreground="white")]
    for position, (run, track) in enumerate(paths(points, "path")):
        style: dict[str, Any] = {"color": COLOURS[position % len(COLOURS)], "path_effects": outline}
        label = f"{run}: ends at {track['loss'][-1]:.3g}"
        axes.plot(track["a"], track["b"], label=label, linewidth=1.5, marker=".", markersize=4, **style)
        axes.plot(track["a"][-1], track["b"][-1], marker="s", markersize=5, **style)
    starts = list(dict.fromkeys((track["a"][0], track["b"][0]) for _, track in paths(points, "path")))
    across_, up_ = zip(*starts, strict=True)
    axes.plot(across_, up_, "o", color="white", markeredgecolor="black", label="start", ls="", clip_on=False)
    row, column = np.unravel_index(np.nanargmin(losses), losses.shape)
    lowest = f"lowest of the grid: {losses[row, column]:.3g}"
    axes.plot(
        across[column],
        up[row],
        "*",
        color="white",
        markeredgecolor="black",
        markersize=10,
        label=lowest,
        ls="",
        clip_on=False,  # it may be a corner
    )
    axes.set(xlabel=titled(0, explained), ylabel=titled(1, explained))
    axes.grid(visible=False)


def draw_space(axes: Any, points: pl.DataFrame, explained: Sequence[float]) -> None:
    """Height is the logarithm of the loss; paths are drawn where they are seen on the plane."""
    across, up, losses = surface(points)
    axes.computed_zorder = False
    mesh = np.meshgrid(across, up)
    axes.plot_surface(*mesh, np.log10(losses), cmap=COLOUR_MAP, alpha=0.75, linewidth=0, rcount=60, ccount=60)
    for position, (run, track) in enumerate(paths(points, "shadow")):
        place = track["a"], track["b"], pl.Series(level(track["loss"].to_numpy()))
        colour = COLOURS[position % len(COLOURS)]
        axes.plot(*place, color=colour, marker=".", markersize=3, zorder=5, label=run)
        axes.plot(*(axis[-1:] for axis in place), color=colour, marker="s", markersize=5, zorder=6)
    ticks = level_ticks(losses)
    axes.set_zticks(ticks["tickvals"], ticks["ticktext"])
    axes.set_xlabel(titled(0, explained), labelpad=6)
    axes.set_ylabel(titled(1, explained), labelpad=8)
    axes.set_zlabel("loss", labelpad=9)
    axes.tick_params(labelsize=7)
    axes.view_init(elev=38, azim=-60)
    axes.set_box_aspect(None, zoom=0.78)  # room for the labels


def landscape_page(points: pl.DataFrame, explained: Sequence[float], samples: int | None, path: Path) -> Path:
    """Both views in one page to turn and zoom; it needs no network."""
    page = make_subplots(
        rows=1,
        cols=2,
        horizontal_spacing=0.12,
        specs=[[{"type": "xy"}, {"type": "scene"}]],
        subplot_titles=["from above", "surface"],
    )
    across, up, losses = surface(points)
    scale: dict[str, Any] = {"title": "loss", **level_ticks(losses)}
    shared: dict[str, Any] = {"x": across, "y": up, "z": level(losses), "colorscale": PLOTLY_MAP}
    page.add_trace(
        go.Contour(**shared, ncontours=LEVELS, colorbar=scale | {"x": 0.45}, hoverinfo="skip"), 1, 1
    )
    page.add_trace(go.Surface(**shared, opacity=0.85, showscale=False, hoverinfo="skip"), 1, 2)
    for position, ((run, track), (_, shadow)) in enumerate(
        zip(paths(points, "path"), paths(points, "shadow"), strict=True)
    ):
        add_path(page, run, track, shadow, COLOURS[position % len(COLOURS)])
    first, second = titled(0, explained), titled(1, explained)
    page.update_xaxes(title=first)
    page.update_yaxes(title=second)
    camera = {"eye": {"x": -0.9, "y": -1.8, "z": 1.2}, "center": {"x": 0, "y": 0, "z": -0.2}}
    page.update_scenes(xaxis_title="PC 1", yaxis_title="PC 2", zaxis=scale, camera=camera)
    page.update_layout(title=subject(explained, samples), legend={"orientation": "h", "y": -0.15})
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_atomically(path) as temporary:
        page.write_html(temporary, include_plotlyjs=True)
    return path


def add_path(page: Any, run: str, track: pl.DataFrame, shadow: pl.DataFrame, colour: str) -> None:
    told = [
        f"{run}<br>update {updates:,}, {seconds:.0f} s<br>loss {loss:.4g}"
        for updates, seconds, loss in track.select("updates", "seconds", "loss").iter_rows()
    ]
    shared: dict[str, Any] = {"name": run, "legendgroup": run, "text": told, "hoverinfo": "text"}
    shared |= {
        "mode": "lines+markers",
        "line": {"color": colour, "width": 3},
        "x": track["a"],
        "y": track["b"],
    }
    page.add_trace(go.Scatter(**shared), 1, 1)
    height = level(shadow["loss"].to_numpy()) + ABOVE
    page.add_trace(go.Scatter3d(**shared, z=height, marker={"size": 3}, showlegend=False), 1, 2)
