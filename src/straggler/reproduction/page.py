"""A study's results from its summaries: tables, claims, figures, and a page that shows them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from straggler.analysis.figures.matplotlib_renderer import write_figure
from straggler.analysis.study_agreement import HEADS, Agreement, measure_agreement
from straggler.analysis.study_figures import describe_forest, draw_comparison
from straggler.analysis.study_tables import FilledTable, build_time_rows, fill_table
from straggler.analysis.tables import format_markdown_table
from straggler.config.registry import InputError
from straggler.reproduction.account import (
    build_claim_rows,
    count_verdicts,
    encode_judgement,
    explain_claims,
    list_undecided,
    make_effects,
)
from straggler.reproduction.provenance import (
    count_outdated,
    count_runs,
    describe_coverage,
    describe_protocol,
    describe_rows,
    format_outdated,
)
from straggler.reproduction.study import Scale, Study, find_label_columns
from straggler.reproduction.verdicts import Judgement, judge_claims
from straggler.running.atomic_files import write_text_atomically
from straggler.sweeps.summaries import read_summaries

REHEARSAL = (
    "> **This is a rehearsal, not a result.** A few cells were trained very briefly with one seed, to check "
    "that everything works. No accuracy below says anything about the source, and no claim is judged: "
    "*rehearsed* only means that the contrast could be computed."
)
NOTATION = (
    "Our number is the mean over seeds ± the half-width of its 95 % confidence interval (Student's t), or "
    "mean [low, high] where the interval is not symmetric: it is exact (Clopper and Pearson) for a share of "
    "runs, and ends at impossible values. Intervals are shown from three seeds on. NC: did not converge. "
    "Such runs are left out of means and counted beside them, unless the number says *NC included*."
)
PREDICTED = (
    "Our mean against the source's number, cell by cell. Inside: the source's number lies in the 95 % "
    "interval in which {runs} like ours should lie. There is one where three of our seeds converged; with so "
    "few it is wide. A number of at most 12 % in the source is a run that did not converge."
)
FOREST = (
    "Every claim: our effect with its 95 % interval, the values for which it counts as replicated (shaded), "
    "and the source's number (×). Intervals and bands end at the edge of the panel."
)
DECIDED = (
    "A verdict follows from Student's test over the seeds against the bounds, two-sided at 5 %, with Holm's "
    "correction for the tests of a family, and *equivalent* from two one-sided tests within the margin. A "
    "verdict needs three seeds, and is provisional with fewer than the protocol asks for. The rank test is "
    "Wilcoxon's, without correction."
)
BELIEVE, DOUBT, NOT_RUN = "What to believe", "What to doubt", "What was not run, and why"
SHORT = "In short"
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
    agreement: list[Agreement]  # by protocol
    details: list[Agreement]  # by protocol and the labels of `study.compared_by`
    times: list[tuple[str, str, list[str], list[list[str]]]]  # title, note, columns, rows
    outdated: int  # rows of runs with other settings than the study has now
    coverage: str  # how many seeds each table has


def draw_study(study: Study, results: Path, scale: Scale = "default", rehearsal: bool = False) -> DrawnStudy:
    """Write the tables (CSV, LaTeX), the figures, claims.json, and a page with all of them."""
    summaries, command = read_summaries(results), format_study_command(study, scale, rehearsal)
    if summaries.is_empty():
        raise InputError(f"{results} has no summaries.parquet. Run {command} first.")
    cells, described = study.cells(scale), study.describe_cells(scale)
    protocol = study.read_claims(scale).protocol
    runs = place_runs(summaries, described)
    tables = [
        fill_table(name, table.caption, runs.filter(table=name), described.filter(table=name))
        for name, table in study.tables.items()
    ]
    judgements = judge_study(study, runs, scale)
    if rehearsal:
        judgements = [
            replace(one, verdict="rehearsed", reason="") if one.measured else one for one in judgements
        ]
    times = [(*texts, *build_time_rows(runs, fact, list(study.tables))) for fact, texts in TIMES.items()]
    comparable = study.compared != {} and not rehearsal
    drawn = DrawnStudy(
        [table for table in tables if table.cells],
        judgements,
        measure_agreement(runs, protocol.source_runs) if comparable else [],
        measure_agreement(runs, protocol.source_runs, study.compared_by)
        if comparable and study.compared_by
        else [],
        [part for part in times if part[3]],
        0 if rehearsal else count_outdated(summaries, cells),
        describe_coverage(cells, runs),
    )
    (results / "tables").mkdir(exist_ok=True)
    for table in drawn.tables:
        write_text_atomically(results / "tables" / f"{table.name}.csv", table.csv())
        write_text_atomically(results / "tables" / f"{table.name}.tex", table.latex())
    encoded = [encode_judgement(one, protocol.sha256) for one in judgements]
    write_text_atomically(results / "claims.json", json.dumps(encoded, indent=1))
    if effects := [] if rehearsal else make_effects(judgements):
        write_figure(describe_forest(effects), results / "forest.png")
    figures = draw_comparisons(study, runs, results) + (study.figures(runs, results) if study.figures else [])
    more = study.more_tables(runs) if study.more_tables else []
    notes = dict(study.notes)
    parts = [
        f"# {study.title}",
        REHEARSAL if rehearsal else "",
        f"{study.source}. {count_runs(cells, runs)}.",
    ]
    parts += [f"From these summaries: `{command} --draw`. From scratch: `{command}`."]
    if not rehearsal:
        parts.append(notes.pop(SHORT, ""))
        if (study.folder / "numbers.csv").exists():  # otherwise it is a question, not a reproduction
            parts += format_agreement(drawn, protocol.source_runs)
        for heading in (BELIEVE, DOUBT, NOT_RUN):
            parts += [f"## {heading}", text] if (text := notes.pop(heading, "")) else []
        parts += ["## What was fixed when", describe_protocol(protocol, summaries)]
    parts += format_claims(judgements, bool(effects), rehearsal) + format_tables(drawn, more)
    parts += ["## Figures" if figures else ""]
    parts += [f"![{file.stem}]({file.name})\n\n{caption}" for file, caption in figures]
    for heading, text in notes.items():
        parts += [f"## {heading}", text]
    parts += ["## Rows", describe_rows(summaries), drawn.coverage, format_outdated(drawn.outdated)]
    write_text_atomically(results / "README.md", "\n\n".join(part for part in parts if part) + "\n")
    return drawn


def format_agreement(drawn: DrawnStudy, source_runs: int) -> list[str]:
    """Return the section that says how well our numbers agree with the source's."""
    heading = "## Agreement with the source"
    if not drawn.agreement:
        return [heading, "The source's numbers are of other networks, or not available."]
    rows = [one.row() for one in (*drawn.agreement, *drawn.details)]
    sentence = "; ".join(one.sentence for one in drawn.agreement)
    table = format_markdown_table(list(HEADS), rows)
    return [heading, f"{sentence}.", table, PREDICTED.format(runs=format_runs(source_runs))]


