"""The way of the weights: principal components of the snapshots, with the loss as height."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from straggler.record import RecordError
from straggler.web.figure import SCALE, Figure, colour, numbers
from straggler.web.run_facts import RunFacts, format_command

if TYPE_CHECKING:
    from straggler.running.landscape import Landscape

FEWEST = 3  # snapshots that span a plane
PLANE = "The weights at the snapshots, projected on the two directions in which they vary most (PCA); "
WITHOUT_SURFACE = PLANE + "the height is the loss of the model at that moment. Turn it with the mouse."
WITH_SURFACE = PLANE + (
    "the surface is the loss there, and a path is drawn where it is seen on it. Heights and colours are "
    "logarithmic. Turn it with the mouse."
)
Vectors = np.ndarray[Any, Any]
Ways = Mapping[str, tuple[Vectors, Vectors]]  # weights, a row each, and losses


def trajectory(runs: Mapping[str, RunFacts]) -> Figure | None:
    """Runs of equally many weights in one projection; those without snapshots are left out."""
    ways = {name: way for name, run in runs.items() if (way := snapshots(run)) is not None}
    if not ways:
        return None
    size = next(iter(ways.values()))[0].shape[1]
    ways = {name: way for name, way in ways.items() if way[0].shape[1] == size}
    shown = {name: runs[name] for name in ways}
    seen = surveyed(shown)
    return without_surface(shown, ways) if seen is None else with_surface(seen)


def surveyed(runs: Mapping[str, RunFacts]) -> "Landscape | None":
    """What `straggler landscape` kept of just these runs, if anything of it can be drawn."""
    from straggler.running.landscape import (
        find_landscape,  # takes a second to import, so only who has snapshots waits
    )

    trouble = next(iter(runs.values())).problems
    try:
        seen = find_landscape({name: run.record for name, run in runs.items()}, trouble.append)
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        trouble.append(f"no surface: {str(error).splitlines()[0]}")
        return None
    good = pl.col("loss").is_finite() & (pl.col("loss") > 0)
    if seen is not None and seen.points.filter(good, kind="grid").is_empty():
        trouble.append("no surface: no loss of the grid has a logarithm")
        return None
    return seen


def with_surface(seen: "Landscape") -> Figure:
    """The loss all over the plane, and the paths on it."""
    from straggler.analysis.landscapes import ABOVE, level, level_ticks, paths, subject, surface, titled  # type: ignore[import-not-found]

    across, up, losses = surface(seen.points)
    ticks = level_ticks(losses)
    ground: dict[str, Any] = {"type": "surface", "x": numbers(across), "y": numbers(up)}
    ground |= {"z": [numbers(row) for row in level(losses)], "colorscale": SCALE, "opacity": 0.8}
    ground |= {"colorbar": {"title": {"text": "loss"}, "len": 0.7} | ticks, "hoverinfo": "skip"}
    tracks = paths(seen.points, "shadow")
    alone = len(tracks) == 1
    ways = []
    for position, (name, track) in enumerate(tracks):
        height = level(track["loss"].to_numpy()) + ABOVE
        way = path(name, position, track.select("a", "b").to_numpy(), height)
        way["marker"] |= {"line": {"color": "#ffffff", "width": 1}}  # blue is hard to see on blue
        ways.append(way | {"text": told(name, track, alone), "hovertemplate": "%{text}<extra></extra>"})
    names = [titled(axis, seen.plane.explained) for axis in (0, 1)]
    note = f"{subject(seen.plane.explained, seen.samples)}. {WITH_SURFACE}"
    return in_space([ground, *ways], names, note, ticks)


def told(name: str, track: pl.DataFrame, alone: bool) -> list[str]:
    """What one reads at each point of a path."""
    words = [
        f"update {updates:,}: loss {loss:.4g}" for updates, loss in track.select("updates", "loss").rows()
    ]
    return words if alone else [f"{name}<br>{word}" for word in words]


def without_surface(runs: Mapping[str, RunFacts], ways: Ways) -> Figure:
    """The paths alone, as high as their own losses."""
    from straggler.running.landscape import Plane

    plane = Plane.through(np.concatenate([weights for weights, _ in ways.values()]))
    traces = []
    for position, (name, (weights, loss)) in enumerate(ways.items()):
        way = path(name, position, plane.project(weights), loss)
        if len(ways) == 1:
            bar = {"color": numbers(loss), "colorscale": SCALE, "colorbar": {"title": {"text": "loss"}}}
            way["marker"] |= bar
        traces.append(way)
    names = [f"component {n} ({100 * share:.0f} %)" for n, share in enumerate(plane.explained, 1)]
    return in_space(traces, names, f"{WITHOUT_SURFACE} {remedy(list(runs.values()))}".strip(), {})


def remedy(runs: list[RunFacts]) -> str:
    """How to get the surface; a landscape is of one problem."""
    if len({(run.settings.get("dataset"), run.settings.get("model")) for run in runs}) > 1:
        return ""
    command = format_command(["straggler", "landscape", *(run.id for run in runs)])
    return f"For the surface of the loss around it: {command}, then the report again."


def in_space(traces: list[dict[str, Any]], names: list[str], note: str, ticks: dict[str, Any]) -> Figure:
    titles = {"xaxis": names[0], "yaxis": names[1], "zaxis": "loss"}
    scene: dict[str, Any] = {axis: {"title": {"text": text}} for axis, text in titles.items()}
    scene["zaxis"] |= ticks
    scene |= {"aspectmode": "cube", "camera": {"eye": {"x": 1.6, "y": 1.7, "z": 1.1}, "center": {"z": -0.2}}}
    layout = {"scene": scene, "margin": {"l": 0, "r": 0, "t": 0, "b": 20}}
    return Figure("trajectory", "The way of the weights", note, traces, layout, height=520)


def snapshots(run: RunFacts) -> tuple[Vectors, Vectors] | None:
    """The weights (a row each) and the loss at each of them."""
    if not (run.record.path / "snapshots.safetensors").is_file():
        return None
    try:
        kept = run.record.snapshots()
        weights, updates = kept["weights"].numpy(), kept["updates"].numpy()
    except (RecordError, KeyError) as error:
        run.problems.append(f"snapshots.safetensors: {error}")
        return None
    finite = np.isfinite(weights).all(axis=1)
    loss = losses(run.curve, updates[finite])
    return None if loss is None or finite.sum() < FEWEST else (weights[finite], loss)


def losses(curve: pl.DataFrame, updates: Vectors) -> Vectors | None:
    """The curve's loss at these updates, straight lines between the evaluations."""
    column = next((name for name in ("test_loss", "batch_loss") if name in curve.columns), None)
    if column is None:
        return None
    known = curve.select("updates", column).drop_nulls()
    return np.interp(updates, known["updates"], known[column]) if len(known) else None


def path(name: str, position: int, place: Vectors, height: Vectors) -> dict[str, Any]:
    return {
        "type": "scatter3d",
        "mode": "lines+markers",
        "name": name,
        "x": numbers(place[:, 0]),
        "y": numbers(place[:, 1]),
        "z": numbers(height),
        "line": {"width": 4, "color": colour(position)},
        "marker": {"size": 4, "color": colour(position)},
        "hovertemplate": "loss %{z:.4g}<extra></extra>",
    }
