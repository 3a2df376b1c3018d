"""Studies: a folder with a grid of experiments, the source's numbers, tables, claims, protocol and notes."""

import importlib
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

import polars as pl

from straggler.analysis.study_tables import CHANCE
from straggler.config.imports import load_file
from straggler.config.registry import InputError, suggest_name
from straggler.reproduction.claims import ClaimFile, read_claims
from straggler.reproduction.contrasts import Contrasts
from straggler.running.untrusted_files import read_toml
from straggler.sweeps.grid import Cell, Label, ThroughputCell

Scale = Literal["default", "paper"]
Labels = Mapping[str, Label]
ENTRY_POINTS = "straggler.studies"
PAPERS = Path(__file__).parent / "papers"
MOST_QUICK = 12  # cells of a rehearsal
SHOWN = 12  # labels in an error message


@dataclass(frozen=True)
class StudyTable:
    """A table of the source: its caption, and formats that make a row and a column of a cell's labels."""

    caption: str
    rows: str  # for example "{delay_ms} ms"
    columns: str


@dataclass(frozen=True)
class Study:
    """A source's experiments. Its folder has numbers.csv, notes.md and three TOML files."""

    folder: Path
    title: str
    source: str  # authors, institution or venue, year
    make_cells: Callable[[Scale], Iterable[Cell]]
    seeds: int = 3
    describe: Callable[[Labels], Mapping[str, str]] = lambda labels: {}  # more words for tables.toml
    quick: Callable[[Labels], bool] = lambda labels: True  # the cells of a rehearsal
    quick_settings: Mapping[str, Any] = field(default_factory=dict)  # that make the rehearsal's runs short
    compared: Mapping[str, Sequence[str]] | None = None  # panels of beside.png: title, tables
    compared_by: Sequence[str] = ()  # labels for which the agreement with the source is also shown
    words: Mapping[Scale, Mapping[str, str]] = field(default_factory=dict)  # for {word} in claims.toml
    functions: Mapping[str, Callable[..., float]] = field(default_factory=dict)  # for contrasts
    more_tables: Callable[[pl.DataFrame], list[tuple[str, str]]] | None = None  # caption, Markdown
    figures: Callable[[pl.DataFrame, Path], list[tuple[Path, str]]] | None = None  # file, caption
    after_runs: Callable[..., None] | None = None  # see papers/epfl/landscape.py
    argument: str = ""  # of the command, if it is not the name

    @property
    def name(self) -> str:
        return self.folder.resolve().name.replace("_", "-")

    @cached_property
    def tables(self) -> dict[str, StudyTable]:
        """The tables of tables.toml, the most important first."""
        file = self.folder / "tables.toml"
        try:
            return {name: StudyTable(**table) for name, table in read_toml(file).items()}
        except (OSError, TypeError, ValueError) as error:
            raise InputError(f"{file}: {error}. Each table needs caption, rows and columns.") from None

    @cached_property
    def notes(self) -> dict[str, str]:
        """The sections of notes.md by heading; text before the first heading has the heading `Notes`."""
        file = self.folder / "notes.md"
        text = file.read_text().strip() if file.is_file() else ""
        first, *rest = re.split(r"^## +(.+)$", text, flags=re.MULTILINE)
        sections = {"Notes": first, **dict(zip(rest[::2], rest[1::2], strict=True))}
        return {heading.strip(): section.strip() for heading, section in sections.items() if section.strip()}

    def cells(self, scale: Scale = "default") -> list[Cell]:
        """Return all cells, those of the most important tables first."""
        rank = {name: position for position, name in enumerate(self.tables)}
        cells = list(self.make_cells(scale))
        if unknown := [cell.labels.get("table") for cell in cells if cell.labels.get("table") not in rank]:
            raise InputError(
                f"A cell has the table {unknown[0]!r}; tables.toml has {', '.join(rank)}. Add it there."
            )
        cells.sort(key=lambda cell: rank[str(cell.labels["table"])])
        floats = {name for cell in cells for name, value in cell.labels.items() if isinstance(value, float)}
        return [
            replace(cell, labels={"table": None, "protocol": "ours"} | clean_labels(cell.labels, floats))
            for cell in cells
        ]

    def select_cells(
        self, scale: Scale, tables: Sequence[str] = (), quick: bool = False, only: Sequence[str] = ()
    ) -> list[Cell]:
        """Return the cells of some tables whose row, column or labels contain each text of `only`.

        A text `label=value` selects by the whole value. A rehearsal (`quick`) has a few short cells.
        """
        if unknown := [table for table in tables if table not in self.tables]:
            raise InputError(f"{self.name} has no table {unknown[0]!r}; it has {', '.join(self.tables)}.")
        cells = [cell for cell in self.cells(scale) if not tables or cell.labels["table"] in tables]
        for text in only:
            texts = [self._searched_texts(cell.labels) for cell in cells]
            fitting = [any(matches_label(text, name) for name in names) for names in texts]
            if not any(fitting):
                known = list(dict.fromkeys(name for names in texts for name in names))
                some = ", ".join(map(repr, known[:SHOWN])) + (", …" if len(known) > SHOWN else "")
                raise InputError(f"--only {text!r} matches none of the {len(known)} labels: {some}")
            cells = [cell for cell, fits in zip(cells, fitting, strict=True) if fits]
        if not quick:
            return cells
        few = [cell for cell in cells if self.quick(cell.labels)] or cells
        return [self._shorten(cell) for cell in few[:MOST_QUICK]]

    def _shorten(self, cell: Cell) -> Cell:
        if isinstance(cell, ThroughputCell):
            return cell  # computes no gradients, so it is short as it is
        return replace(cell, settings={**cell.settings, **self.quick_settings})

    def _searched_texts(self, labels: Labels) -> list[str]:
        return [*self._place(labels), *(f"{label}={value}" for label, value in labels.items())]

    def _place(self, labels: Labels) -> tuple[str, str]:
        """Return the row and the column of a cell as text."""
        table, words = self.tables[str(labels["table"])], {**labels, **self.describe(labels)}
        return table.rows.format(**words), table.columns.format(**words)

    def describe_cells(self, scale: Scale = "default") -> pl.DataFrame:
        """Return a row per cell: its labels, place in the table, metric, and the source's numbers."""
        cells, numbers = self.cells(scale), read_numbers(self.folder)
        names = {label for cell in cells for label in cell.labels}
        rows = []
        for cell in cells:
            fitting = [row for row in numbers if all(cell.labels.get(n) == row[n] for n in names if n in row)]
            if len(fitting) > 1:
                raise InputError(
                    f"{self.folder}/numbers.csv has {len(fitting)} rows for {dict(cell.labels)}. Keep one of "
                    "them, or add a column with a label that distinguishes them."
                )
            facts = {f"source_{name}": value for each in fitting for name, value in each.items()}
            source = facts.pop("source_value", None)
            facts = {
                name: value for name, value in facts.items() if name.removeprefix("source_") not in names
            }
            row, column = self._place(cell.labels)
            place = {"row": row, "column": column, "metric": cell.metric, "source": source}
            rows.append({**cell.labels, **place, **facts})
        return pl.DataFrame(rows, infer_schema_length=None)

    def read_claims(self, scale: Scale = "default") -> ClaimFile:
        return read_claims(self.folder / "claims.toml", self.words.get(scale, {}))

    def contrasts(self, scale: Scale = "default") -> Contrasts:
        """Return the evaluator of the claims' contrasts."""
        cells, claims = self.describe_cells(scale), self.read_claims(scale)
        labels = cells.select(find_label_columns(cells))
        return Contrasts(labels, build_source_summaries(cells), claims.names, claims.defaults, self.functions)


