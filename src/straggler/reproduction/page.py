"""A study's results from its summaries: tables, claims, figures, and a page that shows them."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import polars as pl

from straggler.analysis.study_figures import draw_comparison
from straggler.analysis.study_tables import FilledTable, build_time_rows, fill_table
from straggler.analysis.tables import format_markdown_table
from straggler.config.registry import InputError
from straggler.reproduction.claims import Judgement, Verdict, judge_claim
from straggler.reproduction.study import Scale, Study, find_label_columns
from straggler.running.atomic_files import write_text_atomically
from straggler.sweeps.grid import Cell, ThroughputCell
from straggler.sweeps.summaries import read_summaries

REHEARSAL = (
    "> **This is a rehearsal, not a result.** A few cells were trained very briefly with one seed, to check "
    "that everything works. No accuracy below says anything about the source, and no claim is judged: "
    "*rehearsed* only means that the contrast could be computed."
)
NOTATION = (
    "In the tables, our number is the mean over the seeds that converged ± the half-width of its 95 % "
    "confidence interval (Student's t). Intervals are shown from three seeds on. NC: did not converge. In "
    "the claims, a run that did not converge counts with the accuracy it has."
)
TIMES = {
    "seconds": (
        "Training time",
        "Virtual seconds; for the protocols processes and ray, seconds of our machine.",
    ),
    "host_seconds": (
        "Time on the machine",
        "The fastest seed. Two runs shared the machine, so this is an upper bound.",
    ),
}
COMPARED = (
    "Each cell: our mean over seeds against the source's number. Equal numbers lie on the line; NC is 10 %."
)


@dataclass(frozen=True)
class DrawnStudy:
    """The tables and verdicts of a study's results."""

    tables: list[FilledTable]
    judgements: list[Judgement]
    times: list[tuple[str, str, list[str], list[list[str]]]]  # title, note, columns, rows
    outdated: int  # rows of runs with other settings than the study has now
    coverage: str  # how many seeds each table has


def draw_study(study: Study, results: Path, scale: Scale = "default", rehearsal: bool = False) -> DrawnStudy:
    """Write the tables (CSV, LaTeX), the figures, claims.json, and a page with all of them."""
    summaries, command = read_summaries(results), format_study_command(study, scale, rehearsal)
    if summaries.is_empty():
        raise InputError(f"{results} has no summaries.parquet. Run {command} first.")
    cells, described = study.cells(scale), study.describe_cells(scale)
    outdated = 0 if rehearsal else count_outdated(summaries, cells)
    runs = place_runs(summaries, described)
    tables = [
        fill_table(name, table.caption, runs.filter(table=name), described.filter(table=name))
        for name, table in study.tables.items()
    ]
    judgements = judge_claims(study, runs, scale)
    if rehearsal:
        judgements = [replace(one, verdict="rehearsed") if one.measured else one for one in judgements]
    times = [(*texts, *build_time_rows(runs, fact, list(study.tables))) for fact, texts in TIMES.items()]
    coverage = describe_coverage(cells, runs)
    drawn = DrawnStudy(
        [table for table in tables if table.cells],
        judgements,
        [part for part in times if part[3]],
        outdated,
        coverage,
    )
    (results / "tables").mkdir(exist_ok=True)
    for table in drawn.tables:
        write_text_atomically(results / "tables" / f"{table.name}.csv", table.csv())
        write_text_atomically(results / "tables" / f"{table.name}.tex", table.latex())
    figures = draw_comparisons(study, runs, results) + (study.figures(runs, results) if study.figures else [])
    more = study.more_tables(runs) if study.more_tables else []
    write_text_atomically(
        results / "claims.json", json.dumps([encode_judgement(one) for one in judgements], indent=1)
    )
    parts = [f"# {study.title}", f"{study.source}. {count_runs(cells, runs)}. {NOTATION}", coverage]
    parts += [f"From these summaries: `{command} --draw`. From scratch: `{command}`."]
    parts += [REHEARSAL if rehearsal else format_outdated(outdated)]
    if judgements:
        counts = f"{count_verdicts(judgements)}."
        parts += ["## Claims", counts, format_markdown_table(*build_claim_rows(judgements))]
    parts += ["" if rehearsal else explain_verdicts(judgements), *format_tables(drawn, more)]
    parts += ["## Figures" if figures else ""]
    parts += [f"![{file.stem}]({file.name})\n\n{caption}" for file, caption in figures]
    parts += ["## Notes" if study.notes else "", study.notes]
    write_text_atomically(results / "README.md", "\n\n".join(part for part in parts if part) + "\n")
    return drawn


