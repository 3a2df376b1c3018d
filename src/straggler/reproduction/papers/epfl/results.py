"""Results of the EPFL study that are not a grid of accuracies: Table I, the log, figures 1 to 5 and 7."""

import math
from pathlib import Path

import polars as pl

from straggler.analysis.figures.description import Axis, FigureSpec, Line, Panel
from straggler.analysis.figures.matplotlib_renderer import write_figure
from straggler.analysis.tables import format_markdown_table
from straggler.reproduction.papers.epfl.landscape import draw_landscapes
from straggler.reproduction.study import read_numbers
from straggler.sweeps.summaries import read_series

LOGGED = ("train_accuracy", "train_loss", "test_accuracy", "test_loss", "host_seconds")
SCORES = ("precision", "recall", "f1")
COURSES = {"one": "90 ms on all, 180 on one", "async": "no delay", "sync": "synchronous"}
TEN = {"table": "II", "protocol": "as coded", "workers": 10, "split": "labels"}


def make_more_tables(runs: pl.DataFrame) -> list[tuple[str, str]]:
    """Return Table I and the log as captions and Markdown."""
    return [*make_class_table(runs), *make_log_table(runs)]


def make_class_table(runs: pl.DataFrame) -> list[tuple[str, str]]:
    """Return Table I: scores by class, one line per seed, since every seed deals the labels differently."""
    mine = runs.filter(**TEN, mode="one", delay_ms=90).sort("seed")
    if mine.is_empty():
        return []
    classes = [row for row in read_numbers(Path(__file__).parent) if row["table"] == "I"]
    rows = []
    for score in SCORES:
        rows.append([f"{score} (%)", "source", *(str(row[score]) for row in classes)])
        for seed, scores in mine.select("seed", score).iter_rows():
            rows.append([f"{score} (%)", f"seed {seed}", *(f"{100 * value:.0f}" for value in scores)])
    caption = "Table I: 10 workers, labels split, 90 ms on one worker, as coded; by class"
    columns = ["", "", *(str(row["class"]) for row in classes)]
    return [(caption, format_markdown_table(columns, rows))]


def make_log_table(runs: pl.DataFrame) -> list[tuple[str, str]]:
    """Return the log in full: means over the seeds, without runs that did not converge if others did."""
    mine = runs.filter(pl.col("table").is_in(["log", "log-cnn"]))
    rows = []
    for key, some in mine.group_by("row", "column", "protocol", maintain_order=True):
        counting = some.filter(pl.col("converged") | ~pl.col("converged").any())
        rows.append([*map(str, key), *(format_fact(counting[fact].drop_nulls().mean()) for fact in LOGGED)])
        if key[2] == "as coded":
            source = [some["source" if fact == "test_accuracy" else f"source_{fact}"][0] for fact in LOGGED]
            rows.append([str(key[0]), str(key[1]), "source", *map(format_fact, source)])
    columns = ["", "", "", *(fact.replace("_", " ") for fact in LOGGED)]
    caption = "The log of five workers: accuracies (%), losses, seconds on the machine"
    return [(caption, format_markdown_table(columns, rows))] if rows else []


def format_fact(value: object) -> str:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "–"
    return f"{value:,.4g}" if value < 10 else f"{value:,.2f}"


def draw_figures(runs: pl.DataFrame, results: Path) -> list[tuple[Path, str]]:
    """Draw figures 3 to 5, the course of three runs, and the landscapes."""
    courses, panels, points = [], list[Panel](), read_series(results, "courses")
    for mode, title in COURSES.items():
        ids = runs.filter(**TEN, mode=mode, seed=0).filter(
            pl.col("delay_ms") == (90 if mode == "one" else 0)
        )["id"]
        course = points.filter(pl.col("id").is_in(ids.to_list())) if len(points) else points
        panels += make_course_panels(course.sort("time"), f"{title} (as coded)") if len(course) else []
    if panels:
        size = (10, 2.6 * len(panels) / 3)
        spec = FigureSpec("courses", "", panels, columns=3, size=size, legend="below")
        caption = (
            "Figures 3 to 5: loss, weights, batches of each worker; ten workers, labels split, one seed."
        )
        courses = [(write_figure(spec, results / "courses.png"), caption)]
    return courses + draw_landscapes(results)


def make_course_panels(course: pl.DataFrame, title: str) -> list[Panel]:
    """Return the batch loss by worker, the norm of the weights, and the batches by worker, over time."""
    time = Axis("virtual time (s)")
    by_worker = sorted(course.group_by("worker"), key=lambda group: -int(str(group[0][0])))  # worker 0 on top
    panels = {}
    for fact, label in {"loss": "batch loss", "batches": "batches so far"}.items():
        lines = [
            Line(mine.sort("time")["time"], mine.sort("time")[fact], "the others", 0, "solid", 0.5)
            if worker
            else Line(mine.sort("time")["time"], mine.sort("time")[fact], "worker 0", 1, "solid", 1.4)
            for (worker,), mine in by_worker
        ]
        panels[fact] = Panel(lines, time, Axis(label), title=title if fact == "loss" else "")
    norm = Line(course["time"], course["weight_norm"], colour=2, dash="solid")
    return [panels["loss"], Panel([norm], time, Axis("norm of the weights")), panels["batches"]]
