"""A study's results from its summaries alone: tables, claims, figures and one readable page."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import polars as pl

from straggler.analysis.claims import Judged, Measured, Verdict, judge
from straggler.analysis.study_tables import (
    CHANCE,
    Entry,
    Layout,
    as_csv,
    as_latex,
    as_markdown,
    entries,
    time_rows,
)
from straggler.analysis.tables import format_markdown_table
from straggler.config.registry import InputError
from straggler.reproduction.figures import caption_of
from straggler.reproduction.study import Scale, Study
from straggler.running.atomic_files import write_text_atomically
from straggler.sweeps.grid import Cell, ThroughputCell
from straggler.sweeps.summaries import read_summaries

REHEARSAL = (
    "> **This is a rehearsal, not a result.** A few cells were trained for a moment, with one seed, to see "
    "that everything works and how it will look. No accuracy below says anything about the source, and no "
    "claim is judged: *rehearsed* only means that its statistic could be computed."
)

BUSY = "Of the quickest seed, as it ran: two at a time, some beside other work. An upper bound."
LABELS = ("table", "protocol", "row", "column")
TIMES = {"seconds": "Training time", "host_seconds": "Time on the machine"}


def layouts(study: Study, cells: Iterable[Cell]) -> list[Layout]:
    """The study's tables as its cells lay them out."""
    found = []
    cells = list(cells)
    for name, caption in study.tables.items():
        mine = [cell.labels for cell in cells if cell.labels["table"] == name]
        protocols, rows, columns = (
            tuple(dict.fromkeys(str(labels[key]) for labels in mine)) for key in ("protocol", "row", "column")
        )
        found.append(Layout(name, caption, protocols, rows, columns))
    return [layout for layout in found if layout.rows]


def source_summaries(cells: Iterable[Cell]) -> pl.DataFrame:
    """The source's numbers in the form of ours, as one seed: what a statistic makes of them."""
    rows = []
    for cell in cells:
        if cell.source is not None:
            facts = {
                "value": cell.source,
                cell.metric: cell.source,
                "converged": cell.source > CHANCE,
                **cell.source_metrics,
            }
            rows.append({**cell.labels, "seed": 0, **facts})
    return pl.DataFrame(rows, infer_schema_length=None)


def restated(summaries: pl.DataFrame, cells: Iterable[Cell]) -> pl.DataFrame:
    """The rows with what their cells say now: the source's numbers, and which fact of ours is beside them."""
    said = [
        {**cell.labels, "fact": cell.metric, "source": cell.source}
        | {f"source_{fact}": number for fact, number in cell.source_metrics.items()}
        for cell in cells
    ]
    kept = [name for name in summaries.columns if not name.startswith("source")]
    facts = [name for name in {row["fact"] for row in said} if name in kept]
    choices = [pl.when(pl.col("fact") == name).then(pl.col(name)) for name in facts]
    table = pl.DataFrame(said, infer_schema_length=None)
    joined = summaries.select(kept).join(table, on=list(LABELS), how="left", maintain_order="left")
    return joined.with_columns(value=pl.coalesce(*choices, pl.lit(None, pl.Float64))).drop("fact")


def outdated(summaries: pl.DataFrame, cells: Iterable[Cell]) -> int:
    """How many rows are of other settings than the study has now."""
    by = {tuple(cell.labels[label] for label in LABELS): cell for cell in cells}
    rows = summaries.select(*LABELS, "seed", "id").iter_rows()
    return sum(
        (cell := by.get(tuple(labels))) is None or cell.experiment(seed).id != id
        for *labels, seed, id in rows
    )


def judged(study: Study, summaries: pl.DataFrame, scale: Scale) -> list[Judged]:
    source = source_summaries(study.chosen(scale))
    return [judge(claim, summaries, source) for claim in study.claims(scale)]


def unjudged(found: Iterable[Judged]) -> list[Judged]:
    """A rehearsal measures, but nothing follows from it."""
    return [one if one.effect is None else replace(one, verdict="rehearsed") for one in found]


def claim_rows(found: Iterable[Judged]) -> tuple[list[str], list[list[str]]]:
    """One line per claim: verdict, effect with its interval, what the source's numbers give."""
    columns = ["claim", "verdict", "ours [95 %]", "must be", "source", "seeds", "measured"]
    rows = []
    for one in found:
        unit = "" if one.claim.unit == "points" else f" {one.claim.unit}"
        ours = "–" if one.measured is None else one.measured.text(unit)
        theirs = "–" if one.said is None else f"{one.said:.2f}{unit}"
        seeds = "–" if one.effect is None else str(one.effect.seeds or "–")
        must = f"{one.claim.bounds}{unit}"
        rows.append([one.claim.statement, one.verdict, ours, must, theirs, seeds, one.claim.measured])
    return columns, rows