def place_runs(summaries: pl.DataFrame, cells: pl.DataFrame) -> pl.DataFrame:
    """Return the runs of the study's cells with their row, column, value, and the source's numbers."""
    labels = find_label_columns(cells)
    typed = [
        (pl.col(label) if label in summaries.columns else pl.lit(None)).cast(cells.schema[label]).alias(label)
        for label in labels
    ]
    known = summaries.with_columns(typed).drop(pl.selectors.matches("^(value|row|column|source.*)$"))
    joined = known.join(cells, on=labels, nulls_equal=True, maintain_order="left")
    metrics = [name for name in cells["metric"].unique() if name in joined.columns]
    choices = [pl.when(pl.col("metric") == name).then(pl.col(name)) for name in metrics]
    return joined.with_columns(value=pl.coalesce(*choices, pl.lit(None, pl.Float64))).drop("metric")


def count_outdated(summaries: pl.DataFrame, cells: Iterable[Cell]) -> int:
    """Count the rows of runs with other settings than the study has now."""
    labels = list(dict.fromkeys(label for cell in cells for label in cell.labels))
    if missing := [label for label in labels if label not in summaries.columns]:
        summaries = summaries.with_columns(pl.lit(None).alias(label) for label in missing)
    by = {tuple(cell.labels.get(label) for label in labels): cell for cell in cells}
    rows = summaries.select(*labels, "seed", "id").iter_rows()
    return sum(
        (cell := by.get(tuple(place))) is None or cell.experiment(seed).id != id for *place, seed, id in rows
    )


def format_outdated(outdated: int) -> str:
    many = "1 row is of a run" if outdated == 1 else f"{outdated} rows are of runs"
    return f"{many} with other settings than the study has now." if outdated else ""


def judge_claims(study: Study, runs: pl.DataFrame, scale: Scale) -> list[Judgement]:
    contrasts = study.contrasts(scale)
    return [judge_claim(claim, contrasts, runs, scale) for claim in study.read_claims(scale).claim]


def build_claim_rows(judgements: Iterable[Judgement]) -> tuple[list[str], list[list[str]]]:
    """Return the heads and rows of a table with one claim per row."""
    columns = ["claim", "verdict", "ours", "replicated if", "source", "seeds", "measured"]
    rows = []
    for one in judgements:
        unit = one.claim.unit_suffix
        ours = "–" if one.measured is None else one.measured.format(unit)
        theirs = "–" if one.said is None else f"{one.said:.2f}{unit}"
        seeds = "–" if one.measured is None else str(one.measured.interval.seeds or "–")
        rows.append(
            [one.claim.statement, one.verdict, ours, one.claim.bounds, theirs, seeds, one.claim.measured]
        )
    return columns, rows


def count_verdicts(judgements: Sequence[Judgement]) -> str:
    """Return how many claims have which verdict, as text."""
    counts = [(sum(one.verdict == verdict for one in judgements), verdict) for verdict in get_args(Verdict)]
    many = "1 claim" if len(judgements) == 1 else f"{len(judgements)} claims"
    return f"{many}: " + ", ".join(f"{count} {verdict}" for count, verdict in counts if count)


def encode_judgement(one: Judgement) -> dict[str, str | float]:
    """Return a claim for claims.json, without numbers that are unknown or infinite."""
    effect = one.measured and one.measured.interval
    numbers = {"effect": effect.mean, "low": effect.low, "high": effect.high} if effect else {}
    numbers |= {"least": one.claim.least, "most": one.claim.most}
    texts = {"statement": one.claim.statement, "source": one.claim.where, "verdict": one.verdict}
    known = {key: value for key, value in numbers.items() if math.isfinite(value)}
    return texts | {"cause": one.comment} | known


def explain_verdicts(judgements: Iterable[Judgement]) -> str:
    """Return the comments and the measured causes, claim by claim."""
    return "\n\n".join(
        "\n".join([f"**{one.claim.statement}** *{one.verdict}.* {one.comment}".rstrip(), *list_causes(one)])
        for one in judgements
        if one.causes or one.comment
    )


