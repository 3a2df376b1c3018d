"""The names that `straggler` exports can be imported, and `dir` and editors know them."""

import ast
import re
from pathlib import Path

import pytest

import straggler

ROOT = Path(__file__).parents[1]
GUIDES = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md"))),
]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def imported_names(page: str) -> set[str]:
    """Return the names that a page's examples import from `straggler` itself."""
    found = set()
    for code in PYTHON.findall((ROOT / page).read_text()):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module == "straggler":
                found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("name", straggler.__all__)
def test_exported_names_can_be_imported(name: str) -> None:
    assert getattr(straggler, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Experimnt"):
        straggler.Experimnt  # noqa: B018


@pytest.mark.parametrize("page", GUIDES)
def test_examples_import_exported_names_only(page: str) -> None:
    assert imported_names(page) <= set(straggler.__all__)
