"""Tables that are not a grid of accuracies: EPFL's Table I and its log, ASU's Table 13."""

import math

import polars as pl

from straggler.analysis.intervals import mean_interval
from straggler.analysis.tables import format_markdown_table
from straggler.reproduction.papers.asu.numbers import ABLATIONS, BASELINES, IMPROVEMENTS, change_name
from straggler.reproduction.papers.epfl.numbers import LOGGED, REPORT

Titled = tuple[str, str]  # a caption, a table in Markdown
BASELINE_TABLES = {"mnist": "4", "cifar10": "5", "fashion-mnist": "6"}


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
    return [(caption, format_markdown_table(["", "", *map(str, range(10))], rows))]


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
            format_markdown_table(columns, rows),
        )
    ]


def shown(runs: pl.DataFrame, fact: str) -> str:
    """The mean over the seeds, without those that were lost if some were not."""
    values = runs.filter(pl.col("converged") | ~pl.col("converged").any())[fact].drop_nulls().to_list()
    return number(mean_interval(values).mean) if values else "–"


def number(value: float | None) -> str:
    return (
        "–"
        if value is None or not math.isfinite(value)
        else f"{value:,.4g}"
        if value < 10
        else f"{value:,.2f}"
    )


def asu_tables(summaries: pl.DataFrame) -> list[Titled]:
    """Table 13: what the report calls the best change to each baseline, theirs and ours, as coded."""
    coded = summaries.filter(pl.col("protocol") == "as coded")
    rows = [row for table in ABLATIONS if (row := improvement(coded, table))]
    columns = [
        "data",
        "baseline",
        "is",
        "changes",
        "source: before → after",
        "ours",
        "ours: the most accurate change",
    ]
    caption = "Table 13: the report's best change to each baseline; test accuracy (%), as coded"
    return [(caption, format_markdown_table(columns, rows))] if rows else []


def improvement(coded: pl.DataFrame, table: str) -> list[str]:
    """A row, if every change of that table has been run."""
    dataset, kind, changes = ABLATIONS[table]
    mine = means(coded.filter(pl.col("table") == table))
    baseline = means(coded.filter(pl.col("table") == BASELINE_TABLES[dataset])).get(f"baseline {kind}")
    if len(mine) < len(changes) or baseline is None:
        return []
    chosen, accuracy, _ = changes[-1]
    best = max(mine, key=lambda row: mine[row])
    source = f"{BASELINES[dataset][kind][0]:.2f} → {accuracy:.2f}"
    ours = f"{baseline:.2f} → {mine[change_name(chosen)]:.2f}"
    return [
        *(dataset, kind, IMPROVEMENTS[table], change_name(chosen), source, ours),
        f"{best}: {mine[best]:.2f}",
    ]


def means(runs: pl.DataFrame) -> dict[str, float]:
    """Mean accuracy over the seeds, by row."""
    known = runs.filter(pl.col("value").is_not_null())
    return dict(known.group_by("row", maintain_order=True).agg(pl.col("value").mean()).iter_rows())