def tally(found: Sequence[Judged]) -> str:
    """How many claims came out how, the verdicts in their order."""
    counts = [(sum(one.verdict == verdict for one in found), verdict) for verdict in get_args(Verdict)]
    return f"{len(found)} claims: " + ", ".join(f"{count} {verdict}" for count, verdict in counts if count)


def as_facts(one: Judged) -> dict[str, str | float]:
    """A claim for a page that has its own layout: no effect if there is none, no end where it is open."""
    ours = one.effect and {"effect": one.effect.mean, "low": one.effect.low, "high": one.effect.high}
    known = {key: value for key, value in (ours or {}).items() if math.isfinite(value)}
    said = {"statement": one.claim.statement, "source": one.claim.where, "verdict": one.verdict}
    bounds = {"least": one.claim.least, "most": one.claim.most}
    known |= {key: value for key, value in bounds.items() if math.isfinite(value)}
    return said | {"cause": one.comment} | known


def explained(found: Iterable[Judged]) -> str:
    """The measured causes, claim by claim."""
    parts = []
    for one in found:
        if not one.causes and not one.comment:
            continue
        lines = [f"**{one.claim.statement}** *{one.verdict}.* {one.comment}".rstrip()]
        lines += evidence(one)
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def account(found: Sequence[Judged], coverage: str = "") -> str:
    """The claims one after another, for a document that is read; those with nothing to add in a table."""
    parts, told = [f"{tally(found)}. {coverage}".rstrip()], [o for o in found if o.comment or o.causes]
    for one in told:
        claim, unit = one.claim, "" if one.claim.unit == "points" else f" {one.claim.unit}"
        ours = "" if one.measured is None else f" Ours: {one.measured.text(unit)} ({seeds_of(one.measured)})."
        theirs = "" if one.said is None else f" Source: {one.said:.2f}{unit}."
        lines = [
            f"**{claim.statement}** ({claim.where})",
            f"{one.verdict.capitalize()}. What is measured: {claim.measured}. "
            f"It must be {claim.bounds}{unit}.{ours}{theirs}",
        ]
        parts += [*lines, one.comment, "\n".join(evidence(one))]
    if bare := [one for one in found if one not in told]:
        parts += ["And, with nothing to add:" if told else "", format_markdown_table(*claim_rows(bare))]
    return "\n\n".join(part for part in parts if part)


def evidence(one: Judged) -> list[str]:
    return [f"- {text}: {number.text()}" for text, number in one.causes]


def seeds_of(number: Measured) -> str:
    seeds = number.interval.seeds
    return "computed, not run" if seeds == 0 else "1 seed" if seeds == 1 else f"{seeds} seeds"


@dataclass(frozen=True)
class Drawn:
    """What was made of the summaries."""

    tables: list[tuple[list[Entry], Layout]]
    verdicts: list[Judged]
    times: list[tuple[str, list[str], list[list[str]]]]  # title, columns, rows
    outdated: int  # rows of other settings
    coverage: str  # how much of the study there is


def times(study: Study, summaries: pl.DataFrame) -> list[tuple[str, list[str], list[list[str]]]]:
    """The source's time beside ours: of training, virtual or real, and of the computer that ran it."""
    found = [(title, *time_rows(summaries, fact, list(study.tables))) for fact, title in TIMES.items()]
    return [(title, columns, rows) for title, columns, rows in found if rows]


def draw(study: Study, results: Path, scale: Scale = "default", rehearsal: bool = False) -> Drawn:
    """Write the tables (Markdown, CSV, LaTeX), the figures, and a page with these and the claims."""
    summaries, command = read_summaries(results), command_of(study, scale, rehearsal)
    if summaries.is_empty():
        raise InputError(f"{results} has no summaries.parquet; run {command} first")
    cells = study.chosen(scale)
    summaries = restated(summaries, cells)
    tables = [(entries(summaries, layout), layout) for layout in layouts(study, cells)]
    tables = [(found, layout) for found, layout in tables if found]
    (results / "tables").mkdir(exist_ok=True)
    for found, layout in tables:
        write_text_atomically(results / "tables" / f"{layout.name}.csv", as_csv(found, layout))
        write_text_atomically(results / "tables" / f"{layout.name}.tex", as_latex(found, layout))
    figures = study.figures(summaries, results) if study.figures else []
    verdicts = judged(study, summaries, scale)
    others = 0 if rehearsal else outdated(summaries, cells)
    if rehearsal:
        verdicts = unjudged(verdicts)
    many = "1 row is of a run" if others == 1 else f"{others} rows are of runs"
    warning = f"{many} with other settings than the study has now." if others else ""
    covered = coverage(cells, summaries)
    parts = [*introduction(study, summaries, command, covered), REHEARSAL if rehearsal else warning]
    parts += ["## Claims", f"{tally(verdicts)}.", format_markdown_table(*claim_rows(verdicts))]
    parts += ["" if rehearsal else explained(verdicts)]
    parts += measured(study, summaries, tables, figures)
    write_text_atomically(results / "README.md", "\n\n".join(part for part in parts if part) + "\n")
    write_text_atomically(results / "claims.json", json.dumps([as_facts(one) for one in verdicts], indent=1))
    return Drawn(tables, verdicts, times(study, summaries), others, covered)


