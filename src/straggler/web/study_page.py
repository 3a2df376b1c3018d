"""The folder of a study or sweep as pages show it: documents, claims, figures, number of runs."""

import base64
import json
import mimetypes
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
from markdown_it import MarkdownIt
from markdown_it.token import Token

from straggler.record import RecordError, read_table

CLAIM_KEYS = ("statement", "source", "verdict", "effect", "low", "high", "cause")
IMAGE_SUFFIXES = (".png", ".svg", ".jpg", ".jpeg", ".webp")
MAX_IMAGE_BYTES = 20_000_000


def is_study_folder(folder: Path) -> bool:
    """Whether a folder holds documents, claims or summaries of a study."""
    if not folder.is_dir() or (folder / "experiment.toml").exists():
        return False
    return any(True for pattern in ("*.md", "claims.json", "summar*.parquet") for _ in folder.glob(pattern))


class StudyPage:
    """What a report shows of a study; `problems` lists the files that cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        self.problems: list[str] = []

    def load(self) -> "StudyPage":
        """Read everything now, so that `problems` is complete."""
        _ = self.documents, self.claims, self.images, self.run_count
        return self

    @cached_property
    def texts(self) -> dict[str, str]:
        """The Markdown files by name."""
        found = {}
        for file in self._files_inside(self.path.glob("*.md")):
            try:
                found[file.stem] = file.read_text()
            except (OSError, UnicodeDecodeError) as error:
                self.problems.append(f"{file.name} cannot be read: {error}")
        return found

    @cached_property
    def documents(self) -> dict[str, str]:
        """The Markdown files as safe HTML: HTML within them is shown as text."""
        return {name: self._render_markdown(text) for name, text in self.texts.items()}

    @cached_property
    def claims(self) -> list[dict[str, Any]]:
        file = self.path / "claims.json"
        if not file.is_file():
            return []
        try:
            claims = json.loads(file.read_text())
            return [{key: claim.get(key) for key in CLAIM_KEYS} for claim in claims]
        except (OSError, ValueError, AttributeError, TypeError) as error:
            self.problems.append(f"claims.json cannot be read: {error}")
            return []

    @property
    def undocumented_claims(self) -> list[dict[str, Any]]:
        """The claims, unless a document has a section on them."""
        lines = [line.strip() for text in self.texts.values() for line in text.splitlines()]
        return [] if "## Claims" in lines else self.claims

    @property
    def verdicts(self) -> dict[str, int]:
        """The number of claims per verdict."""
        return dict(Counter(str(claim["verdict"]) for claim in self.claims))

    @cached_property
    def images(self) -> dict[str, str]:
        """The figures that no document shows, as data URLs by name."""
        files = self._files_inside(
            file for file in self.path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES
        )
        documents = " ".join(self.texts.values())
        urls = {file.stem: encode_image(file) for file in files if file.name not in documents}
        return {name: url for name, url in urls.items() if url}

    @cached_property
    def summaries(self) -> list[pl.DataFrame]:
        try:
            return [read_table(table) for table in sorted(self.path.glob("summar*.parquet"))]
        except RecordError as error:
            self.problems.append(str(error))
            return []

    @property
    def run_ids(self) -> list[str]:
        """The ids of the runs, each once."""
        columns = [table["id"] for table in self.summaries if "id" in table.columns]
        return list(dict.fromkeys(str(name) for column in columns for name in column))

    @property
    def run_count(self) -> int:
        return len(self.run_ids) + sum(len(table) for table in self.summaries if "id" not in table.columns)

    def _files_inside(self, files: Iterable[Path]) -> list[Path]:
        """Return the files within the folder; links that lead elsewhere are left out."""
        return sorted(file for file in files if self._is_inside(file) and file.is_file())

    def _is_inside(self, file: Path) -> bool:
        try:
            return file.resolve().is_relative_to(self.path.resolve())
        except (OSError, ValueError, RuntimeError):  # a null byte in the name, a circle of links
            return False

    def _render_markdown(self, text: str) -> str:
        parser = MarkdownIt("commonmark", {"html": False}).enable("table")
        tokens = parser.parse(text)
        for token in tokens:
            self._embed_images(token)
        return str(parser.renderer.render(tokens, parser.options, {}))

    def _embed_images(self, token: Token) -> None:
        """Replace addresses of images by their content; images outside the folder are left out."""
        for child in token.children or []:
            if child.type == "image":
                file = self.path / unquote(str(child.attrs.get("src", "")))
                is_ours = file.suffix.lower() in IMAGE_SUFFIXES and self._is_inside(file)
                child.attrs["src"] = (encode_image(file) if is_ours else "") or "data:,"


def encode_image(file: Path) -> str:
    """Return an image as a data URL, or an empty string if it is too large or cannot be read."""
    try:
        if file.stat().st_size > MAX_IMAGE_BYTES:
            return ""
        content = base64.b64encode(file.read_bytes()).decode()
    except OSError:
        return ""
    return f"data:{mimetypes.guess_type(file.name)[0]};base64,{content}"
