"""How runs went: accuracy, loss and gap over time, updates, epochs or gradients."""

from collections.abc import Mapping
from pathlib import Path

import polars as pl
from matplotlib.axes import Axes

from straggler.analysis.style import drawn, line, panels, place_legend, plain_log
from straggler.record import Record

__all__ = ["AGAINST", "accuracy_figure", "gap_figure", "loss_figure", "thinned", "time_label"]

AGAINST = ("seconds", "updates", "epochs", "gradients")
POINTS = 120  # of a curve made of arrivals; more are averaged


def time_label(records: Mapping[str, Record]) -> str:
    """Virtual time, wall time, or both."""
    engines = {record.settings.get("engine", "simulator") for record in records.values()}
    if engines == {"simulator"}:
        return "virtual time (s)"
    return "time (s; virtual and wall)" if "simulator" in engines else "wall time (s)"


def axis_label(against: str, records: Mapping[str, Record]) -> str:
    return time_label(records) if against == "seconds" else against


def accuracy_figure(records: Mapping[str, Record], path: Path, against: str = "seconds") -> Path:
    """Test accuracy; training accuracy too where it was measured."""
    return curve_figure(records, path, against, "accuracy", "accuracy (%)")


def loss_figure(records: Mapping[str, Record], path: Path, against: str = "seconds") -> Path:
    """Test loss and the loss of the batches since the evaluation before."""
    return curve_figure(records, path, against, "loss", "loss (log scale)")


def curve_figure(records: Mapping[str, Record], path: Path, against: str, what: str, label: str) -> Path:
    """A panel for the test set, and one for what was seen in training if there is something."""
    seen = {column for record in records.values() for column in record.curve.columns}
    wanted = [f"test_{what}", *(["train_accuracy"] if what == "accuracy" else ["train_loss", "batch_loss"])]
    chosen = [column for column in wanted if column in seen][:2]
    with drawn(path, 4.5 * max(1, len(chosen)), 3.8) as figure:
        every = panels(figure, 1, max(1, len(chosen)), sharey=True)
        for axes, column in zip(every, chosen, strict=False):
            draw_curves(axes, records, column, against)
            axes.set(xlabel=axis_label(against, records), title=column.replace("_", " "))
            if what == "loss":
                plain_log(axes)
        every[0].set_ylabel(label)
        place_legend(figure, every[0])
    return path


def draw_curves(axes: Axes, records: Mapping[str, Record], column: str, against: str) -> None:
    for position, (name, record) in enumerate(records.items()):
        curve = record.curve
        if column in curve.columns:
            known = curve.filter(pl.col(column).is_not_null())
            axes.plot(known[against], known[column], label=name, linewidth=1.6, **line(position))


def gap_figure(records: Mapping[str, Record], path: Path, against: str = "seconds") -> Path:
    """Gap (RMSE between the model a gradient was computed at and the model it met) and staleness."""
    with drawn(path, 9, 3.8) as figure:
        gap, staleness = panels(figure, 1, 2)
        for position, (name, record) in enumerate(records.items()):
            table = thinned(progressed(record), against, ["gap", "staleness"])
            gap.plot(table[against], table["gap"], label=name, linewidth=1.4, **line(position))
            staleness.plot(table[against], table["staleness"], linewidth=1.4, **line(position))
        label = axis_label(against, records)
        gap.set(
            xlabel=label, ylabel="gap (RMSE of the weights)", title=f"Gap (means over 1/{POINTS} of the run)"
        )
        staleness.set(xlabel=label, ylabel="staleness (updates)", title="Staleness")
        place_legend(figure, gap)
    return path


def progressed(record: Record) -> pl.DataFrame:
    """Arrivals with how far the run was, in every unit that `AGAINST` names."""
    arrivals = record.arrivals.filter(pl.col("decision") != "cancelled")
    epochs = float(record.summary.get("epochs") or 0.0)
    gradients = pl.int_range(1, pl.len() + 1)
    return arrivals.with_columns(
        seconds="time",
        updates=pl.col("version") + pl.col("staleness"),
        gradients=gradients,
        epochs=gradients * (epochs / max(1, len(arrivals))),
    )


def thinned(arrivals: pl.DataFrame, against: str, columns: list[str]) -> pl.DataFrame:
    """Means over equal numbers of neighbours, so that at most POINTS are drawn."""
    each = -(-max(1, len(arrivals)) // POINTS)
    place = (pl.int_range(pl.len()) // each).alias("place")
    means = [pl.col(column).mean() for column in (against, *columns)]
    return arrivals.group_by(place, maintain_order=True).agg(means)
