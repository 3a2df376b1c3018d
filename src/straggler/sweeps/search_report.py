"""What a sweep with `tune` reports about its searches: the trials, figures, and values on an edge."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import polars as pl

from straggler.analysis.figures.description import FigureSpec
from straggler.analysis.figures.search import build_outcome_figure, build_search_figure
from straggler.analysis.sweep_tables import SweepTable, format_metric
from straggler.sweeps.search import Search


def tabulate_trials(searches: Iterable[Search]) -> pl.DataFrame:
    """Return a row per trial of every search: labels, values, mean of the objective, interval and state."""
    tables = []
    for search in searches:
        labels = [pl.lit(value).alias(key) for key, value in search.labels.items()]
        if len(table := search.rank_trials()):
            tables.append(table.select(*labels, pl.all()))
    return pl.concat(tables, how="diagonal_relaxed") if tables else pl.DataFrame()


def format_trials(search: Search) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the trials of one search as text, the best trial first."""
    objective, keys = search.tuning.objective, list(search.space)
    digits = ".2f" if objective.column.endswith("_accuracy") else ".4g"
    rows = []
    for place, row in enumerate(search.rank_trials().iter_rows(named=True), start=1):
        finished = row["state"] == "finished"
        value = format_metric(row | {"nc": 0}, "objective", digits)
        state = "chosen" if row["is_best"] else row["state"]
        values = ["–" if row[key] is None else str(row[key]) for key in keys]
        rows.append([str(place) if finished else "", *values, value, str(row["seeds"]), state])
    return ["rank", *keys, objective.label, "seeds", ""], rows


def describe_choice(searches: Sequence[Search]) -> str:
    """Return how the values were chosen, and a sentence for each that lies on an edge."""
    lines = []
    for search in first_of_each_tuning(searches):
        names = ", ".join(search.space)
        lines.append(f"Chosen by {search.tuning.objective.label}, not by the test set: {names}.")
    for search in searches:
        name = f"{search.name}: " if search.name else ""
        lines += [f"{name}{edge}." for edge in search.find_edges()]
        if search.is_over and search.best is None:
            lines.append(f"{name}no trial has finished, so nothing was chosen.")
        elif search.best and search.best.result.score == search.tuning.objective.worst:
            lines.append(f"{name}no trial converged or reached the target; the first one was chosen.")
    return "\n\n".join(lines)


def build_search_figures(searches: Sequence[Search], table: SweepTable | None) -> list[FigureSpec]:
    """Describe the objective against each searched setting, and the results with the chosen values."""
    figures = []
    for number, first in enumerate(first_of_each_tuning(searches)):
        alike = [search for search in searches if search.tuning is first.tuning]
        trials = tabulate_trials(alike)
        if trials.is_empty():
            continue
        scales = {key: values.is_logarithmic for key, values in first.space.items()}
        figure = build_search_figure(trials, list(first.labels), scales, first.tuning.objective.label)
        figures.append(replace(figure, name=f"search-{number + 1}" if number else "search"))
    if table is not None and searches:
        searched = {key for search in searches for key in search.space}
        labels = [label for label in table.labels if label not in searched]
        outcome = build_outcome_figure(table.table, labels, f"test_{table.metric}")
        figures += [outcome] if outcome is not None else []
    return figures


def first_of_each_tuning(searches: Iterable[Search]) -> list[Search]:
    """Return the first search of each tuning; a sweep may have several tunings."""
    return list({id(search.tuning): search for search in reversed(list(searches))}.values())[::-1]
