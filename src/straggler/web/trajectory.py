"""The way of the weights: principal components of the snapshots, with the loss as height."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from straggler.record import RecordError
from straggler.web.facts import Facts
from straggler.web.figure import SCALE, Figure, colour, numbers

__all__ = ["trajectory"]

FEWEST = 3  # snapshots that span a plane
NOTE = (
    "The weights at the snapshots, projected on the two directions in which they vary most (PCA); "
    "the height is the loss of the model at that moment. Turn it with the mouse."
)


def trajectory(runs: Mapping[str, Facts]) -> Figure | None:
    """Runs of equally many weights in one projection; those without snapshots are left out."""
    ways = {name: way for name, run in runs.items() if (way := snapshots(run)) is not None}
    if not ways:
        return None
    size = next(iter(ways.values()))[0].shape[1]
    ways = {name: way for name, way in ways.items() if way[0].shape[1] == size}
    places, shares = project([weights for weights, _ in ways.values()])
    traces = [
        path(name, position, place, loss, alone=len(ways) == 1)
        for position, ((name, (_, loss)), place) in enumerate(zip(ways.items(), places, strict=True))
    ]
    first, second = (f"component {n} ({100 * share:.0f} %)" for n, share in enumerate(shares, 1))
    titles = {"xaxis": first, "yaxis": second, "zaxis": "loss"}
    scene: dict[str, Any] = {axis: {"title": {"text": text}} for axis, text in titles.items()}
    scene |= {"aspectmode": "cube", "camera": {"eye": {"x": 1.7, "y": 1.7, "z": 0.8}}}
    layout = {"scene": scene, "margin": {"l": 0, "r": 0, "t": 0, "b": 20}}
    return Figure("trajectory", "The way of the weights", NOTE, traces, layout, height=520)


def snapshots(run: Facts) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """The weights (a row each) and the loss at each of them."""
    if not (run.record.path / "snapshots.safetensors").is_file():
        return None
    try:
        kept = run.record.snapshots()
        weights, updates = kept["weights"].numpy(), kept["updates"].numpy()
    except (RecordError, KeyError) as error:
        run.trouble.append(f"snapshots.safetensors: {error}")
        return None
    finite = np.isfinite(weights).all(axis=1)
    loss = losses(run.curve, updates[finite])
    return None if loss is None or finite.sum() < FEWEST else (weights[finite], loss)


def losses(curve: pl.DataFrame, updates: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """The curve's loss at these updates, straight lines between the evaluations."""
    column = next((name for name in ("test_loss", "batch_loss") if name in curve.columns), None)
    if column is None:
        return None
    known = curve.select("updates", column).drop_nulls()
    return np.interp(updates, known["updates"], known[column]) if len(known) else None


def project(ways: list[np.ndarray[Any, Any]]) -> tuple[list[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """All ways in the plane of their first two principal components, and the share of variance of each."""
    from sklearn.decomposition import PCA  # takes a second to import, so only who has snapshots waits

    pca = PCA(n_components=2, svd_solver="full")
    flat = pca.fit_transform(np.concatenate(ways))
    shares = np.nan_to_num(pca.explained_variance_ratio_)
    return np.split(flat, np.cumsum([len(way) for way in ways])[:-1]), shares


def path(
    name: str, position: int, place: np.ndarray[Any, Any], loss: np.ndarray[Any, Any], alone: bool
) -> dict[str, Any]:
    marker: dict[str, Any] = {"size": 4, "color": colour(position)}
    if alone:
        marker |= {"color": numbers(loss), "colorscale": SCALE, "colorbar": {"title": {"text": "loss"}}}
    return {
        "type": "scatter3d",
        "mode": "lines+markers",
        "name": name,
        "x": numbers(place[:, 0]),
        "y": numbers(place[:, 1]),
        "z": numbers(loss),
        "line": {"width": 4, "color": colour(position)},
        "marker": marker,
        "hovertemplate": "loss %{z:.4g}<extra></extra>",
    }
