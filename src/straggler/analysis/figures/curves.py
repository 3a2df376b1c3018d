"""Curves over time, epochs, updates or gradients: accuracy, loss, gap, staleness and norms."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import polars as pl

from straggler.analysis.figures.colours import assign_colours
from straggler.analysis.figures.description import COLOURS, Axis, FigureSpec, Line, Mark, Panel
from straggler.analysis.intervals import FEWEST_SEEDS, error_bars, mean_interval
from straggler.analysis.labels import RunData

AGAINST = ("seconds", "epochs", "updates", "gradients", "bytes")
SCORES = {
    "accuracy": ("test_accuracy", "validation_accuracy", "train_accuracy"),
    "loss": ("test_loss", "validation_loss", "train_loss", "batch_loss"),
}
NOTES = {
    "accuracy": "Accuracy on data that no worker saw. Runs can rank differently over time and over epochs: "
    "waiting costs time, staleness costs progress per epoch.",
    "loss": "The loss on the test set.",
}
GRID_POINTS = 120  # of a mean over seeds, and of a curve made of arrivals
MOST_POINTS = 400  # of one line
WIDE = 100.0  # times the median: beyond it an axis is logarithmic
BEYOND = (
    1.5  # times the largest value of a run that converged: an axis does not go there for one that diverged
)
BYTES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
Array = np.ndarray[Any, Any]
Groups = Mapping[str, Sequence[RunData]]  # the seeds of each setting by its label


def build_curve_figure(
    metric: str,
    groups: Groups,
    against: Sequence[str] = AGAINST,
    training: bool = True,
    colours: Mapping[str, int] | None = None,
) -> FigureSpec | None:
    """Describe accuracy, loss or another metric: panels for the test set and for training, or one panel for
    one setting.
    """
    seen = {column for run in chain(*groups.values()) for column in run.curve.columns}
    splits = ("test", "validation", "train")
    columns = [c for c in SCORES.get(metric, [f"{split}_{metric}" for split in splits]) if c in seen]
    if not columns:
        return None
    others = [column for column in columns if column.startswith(("train", "batch"))][: int(training)]
    colours, captions = colours or assign_colours(groups), set[str]()
    shown = [columns] if len(groups) == 1 else [[column] for column in columns[:1] + others]
    views = {
        axis: [build_curve_panel(metric, groups, axis, one, captions, colours) for one in shown]
        for axis in against
        if find_largest(axis, groups) is not None
    }
    if not views:
        return None
    return FigureSpec(
        metric,
        metric.capitalize(),
        note=NOTES.get(metric, f"{metric} on the test set."),
        caption=join_captions(captions),
        views=views,
        group="curves",
        size=(6.5 if len(shown) == 1 else 9, 3.8),
        share_y=True,
    )


def build_curve_panel(
    metric: str,
    groups: Groups,
    axis: str,
    columns: Sequence[str],
    captions: set[str],
    colours: Mapping[str, int],
) -> Panel:
    """Return a panel with a line per setting, or of one setting with a line per column of the curve."""
    label, divisor = format_progress(axis, groups)
    words = [column.replace("_", " ") for column in columns]
    alone, first = len(groups) == 1, next(iter(groups.values()))
    tables = {
        word if alone else name: [select_curve(run, axis, column, divisor) for run in runs]
        for name, runs in groups.items()
        for column, word in zip(columns, words, strict=True)
    }
    start = next(iter(colours.values()))
    places = {name: start + len(COLOURS) * n for n, name in enumerate(tables)} if alone else colours
    mixed = tables.keys() if alone and find_mixed(groups) else find_mixed(groups)
    is_accuracy, name = metric == "accuracy", words[0] if len(columns) == 1 else metric
    marks = draw_groups(tables, mixed, captions, places, 100.0 if is_accuracy else np.inf)
    kept = select_converged(tables, [first] * len(tables) if alone else groups.values())
    y = Axis(f"{name} (%)") if is_accuracy else choose_scale(name, marks, kept, captions)
    return Panel(marks, Axis(label), y)


def list_metrics(runs: Iterable[RunData]) -> list[str]:
    """Return the metrics in the curves of some runs, besides accuracy and loss."""
    found = dict.fromkeys(column for run in runs for column in run.curve.columns)
    tests = [column for column in found if column.startswith("test_")]
    return [column.removeprefix("test_") for column in tests if column not in chain(*SCORES.values())]


def select_curve(run: RunData, axis: str, column: str, divisor: float = 1.0) -> pl.DataFrame:
    """Return the finite points of a run's curve as columns x and y; x is divided by `divisor`."""
    curve = add_bytes(run.curve)
    if not {axis, column} <= set(curve.columns):
        return pl.DataFrame(schema={"x": pl.Float64, "y": pl.Float64})
    x = pl.col(axis) if divisor == 1 else pl.col(axis) / divisor
    points = curve.select(x=x, y=column).filter(pl.col("x").is_finite() & pl.col("y").is_finite())
    return thin_rows(points, MOST_POINTS)