def format_account(judgements: Sequence[Judgement], coverage: str = "") -> str:
    """Return the claims as prose for a document; claims without comment or causes are in a table."""
    parts = [f"{count_verdicts(judgements)}. {coverage}".rstrip()]
    explained = [one for one in judgements if one.comment or one.causes]
    for one in explained:
        claim, unit, ours = one.claim, one.claim.unit_suffix, ""
        if one.measured is not None:
            ours = f" Ours: {one.measured.format(unit)} ({format_seeds(one.measured.interval.seeds)})."
        theirs = "" if one.said is None else f" Source: {one.said:.2f}{unit}."
        parts += [
            f"**{claim.statement}** ({claim.where})",
            f"{one.verdict.capitalize()}. Measured: {claim.measured}. "
            f"Replicated if {claim.bounds}.{ours}{theirs}",
            one.comment,
            "\n".join(list_causes(one)),
        ]
    if unexplained := [one for one in judgements if one not in explained]:
        parts += [
            "The other claims:" if explained else "",
            format_markdown_table(*build_claim_rows(unexplained)),
        ]
    return "\n\n".join(part for part in parts if part)


def list_causes(one: Judgement) -> list[str]:
    return [f"- {text}: {number.format()}" for text, number in one.causes]


def format_seeds(seeds: int) -> str:
    return "computed, not run" if seeds == 0 else "1 seed" if seeds == 1 else f"{seeds} seeds"


def draw_comparisons(study: Study, runs: pl.DataFrame, results: Path) -> list[tuple[Path, str]]:
    """Draw our numbers against the source's, one panel per table or per entry of `study.compared`."""
    wanted = {name: (name,) for name in study.tables} if study.compared is None else study.compared
    known = {title: runs.filter(pl.col("table").is_in(list(tables))) for title, tables in wanted.items()}
    known = {title: mine for title, mine in known.items() if mine["source"].is_not_null().any()}
    return [(draw_comparison(known, results / "beside.png"), COMPARED)] if known else []


def holds_results(folder: Path) -> bool:
    """Return whether a folder has the page of a study that is not a rehearsal."""
    page = folder / "README.md"
    return page.is_file() and REHEARSAL not in page.read_text(errors="replace")


def format_study_command(study: Study, scale: Scale, rehearsal: bool) -> str:
    words = ["straggler study", study.argument or study.name, "--quick" if rehearsal else ""]
    return " ".join(filter(None, [*words, "--scale paper" if scale == "paper" else ""]))


def count_runs(cells: Iterable[Cell], runs: pl.DataFrame) -> str:
    """Return the number of trainings, and of runs that only count gradients, as text."""
    counting = [str(cell.labels["table"]) for cell in cells if isinstance(cell, ThroughputCell)]
    counts = runs.filter(pl.col("table").is_in(counting))["id"].n_unique()
    trained = runs["id"].n_unique() - counts
    return f"{trained:,} trainings" + (f", {counts:,} timing runs without gradients" if counts else "")


def describe_coverage(cells: Sequence[Cell], runs: pl.DataFrame) -> str:
    """Return how many seeds of each table are complete, as text.

    A cell that is limited to fewer seeds is not missing from the others.
    """
    wanted: dict[tuple[str, str], list[int | None]] = {}
    for cell in cells:
        wanted.setdefault((str(cell.labels["table"]), str(cell.labels["protocol"])), []).append(cell.seeds)
    counts = runs.group_by("table", "protocol", "seed").agg(
        pl.struct("row", "column").n_unique().alias("cells")
    )
    found: dict[tuple[str, str], str] = {}
    for part, limits in wanted.items():
        seeds = counts.filter(table=part[0], protocol=part[1]).select("seed", "cells").rows()
        needed = {seed: sum(limit is None or seed < limit for limit in limits) for seed, _ in seeds}
        complete = sum(count >= needed[seed] > 0 for seed, count in seeds)
        found[part] = f"{complete}{' (another begun)' if 0 < complete < len(seeds) else ''}"
    texts: dict[str, dict[str, None]] = {}
    for (table, protocol), text in found.items():
        is_common = len({other for part, other in found.items() if part[0] == table}) == 1
        texts.setdefault(text, {})[table if is_common else f"{table} {protocol}"] = None
    ordered = sorted(texts, key=lambda text: -int(text.split()[0]))
    listed = "; ".join(f"{text}: {', '.join(texts[text])}" for text in ordered)
    return f"Complete seeds per table: {listed}."


def format_tables(drawn: DrawnStudy, more: Iterable[tuple[str, str]]) -> list[str]:
    parts = ["## Tables"]
    for table in drawn.tables:
        parts += [f"### {table.name}", f"{table.caption}.", format_markdown_table(*table.grid())]
    for title, note, columns, rows in drawn.times:
        parts += [f"### {title}", note, format_markdown_table(columns, rows)]
    for caption, text in more:
        parts += [f"### {caption.split(':')[0]}", f"{caption}.", text]
    return parts
