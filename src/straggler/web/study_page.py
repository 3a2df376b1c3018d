"""A study's folder: tables in Markdown, claims with verdicts, figures, summaries of its runs."""

import base64
import json
import mimetypes
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
from markdown_it import MarkdownIt
from markdown_it.token import Token

from straggler.record import RecordError, read_table

CLAIM_KEYS = ("statement", "source", "verdict", "effect", "low", "high", "cause")
PICTURES = (".png", ".svg", ".jpg", ".jpeg", ".webp")
MOST_BYTES = 20_000_000  # of a picture that goes into a page


def is_study_folder(folder: Path) -> bool:
    """Whether there is anything in a folder that a study leaves."""
    if not folder.is_dir() or (folder / "experiment.toml").exists():
        return False
    return any(True for pattern in ("*.md", "claims.json", "summar*.parquet") for _ in folder.glob(pattern))


@dataclass(frozen=True)
class StudyPicture:
    """A figure of the study, whole in its address."""

    name: str
    source: str


class StudyPage:
    """What a study's folder holds; what is damaged is said and does not stop the rest."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        self.trouble: list[str] = []

    @cached_property
    def documents(self) -> dict[str, str]:
        """The Markdown files as safe HTML: whatever HTML they hold is shown as text."""
        found = {}
        for file in self._own(self.path.glob("*.md")):
            try:
                found[file.stem] = self._render(file.read_text())
            except (OSError, UnicodeDecodeError) as error:
                self.trouble.append(f"{file.name} cannot be read: {error}")
        return found

    def read(self) -> "StudyPage":
        """Look at everything now, so that all trouble is known."""
        _ = self.documents, self.claims, self.pictures, self.runs
        return self

    def texts(self) -> dict[str, str]:
        """The Markdown files as they are."""
        files = self._own(self.path.glob("*.md"))
        return {file.stem: file.read_text(errors="replace") for file in files}

    @cached_property
    def claims(self) -> list[dict[str, Any]]:
        file = self.path / "claims.json"
        if not file.is_file():
            return []
        try:
            claims = json.loads(file.read_text())
            return [{key: claim.get(key) for key in CLAIM_KEYS} for claim in claims]
        except (OSError, ValueError, AttributeError, TypeError) as error:
            self.trouble.append(f"claims.json cannot be read: {error}")
            return []

    @property
    def untold(self) -> list[dict[str, Any]]:
        """Claims, unless a document of the study tells them already."""
        lines = [line.strip() for text in self.texts().values() for line in text.splitlines()]
        return [] if "## Claims" in lines else self.claims

    @cached_property
    def pictures(self) -> list[StudyPicture]:
        """Figures that no document shows already."""
        files = self._own(file for file in self.path.rglob("*") if file.suffix.lower() in PICTURES)
        shown = " ".join(self.texts().values())
        wanted = [file for file in files if file.name not in shown]
        pictures = [(file.stem, self._embedded(file)) for file in wanted]
        return [StudyPicture(name, source) for name, source in pictures if source]

    @cached_property
    def summaries(self) -> list[pl.DataFrame]:
        tables = sorted(self.path.glob("summar*.parquet"))
        try:
            return [read_table(table) for table in tables]
        except RecordError as error:
            self.trouble.append(str(error))
            return []

    @property
    def ids(self) -> list[str]:
        """Of its runs; cells may share one."""
        tables = [table["id"] for table in self.summaries if "id" in table.columns]
        return list(dict.fromkeys(str(name) for names in tables for name in names))

    @property
    def runs(self) -> int:
        """How many runs its summaries are of."""
        return len(self.ids) + sum(len(table) for table in self.summaries if "id" not in table.columns)

    def verdicts(self) -> dict[str, int]:
        """How often each verdict was given."""
        counts: dict[str, int] = {}
        for claim in self.claims:
            verdict = str(claim["verdict"])
            counts[verdict] = counts.get(verdict, 0) + 1
        return counts

    def _own(self, files: Iterable[Path]) -> list[Path]:
        """The files that are in the folder; a link that leads elsewhere does not count."""
        return sorted(file for file in files if self._inside(file) and file.is_file())

    def _inside(self, file: Path) -> bool:
        try:
            return file.resolve().is_relative_to(self.path.resolve())
        except (OSError, ValueError, RuntimeError):  # a name with a null in it, a circle of links
            return False

    def _render(self, text: str) -> str:
        reader = MarkdownIt("commonmark", {"html": False}).enable("table")
        tokens = reader.parse(text)
        for token in tokens:
            self._embed_images(token)
        return str(reader.renderer.render(tokens, reader.options, {}))

    def _embed_images(self, token: Token) -> None:
        """A page in one file brings its pictures along; those from elsewhere are left out."""
        for child in token.children or []:
            if child.type == "image":
                file = self.path / unquote(str(child.attrs.get("src", "")))
                ours = self._inside(file) and file.suffix.lower() in PICTURES
                child.attrs["src"] = (self._embedded(file) if ours else "") or "data:,"

    def _embedded(self, file: Path) -> str:
        try:
            if file.stat().st_size > MOST_BYTES:
                return ""
            content = base64.b64encode(file.read_bytes()).decode()
        except OSError:
            return ""
        return f"data:{mimetypes.guess_type(file.name)[0]};base64,{content}"