def add_bytes(curve: pl.DataFrame) -> pl.DataFrame:
    """Return a curve with the column `bytes`: messages and models, if the record counted them."""
    if not {"bytes_up", "bytes_down"} <= set(curve.columns):
        return curve
    return curve.with_columns(bytes=pl.col("bytes_up") + pl.col("bytes_down"))


def find_largest(axis: str, groups: Groups) -> float | None:
    """Return the largest value on an axis of progress; None if no curve has it."""
    curves = (add_bytes(run.curve) for run in chain(*groups.values()))
    found = (curve[axis].max() for curve in curves if axis in curve.columns)
    return max((float(value) for value in found if value is not None), default=None)  # type: ignore[arg-type]


def has_diverged(run: RunData) -> bool:
    """Return whether a run ended without converging; a run that continues has not."""
    return run.summary.get("converged") is False


def thin_rows(table: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return at most so many rows, evenly chosen, the first and last among them."""
    rows = np.unique(np.linspace(0, len(table) - 1, min(most, len(table))).astype(int))
    return table.select(pl.all().gather(rows))


def find_mixed(groups: Groups) -> set[str]:
    """Return the groups in which only some seeds converged: their mean would describe none of the runs."""
    converged = {name: {bool(run.summary.get("converged")) for run in runs} for name, runs in groups.items()}
    return {name for name, found in converged.items() if len(found) > 1}


def draw_groups(
    tables: Mapping[str, Sequence[pl.DataFrame]],
    mixed: Collection[str],
    captions: set[str],
    colours: Mapping[str, int],
    highest: float = np.inf,
) -> list[Mark]:
    """Return a line per group, with a confidence band from three seeds on; add captions that say so."""
    marks: list[Mark] = []
    for name, seeds in tables.items():
        colour = colours[name]
        known = [table for table in seeds if len(table)]
        aligned = align_seeds(known) if len(known) >= FEWEST_SEEDS and name not in mixed else None
        if aligned is not None:
            x, values = aligned
            found = [mean_interval(column) for column in values.T]
            means, (below, above) = np.array([one.mean for one in found]), error_bars(found, highest)
            band = None if len(x) == 1 else (means - below, means + above)
            error = (below, above) if len(x) == 1 else None
            marks.append(Line(x, means, name, colour, band=band, error=error))
            captions.add("bands: 95 % confidence interval of the mean over seeds")
            continue
        for number, table in enumerate(known):
            width, label = 1.6 if len(known) == 1 else 0.8, "" if number else name
            marks.append(Line(table["x"], table["y"], label, colour, width=width, group=name))
        if len(known) > 1:
            captions.add("thin lines: one seed each (under three seeds, or only some converged)")
    return marks


def align_seeds(tables: Sequence[pl.DataFrame]) -> tuple[Array, Array] | None:
    """Interpolate seeds onto a common grid; return the grid and a row of values per seed."""
    places = [table["x"].to_numpy().astype(float) for table in tables]
    values = [table["y"].to_numpy() for table in tables]
    if all(len(place) == len(places[0]) and np.allclose(place, places[0]) for place in places):
        return places[0], np.array(values)
    if all(len(place) == 1 for place in places):
        return np.mean(places, axis=0), np.array(values)
    low, high = max(place[0] for place in places), min(place[-1] for place in places)
    if low >= high:
        return None
    grid = np.linspace(low, high, GRID_POINTS)
    pairs = zip(places, values, strict=True)
    return grid, np.array([np.interp(grid, place, value) for place, value in pairs])


def join_captions(captions: Iterable[str]) -> str:
    text = "; ".join(sorted(captions))
    return f"{text[0].upper()}{text[1:]}." if text else ""


def select_converged(
    tables: Mapping[str, Sequence[pl.DataFrame]], groups: Iterable[Sequence[RunData]]
) -> Array:
    """Return the values of the runs that converged; of all runs if none did."""
    pairs = [
        pair
        for seeds, runs in zip(tables.values(), groups, strict=True)
        for pair in zip(seeds, runs, strict=True)
    ]
    kept = [table for table, run in pairs if not has_diverged(run)] or [table for table, _ in pairs]
    return np.concatenate([table["y"].to_numpy() for table in kept] or [np.empty(0)])


def choose_scale(
    label: str, marks: Sequence[Mark], kept: Array | None = None, captions: set[str] | None = None
) -> Axis:
    """Return a logarithmic axis if a linear one would show only the largest values.

    The axis ends where the `kept` values do if others go far beyond: a diverged run would hide the others.
    """
    drawn = np.array([value for mark in marks if isinstance(mark, Line) for value in mark.y])
    kept = drawn if kept is None else kept
    values = kept[kept > 0]
    if not values.size:
        return Axis(label)
    top = float(values.max())
    cut = bool(drawn.size) and float(drawn.max()) > BEYOND * top
    if cut and captions is not None:
        captions.add("a line that leaves the figure is a run that diverged")
    if top > WIDE * float(np.median(values)):
        low, high = 0.8 * float(values.min()), 1.5 * top if cut else None
        return Axis(f"{label} (log scale)", "log", low=low, high=high)
    margin = 0.05 * (top - float(kept.min()))
    return (
        Axis(label, low=float(kept.min()) - margin, high=top + 2 * margin) if cut and margin else Axis(label)
    )


def format_time(runs: Iterable[RunData]) -> str:
    """Return the label of a time axis: virtual time, wall-clock time, or both."""
    engines = {run.settings.get("engine", "simulator") for run in runs}
    if engines <= {"simulator"}:
        return "virtual time (s)"
    return "time (s; virtual and wall-clock)" if "simulator" in engines else "wall-clock time (s)"


def format_progress(axis: str, groups: Groups) -> tuple[str, float]:
    """Return the label of an axis of progress, and what its values are divided by."""
    if axis == "bytes":
        largest = find_largest(axis, groups) or 0.0
        unit, divisor = next((one for one in BYTES if largest >= one[1]), BYTES[-1])
        return f"data sent, up and down ({unit})", divisor
    names = {"seconds": format_time(chain(*groups.values())), "gradients": "gradients of all workers"}
    return names.get(axis, axis), 1.0


def build_arrival_panel(
    groups: Groups,
    column: str,
    label: str,
    captions: set[str],
    axis: str = "seconds",
    colours: Mapping[str, int] | None = None,
) -> Panel:
    """Return a panel with the means of a column of the arrivals over the run."""
    shown, divisor = format_progress(axis, groups)
    tables = {
        name: [average_arrivals(add_progress(run), axis, column, divisor) for run in runs]
        for name, runs in groups.items()
    }
    marks = draw_groups(tables, find_mixed(groups), captions, colours or assign_colours(groups))
    kept = select_converged(tables, groups.values())
    return Panel(marks, Axis(shown), choose_scale(label, marks, kept, captions))


def add_progress(run: RunData) -> pl.DataFrame:
    """Return the arrivals with the progress of the run in every unit of AGAINST."""
    arrivals = run.jobs.filter(pl.col("decision") != "cancelled")
    gradients = pl.int_range(1, pl.len() + 1)
    sent = find_largest("bytes", {"": [run]}) or 0.0
    return arrivals.with_columns(
        seconds="time",
        updates=pl.col("version") + pl.col("staleness"),
        gradients=gradients,
        epochs=gradients * (float(run.summary.get("epochs") or 0.0) / max(1, len(arrivals))),
        bytes=gradients * (sent / max(1, len(arrivals))),
    )


def average_arrivals(arrivals: pl.DataFrame, axis: str, column: str, divisor: float = 1.0) -> pl.DataFrame:
    """Return the means of neighbouring arrivals as x and y, at most GRID_POINTS of them."""
    x = pl.col(axis) if divisor == 1 else pl.col(axis) / divisor
    known = arrivals.select(x=x, y=column).filter(pl.col("y").is_finite())
    each = -(-max(1, len(known)) // GRID_POINTS)
    bins = (pl.int_range(pl.len()) // each).alias("bin")
    return known.group_by(bins, maintain_order=True).agg(pl.col("x", "y").mean()).select("x", "y")


def build_gap_figure(groups: Groups, against: Sequence[str] = ("seconds",)) -> FigureSpec:
    """Describe staleness and gap: the RMSE between the models at which a gradient was computed and used."""
    captions = {f"means over 1/{GRID_POINTS} of the run"}
    columns = {"gap": "gap (RMSE of the weights)", "staleness": "staleness (updates)"}
    views = {
        axis: [
            build_arrival_panel(groups, column, label, captions, axis) for column, label in columns.items()
        ]
        for axis in against
    }
    return FigureSpec("gap", "Gap and staleness", caption=join_captions(captions), views=views, size=(9, 3.8))


def build_staleness_curve(groups: Groups, colours: Mapping[str, int] | None = None) -> FigureSpec:
    """Describe the mean staleness over time."""
    captions = set[str]()
    panel = build_arrival_panel(groups, "staleness", "staleness (updates)", captions, colours=colours)
    note = "The mean over neighbouring arrivals."
    return FigureSpec("staleness-time", "Staleness over time", [panel], note, join_captions(captions))


def build_norm_figure(groups: Groups, colours: Mapping[str, int] | None = None) -> FigureSpec:
    """Describe the Euclidean norms of gradients and weights over time."""
    captions = set[str]()
    views = {
        f"{name}s": [
            build_arrival_panel(groups, f"{name}_norm", f"L2 norm of the {name}s", captions, colours=colours)
        ]
        for name in ("gradient", "weight")
    }
    note = "Euclidean norms. Norms that keep growing are the first sign of divergence."
    return FigureSpec(
        "norms", "Norms of gradients and weights", note=note, caption=join_captions(captions), views=views
    )
