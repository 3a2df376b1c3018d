"""The folder of a study or sweep as pages show it: documents, claims, figures, number of runs."""

import base64
import mimetypes
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import polars as pl
from markdown_it import MarkdownIt
from markdown_it.token import Token

from straggler.record import has_file, read_table
from straggler.running.untrusted_files import is_regular_file, read_json, read_regular_bytes
from straggler.web.run_facts import READ_ERRORS, describe_problem

T = TypeVar("T")
CLAIM_KEYS = ("statement", "source", "verdict", "effect", "low", "high", "cause")
IMAGE_SUFFIXES = (".png", ".svg", ".jpg", ".jpeg", ".webp")
STUDY_FILES = ("*.md", "claims.json", "summar*.parquet")
MAX_IMAGE_BYTES, MAX_TEXT_BYTES = 20_000_000, 1_000_000
MAX_PAGE_BYTES = 100_000_000  # of all images of one page
MAX_FILES = 2000  # of one study


def is_study_folder(folder: Path) -> bool:
    """Return whether a folder has documents, claims or summaries of a study."""
    if not folder.is_dir() or has_file(folder / "experiment.toml"):
        return False
    return any(True for pattern in STUDY_FILES for _ in folder.glob(pattern))


class StudyPage:
    """The content of a study's folder; `problems` lists the files that cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path, self.name, self.problems = path, path.name, list[str]()
        self._image_bytes = 0
        self.texts = {file.stem: self._read(file, read_document, "") for file in self._find_files("*.md")}
        self.documents = {name: self._render_markdown(text) for name, text in self.texts.items()}
        self.claims: list[dict[str, Any]] = []
        for file in self._find_files("claims.json"):
            self.claims = self._read(file, read_claims_json, self.claims)
        lines = [line.strip() for text in self.texts.values() for line in text.splitlines()]
        self.undocumented_claims = [] if "## Claims" in lines else self.claims
        self.verdicts = dict(Counter(str(claim["verdict"]) for claim in self.claims))
        images = [file for file in self._find_files("**/*") if file.suffix.lower() in IMAGE_SUFFIXES]
        shown = " ".join(self.texts.values())
        urls = {file.stem: self._encode_image(file) for file in images if file.name not in shown}
        self.images = {name: url for name, url in urls.items() if url}  # that no document shows
        summaries = self._find_files("summar*.parquet")
        tables = [self._read(file, read_table, pl.DataFrame()) for file in summaries]
        ids = [str(name)[:100] for table in tables if "id" in table.columns for name in table["id"]]
        self.run_ids = list(dict.fromkeys(ids))
        self.run_count = len(self.run_ids) + sum(len(table) for table in tables if "id" not in table.columns)

    def read_images(self) -> dict[str, bytes]:
        """Return the PNG images in the folder by their names, as far as MAX_PAGE_BYTES allows."""
        found, left = dict[str, bytes](), MAX_PAGE_BYTES
        for file in self._find_files("**/*.png"):
            try:
                content = read_regular_bytes(file, min(MAX_IMAGE_BYTES, left), within=self.path)
            except (OSError, ValueError):
                continue
            found[file.stem], left = content, left - len(content)
        return found

    def _find_files(self, pattern: str) -> list[Path]:
        """Return the files within the folder; links and special files are left out."""
        found = sorted(filter(is_regular_file, islice(self.path.glob(pattern), MAX_FILES)))
        if len(found) == MAX_FILES:
            self.problems.append(f"Only {MAX_FILES:,} files are shown.")
        return found

    def _read(self, file: Path, read: Callable[[Path], T], default: T) -> T:
        try:
            return read(file)
        except READ_ERRORS as error:
            self.problems.append(f"{file.name} cannot be read: {describe_problem(error)}")
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
                is_image = file.suffix.lower() in IMAGE_SUFFIXES
                child.attrs["src"] = (self._encode_image(file) if is_image else "") or "data:,"

    def _encode_image(self, file: Path) -> str:
        """Return an image as a data URL, or an empty string if it is too large or cannot be read."""
        limit = min(MAX_IMAGE_BYTES, MAX_PAGE_BYTES - self._image_bytes)
        try:
            content = read_regular_bytes(file, limit, within=self.path)
        except (OSError, ValueError):
            return ""
        self._image_bytes += len(content)
        return f"data:{mimetypes.guess_type(file.name)[0]};base64,{base64.b64encode(content).decode()}"


def read_claims_json(file: Path) -> list[dict[str, Any]]:
    return [{key: claim.get(key) for key in CLAIM_KEYS} for claim in read_json(file)]


def read_document(file: Path) -> str:
    return read_regular_bytes(file, MAX_TEXT_BYTES).decode()
