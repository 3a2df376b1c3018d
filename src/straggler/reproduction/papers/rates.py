"""Settings that studies tune: read from rates.toml, and chosen by validation accuracy from the tuning runs.

`python -m straggler.reproduction.papers.rates unequal` chooses again from results/unequal. A study's table
`tuning` has a cell for each candidate, with the labels protocol, method, workers or variant if they matter,
and lr; what is chosen for one combination of the labels other than variant and lr has a row in rates.toml.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import tomlkit

from straggler.reproduction.study import Study, load_study
from straggler.running.atomic_files import write_text_atomically
from straggler.running.untrusted_files import read_toml
from straggler.sweeps.summaries import read_summaries

TUNING = "tuning"  # the table with the candidates
FILE = "rates.toml"
SCORE = "validation_accuracy"
PLACES = ("protocol", "method", "workers")  # labels that say for what a rate is chosen
CANDIDATE = ("variant", "lr")  # labels of a candidate
Rates = Mapping[tuple[Any, ...], Mapping[str, Any]]

HEADER = """\
What the tuning runs chose: for each protocol and method, the candidate with the best validation accuracy.
Written by `python -m straggler.reproduction.papers.rates {study}` from the table `tuning`.
`at_edge`: the chosen rate is the smallest or largest that was tried. `seeds`: of the tuning runs."""


def read_rates(folder: Path) -> Rates:
    """Return the chosen candidates by protocol, method and, where they have some, workers."""
    file = folder / FILE
    rows = read_toml(file).get("rate", []) if file.is_file() else []
    return {tuple(row[place] for place in PLACES if place in row): row for row in rows}


def choose_rates(runs: pl.DataFrame) -> list[dict[str, Any]]:
    """Return a row per protocol, method and number of workers: the best candidate, and its accuracy.

    Only candidates with as many seeds as the best-covered one count. Between equals, the smaller rate wins.
    """
    if runs.is_empty():
        return []
    places = [place for place in PLACES if place in runs.columns and runs[place].is_not_null().any()]
    labels = [label for label in CANDIDATE if label in runs.columns and runs[label].is_not_null().any()]
    scores = runs.group_by(*places, *labels).agg(
        pl.col(SCORE).fill_null(0).fill_nan(0).mean(), seeds=pl.col("seed").n_unique()
    )
    scores = scores.filter(pl.col("seeds") == pl.col("seeds").max().over(places))
    ends = scores.group_by(places).agg(lowest=pl.col("lr").min(), highest=pl.col("lr").max())
    best = scores.sort(SCORE, "lr", descending=[True, False]).group_by(places, maintain_order=True).first()
    chosen = best.join(ends, on=places).sort(places)
    rows = []
    for row in chosen.iter_rows(named=True):
        at_edge = row["lr"] in (row.pop("lowest"), row.pop("highest"))
        known = {name: value for name, value in row.items() if value is not None}
        rows.append(known | {SCORE: round(row[SCORE], 2), "at_edge": at_edge})
    return rows


def write_rates(study: Study, results: Path) -> list[dict[str, Any]]:
    """Choose from the tuning runs in a folder of results, and write the choices beside the study."""
    summaries = read_summaries(results)
    rows = choose_rates(summaries.filter(table=TUNING) if len(summaries) else summaries)
    document = tomlkit.document()
    for line in HEADER.format(study=study.name).splitlines():
        document.add(tomlkit.comment(line))
    document["rate"] = rows
    write_text_atomically(study.folder / FILE, tomlkit.dumps(document))
    return rows


def main(arguments: Sequence[str]) -> None:
    """Choose the rates of the studies that are named, and print them."""
    for name in arguments:
        study = load_study(name)
        for row in write_rates(study, Path("results") / study.name):
            print(", ".join(f"{key}={value}" for key, value in row.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
