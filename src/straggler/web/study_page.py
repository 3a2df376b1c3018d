"""The folder of a study or sweep as pages show it: documents, claims, figures, number of runs."""

import base64
import json
import mimetypes
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import polars as pl
from markdown_it import MarkdownIt
from markdown_it.token import Token

from straggler.record import RecordError, read_table

T = TypeVar("T")
CLAIM_KEYS = ("statement", "source", "verdict", "effect", "low", "high", "cause")
IMAGE_SUFFIXES = (".png", ".svg", ".jpg", ".jpeg", ".webp")
MAX_IMAGE_BYTES = 20_000_000


def is_study_folder(folder: Path) -> bool:
    """Return whether a folder has documents, claims or summaries of a study."""
    if not folder.is_dir() or (folder / "experiment.toml").exists():
        return False
    return any(True for pattern in ("*.md", "claims.json", "summar*.parquet") for _ in folder.glob(pattern))


class StudyPage:
    """The content of a study's folder; `problems` lists the files that cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path, self.name, self.problems = path, path.name, list[str]()
        self.texts = {file.stem: self._read(file, Path.read_text, "") for file in self._find_files("*.md")}
        self.documents = {name: self._render_markdown(text) for name, text in self.texts.items()}
        self.claims: list[dict[str, Any]] = []
        for file in self._find_files("claims.json"):
            self.claims = self._read(file, read_claims_json, self.claims)
        lines = [line.strip() for text in self.texts.values() for line in text.splitlines()]
        self.undocumented_claims = [] if "## Claims" in lines else self.claims
        self.verdicts = dict(Counter(str(claim["verdict"]) for claim in self.claims))
        images = [file for file in self._find_files("**/*") if file.suffix.lower() in IMAGE_SUFFIXES]
        shown = " ".join(self.texts.values())
        urls = {file.stem: encode_image(file) for file in images if file.name not in shown}
        self.images = {name: url for name, url in urls.items() if url}  # that no document shows
        summaries = self._find_files("summar*.parquet")
        tables = [self._read(file, read_table, pl.DataFrame()) for file in summaries]
        ids = [str(name) for table in tables if "id" in table.columns for name in table["id"]]
        self.run_ids = list(dict.fromkeys(ids))
        self.run_count = len(self.run_ids) + sum(len(table) for table in tables if "id" not in table.columns)

    def _find_files(self, pattern: str) -> list[Path]:
        """Return the files within the folder; links that lead elsewhere are left out."""
        return sorted(file for file in self.path.glob(pattern) if self._is_inside(file) and file.is_file())

    def _is_inside(self, file: Path) -> bool:
        try:
            return file.resolve().is_relative_to(self.path.resolve())
        except (OSError, ValueError, RuntimeError):  # a null byte in the name, a circle of links
            return False

    def _read(self, file: Path, read: Callable[[Path], T], default: T) -> T:
        try:
            return read(file)
        except (OSError, ValueError, AttributeError, TypeError, RecordError) as error:
            self.problems.append(f"{file.name} cannot be read: {error}")
            return default

    def _render_markdown(self, text: str) -> str:
        """Return safe HTML: HTML within the text is shown as text."""
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


def read_claims_json(file: Path) -> list[dict[str, Any]]:
    return [{key: claim.get(key) for key in CLAIM_KEYS} for claim in json.loads(file.read_text())]


def encode_image(file: Path) -> str:
    """Return an image as a data URL, or an empty string if it is too large or cannot be read."""
    try:
        if file.stat().st_size > MAX_IMAGE_BYTES:
            return ""
        content = base64.b64encode(file.read_bytes()).decode()
        return f"data:{mimetypes.guess_type(file.name)[0]};base64,{content}"
    except OSError:
        return ""
