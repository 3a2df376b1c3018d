"""The EPFL study's label results against the variation of batch times, which the report does not give.

The main study uses a coefficient of variation of 0.2. Here it runs from 0 to 0.3, as coded. notes.md has the
estimate from the report's log, which `examples/epfl_jitter.py` prints.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from straggler.analysis.figures.description import Axis, FigureSpec, HLine, Line, Mark, Panel
from straggler.analysis.figures.matplotlib_renderer import write_figure
from straggler.reproduction.papers.epfl.study import COMPUTE, make_settings
from straggler.reproduction.study import Labels, Scale, Study
from straggler.sweeps.grid import Cell

FOLDER = Path(__file__).parent
PROTOCOL = "as coded"
JITTERS = (0.2, 0.02, 0.1, 0.05, 0.3, 0.0)  # the order of the runs
EXPERIMENTS: dict[str, Labels] = {  # cells of the report that depend on it, the clearest first
    "II, 5 workers": {"table": "II", "mode": "async", "delay_ms": 0, "workers": 5, "momentum": 0.9},
    "V, 10 workers, m .5": {"table": "V", "mode": "gaussian", "delay_ms": 30, "workers": 10, "momentum": 0.5},
    "II, 10 workers": {"table": "II", "mode": "async", "delay_ms": 0, "workers": 10, "momentum": 0.9},
    "V, 10 workers, m 0": {"table": "V", "mode": "gaussian", "delay_ms": 30, "workers": 10, "momentum": 0.0},
    "VII, 5 workers, m .9": {
        "table": "VII",
        "mode": "gaussian",
        "delay_ms": 30,
        "workers": 5,
        "momentum": 0.9,
    },
}


def make_cells(scale: Scale) -> Iterator[Cell]:
    for name, place in EXPERIMENTS.items():
        for jitter in JITTERS:
            settings = make_settings(PROTOCOL, {**place, "split": "labels", "model": "lenet5"})
            seconds = COMPUTE[int(place["workers"] or 0)]
            law = f"gamma(mean={seconds}, cv={jitter})" if jitter else f"constant(seconds={seconds})"
            labels: Labels = {"table": "jitter", "protocol": PROTOCOL, "experiment": name, "jitter": jitter}
            yield Cell(labels, settings | {"compute": law})


def draw_figures(runs: pl.DataFrame, results: Path) -> list[tuple[Path, str]]:
    """Draw accuracy against jitter, one panel per experiment, with the report's number as a line."""
    panels = []
    for name in EXPERIMENTS:
        mine = runs.filter(experiment=name)
        if len(mine):
            score = pl.col("test_accuracy")
            found = mine.group_by("jitter").agg(mean=score.mean(), low=score.min(), high=score.max())
            found = found.sort("jitter")
            error = found["mean"] - found["low"], found["high"] - found["mean"]
            line = Line(found["jitter"], found["mean"], "ours", marker="circle", error=error)
            known = mine["source"].drop_nulls().to_list()[:1]
            marks: list[Mark] = [line, *(HLine(source, label="the report") for source in known)]
            y = Axis("test accuracy (%)", low=0, high=100)
            panels.append(Panel(marks, Axis("coefficient of variation", low=-0.02, high=0.32), y, title=name))
    if not panels:
        return []
    size = (1.2 + 2.6 * len(panels), 3.2)
    spec = FigureSpec("jitter", "", panels, size=size, legend="below", share_y=True)
    caption = "Test accuracy against the variation of batch times, mean and range over the seeds."
    return [(write_figure(spec, results / "jitter.png"), caption)]


STUDY = Study(
    folder=FOLDER,
    title="EPFL's label results against the variation of batch times",
    source="Lamour, Reategui and Junod, EPFL 2023",
    make_cells=make_cells,
    seeds=5,
    quick=lambda labels: labels["jitter"] in (0.0, 0.2),
    quick_settings={"epochs": 0.05},
    compared={},
    figures=draw_figures,
)