def clean_labels(labels: Labels, floats: Container[str]) -> dict[str, Label]:
    """Return the labels with 1.0 for 1 where other cells have floats, so that each column has one type."""
    return {
        name: float(value) if name in floats and isinstance(value, int) else value
        for name, value in labels.items()
    }


def read_numbers(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of numbers.csv, without empty fields."""
    file = folder / "numbers.csv"
    if not file.is_file():
        return []
    try:
        table = pl.read_csv(file, infer_schema_length=None, schema_overrides={"table": pl.String})
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{file}: {error}") from None
    rows = table.iter_rows(named=True)
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def find_label_columns(cells: pl.DataFrame) -> list[str]:
    """Return the label columns of a table made by `describe_cells`."""
    others = ("row", "column", "metric", "source")
    return [name for name in cells.columns if name not in others and not name.startswith("source_")]


def matches_label(text: str, name: str) -> bool:
    return text == name if "=" in text else text in name


def build_source_summaries(cells: pl.DataFrame) -> pl.DataFrame:
    """Return the source's numbers in the form of summaries with one seed, for the contrasts."""
    rows = []
    for row in cells.filter(pl.col("source").is_not_null()).iter_rows(named=True):
        others = {name[7:]: value for name, value in row.items() if name.startswith("source_")}
        source = row["source"]
        facts = {"value": source, row["metric"]: source, "converged": source > CHANCE, "seed": 0}
        rows.append({label: row[label] for label in find_label_columns(cells)} | facts | others)
    return pl.DataFrame(rows, infer_schema_length=None)


def list_builtin_studies() -> list[str]:
    """Return the names of the studies that come with Straggler."""
    return sorted(file.parent.name.replace("_", "-") for file in PAPERS.glob("*/study.py"))


def load_study(name: str) -> Study:
    """Load a built-in study, a folder with a study.py, or a study of an installed package.

    Loading a folder executes its study.py.
    """
    if name in list_builtin_studies():
        found: Any = importlib.import_module(f"{__package__}.papers.{name.replace('-', '_')}.study").STUDY
    elif (file := Path(name) / "study.py").is_file():
        try:
            found = getattr(load_file(file), "STUDY", None)
        except ValueError as error:
            raise InputError(str(error)) from error
        found = replace(found, argument=name) if isinstance(found, Study) else found
    elif registered := entry_points(group=ENTRY_POINTS, name=name):
        found = next(iter(registered)).load()
    else:
        known = [*list_builtin_studies(), *(point.name for point in entry_points(group=ENTRY_POINTS))]
        wrong = f"{name} has no study.py" if Path(name).is_dir() else f"Unknown study {name!r}"
        raise InputError(f"{wrong}. {suggest_name(name, known)}; or pass a folder with a study.py.")
    if not isinstance(found, Study):
        raise InputError(f"{name}: STUDY must be a straggler.reproduction.Study, got {found!r}.")
    return found
