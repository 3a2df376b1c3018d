"""Tables that are not a grid of accuracies: EPFL's Table I and its log, ASU's Table 13."""

import math

import polars as pl

from straggler.analysis.intervals import interval
from straggler.analysis.markdown import markdown_table
from straggler.studies.asu_numbers import ABLATIONS, BASELINES
from straggler.studies.epfl_numbers import LOGGED, REPORT

__all__ = ["asu_tables", "epfl_tables"]

Titled = tuple[str, str]  # a caption, a table in Markdown


def epfl_tables(summaries: pl.DataFrame) -> list[Titled]:
    return [*class_report(summaries), *logged(summaries)]


def class_report(summaries: pl.DataFrame) -> list[Titled]:
    """Table I: scores by class, a line per seed, since every seed deals the labels anew."""
    run = {"table": "II", "protocol": "as coded", "row": "one 90 ms", "column": "10 workers, labels"}
    mine = summaries.filter(**run).sort("seed")
    if mine.is_empty():
        return []
    rows = []
    for score, source in REPORT.items():
        rows.append([f"{score} (%)", "source", *map(str, source)])
        for seed, scores in mine.select("seed", score).iter_rows():
            rows.append([f"{score} (%)", f"seed {seed}", *(f"{100 * value:.0f}" for value in scores)])
    caption = "Table I: 10 workers, labels split, 90 ms on one worker, as coded; by class"
    return [(caption, markdown_table(["", "", *map(str, range(10))], rows))]


def logged(summaries: pl.DataFrame) -> list[Titled]:
    """The log in full: accuracies, losses and the time on the machine."""
    mine = summaries.filter(pl.col("table").is_in(["log", "log-cnn"]))
    if mine.is_empty():
        return []
    rows = []
    for key, runs in mine.group_by("row", "column", "protocol", maintain_order=True):
        rows.append([*map(str, key), *(shown(runs, fact) for fact in LOGGED)])
        if key[2] == "as coded":
            rows.append(
                [str(key[0]), str(key[1]), "source", *(number(runs[f"source_{f}"][0]) for f in LOGGED)]
            )
    columns = ["", "", "", *(fact.replace("_", " ") for fact in LOGGED)]
    return [
        (
            "The log of five workers: accuracies (%), losses, seconds on the machine",
            markdown_table(columns, rows),
        )
    ]


def shown(runs: pl.DataFrame, fact: str) -> str:
    values = runs[fact].drop_nulls().to_list()
    return number(interval(values).mean) if values else "–"


def number(value: float | None) -> str:
    return (
        "–"
        if value is None or not math.isfinite(value)
        else f"{value:,.4g}"
        if value < 10
        else f"{value:,.2f}"
    )


def asu_tables(summaries: pl.DataFrame) -> list[Titled]:
    """Table 13: the most accurate change to each baseline, theirs and ours, as coded."""
    rows = []
    for table, (dataset, kind, changes) in ABLATIONS.items():
        mine = summaries.filter(pl.col("table") == table, pl.col("protocol") == "as coded")
        if mine["row"].n_unique() < len(changes):
            continue
        best = mine.group_by("row").agg(pl.col("value").mean(), pl.col("seconds").mean()).sort("value")
        row, accuracy, seconds = best.row(-1)
        theirs = max(changes, key=lambda change: change[1])
        said = ", ".join(f"{key} = {value}" for key, value in theirs[0].items())
        rows.append([dataset, kind, f"{BASELINES[dataset][kind][0]:.2f}", f"{said}: {theirs[1]:.2f}"])
        rows[-1] += [f"{row}: {accuracy:.2f}", f"{seconds:.0f} s"]
    columns = [
        "data",
        "baseline",
        "source: baseline",
        "source: best change",
        "ours: best change",
        "virtual time",
    ]
    return (
        [
            (
                "Table 13: the most accurate change to each baseline (test accuracy, %), as coded",
                markdown_table(columns, rows),
            )
        ]
        if rows
        else []
    )