def holds_results(folder: Path) -> bool:
    """Whether there is a study's page in a folder that is not that of a rehearsal."""
    page = folder / "README.md"
    return page.is_file() and REHEARSAL not in page.read_text(errors="replace")


def command_of(study: Study, scale: Scale, rehearsal: bool) -> str:
    """What one types to run it."""
    words = ["straggler study", study.name, "--quick" if rehearsal else ""]
    return " ".join(filter(None, [*words, "--scale paper" if scale == "paper" else ""]))


def introduction(study: Study, summaries: pl.DataFrame, command: str, covered: str) -> list[str]:
    """What it is, and how it is made again."""
    return [
        f"# {study.title}",
        f"{study.source}. {amount(study, summaries)}. In the tables ours is the mean over the seeds that "
        "converged ± the half width of its 95 % interval (Student's t); without ± one seed, of two both in "
        "brackets; NC: no convergence. In the claims a run that did not converge counts with the accuracy "
        "that it has.",
        covered,
        f"From these summaries: `{command} --draw`. From nothing: `{command}`.",
    ]


def amount(study: Study, summaries: pl.DataFrame) -> str:
    """How many runs there are, and how many that only count gradients."""
    counting = {str(c.labels["table"]) for c in study.cells("default") if isinstance(c, ThroughputCell)}
    counts = summaries.filter(pl.col("table").is_in(counting))["id"].n_unique()
    trained = summaries["id"].n_unique() - counts
    return f"{trained:,} trainings" + (f", {counts:,} counts without gradients" if counts else "")


def coverage(cells: Iterable[Cell], summaries: pl.DataFrame) -> str:
    """Of how many seeds there is the whole of which table; and what is begun, or not even that.

    Cells that are too dear for more seeds are not missing from these.
    """
    asked = [((str(cell.labels["table"]), str(cell.labels["protocol"])), cell.seeds) for cell in cells]
    whole = dict.fromkeys(part for part, _ in asked)
    found = summaries.group_by("table", "protocol", "seed").agg(pl.struct("row", "column").n_unique())
    enough = {part: list[bool]() for part in whole}
    for table, protocol, seed, count in found.iter_rows():
        wanted = sum(part == (table, protocol) and (most is None or seed < most) for part, most in asked)
        enough.setdefault((table, protocol), []).append(count >= wanted > 0)
    seeds = {part: sum(enough[part]) for part in whole}
    begun = {part: 0 < seeds[part] < len(enough[part]) for part in whole}
    names: dict[int, dict[str, None]] = {}
    for part in whole:
        others = [other for other in whole if other[0] == part[0]]
        alike = len({(seeds[other], begun[other]) for other in others}) == 1
        name = (part[0] if alike else " ".join(part)) + (" (another begun)" if begun[part] else "")
        names.setdefault(seeds[part], {})[name] = None
    parts = [f"{count or 'none whole'}: {', '.join(names[count])}" for count in sorted(names, reverse=True)]
    return f"Seeds of each table: {'; '.join(parts)}."


def measured(
    study: Study,
    summaries: pl.DataFrame,
    tables: list[tuple[list[Entry], Layout]],
    figures: list[Path],
) -> list[str]:
    """Tables and figures."""
    parts = ["## Tables"]
    for found, layout in tables:
        parts += [f"### {layout.name}", layout.caption + ".", as_markdown(found, layout)]
    real = summaries["protocol"].is_in(["processes", "ray"]).any()
    note = "Virtual, but where it says processes or ray: there the seconds are of the machine at hand."
    for title, columns, rows in times(study, summaries):
        notes = {TIMES["seconds"]: note if real else "", TIMES["host_seconds"]: BUSY}
        parts += [f"### {title}", notes[title], format_markdown_table(columns, rows)]
    for caption, table in study.more(summaries) if study.more else ():
        parts += [f"### {caption.split(':')[0]}", caption + ".", table]
    parts += ["## Figures"] if figures else []
    for figure in figures:
        parts += [f"![{figure.stem}]({figure.name})", caption_of(figure)]
    return parts