def format_runs(count: int) -> str:
    return "one run" if count == 1 else f"the mean of {count} runs"


def format_claims(judgements: Sequence[Judgement], has_figure: bool, rehearsal: bool) -> list[str]:
    """Return the section of the claims: counts, forest plot, table, reasons and explanations."""
    if not judgements:
        return []
    parts = ["## Claims", f"{count_verdicts(judgements)}."]
    parts += [f"![forest](forest.png)\n\n{FOREST}"] if has_figure else []
    parts += [format_markdown_table(*build_claim_rows(judgements)), NOTATION]
    if rehearsal:
        return parts
    heads, undecided = list_undecided(judgements)
    return [
        *parts,
        DECIDED,
        format_markdown_table(heads, undecided) if undecided else "",
        explain_claims(judgements),
    ]


def format_account(study: Study, drawn: DrawnStudy, folder: str) -> str:
    """Return a study in a few sentences for a document: notes, agreement, verdicts and the forest plot."""
    parts = [study.notes.get(SHORT, ""), "; ".join(one.sentence for one in drawn.agreement)]
    counts = (
        f"{count_verdicts(drawn.judgements)}. All claims, tables and figures: [{folder}]({folder}/README.md)."
    )
    parts = [parts[0], f"{parts[1]}." if parts[1] else "", counts]
    return "\n\n".join([*filter(None, parts), f"![Claims of {study.name}]({folder}/forest.png)"])


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
    return joined.with_columns(value=pl.coalesce(*choices, pl.lit(None, pl.Float64)))


def judge_study(study: Study, runs: pl.DataFrame, scale: Scale) -> list[Judgement]:
    claims = study.read_claims(scale)
    return judge_claims(claims.claim, study.contrasts(scale), runs, scale, claims.protocol.seeds)


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


def format_tables(drawn: DrawnStudy, more: Iterable[tuple[str, str]]) -> list[str]:
    parts = ["## Tables"]
    for table in drawn.tables:
        parts += [f"### {table.name}", f"{table.caption}.", format_markdown_table(*table.grid())]
    for title, note, columns, rows in drawn.times:
        parts += [f"### {title}", note, format_markdown_table(columns, rows)]
    for caption, text in more:
        parts += [f"### {caption.split(':')[0]}", f"{caption}.", text]
    return parts
