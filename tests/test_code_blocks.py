"""The code in the documents runs, page by page, and prints what the pages show.

Each page runs in an empty folder, in order: blocks that name a file are written, Python shares one namespace,
and `straggler` commands run in this process. `runs/ID` is the latest run. A `straggler run` command gets a
budget of 60 gradients and data that need no download, unless the page shows its
output. A block of Python or of commands that does not run has a comment before it: `<!-- not run: … -->`.
"""

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from nbclient import NotebookClient
from nbformat import NO_CONVERT, read
from test_method_weights import KINDS, find_table

from documents import PAGES, ROOT, SHELL, Block, compare_texts, read_blocks, read_lines, shorten
from straggler.cli import build_app

# Pages whose commands are only parsed (tests/test_documentation.py), with the reason.
PARSED = {
    "docs/cluster.md": "needs a cluster; `make chaos` runs its commands on three hosts",
    "docs/dashboard.md": "the tests of the pages and reports run them",
    "docs/figures.md": "the tests of the figures run them; at full size they take minutes",
    "docs/findings.md": "studies take hours; --draw is tested with the studies",
    "docs/playground.md": "the tests of the playground run them",
    "docs/studies.md": "studies take minutes to hours; the tests of studies and sweeps run small ones",
    "docs/tuning.md": "the tests of tuning run them",
}
RUNNABLE = {page: list(read_blocks(text)) for page, text in PAGES.items() if page not in PARSED}


def is_code(block: Block) -> bool:
    """Return whether a block holds Python or commands that a reader would run, not a file or an excerpt."""
    if block.language == "python":
        return not block.file and "/" not in " ".join(block.words)
    return block.language in SHELL and not block.words and bool(re.match(r"[a-z.]", block.content))


def run_command(line: str, is_shown: bool) -> str:
    """Run one `straggler` command in this process; return what it prints."""
    latest = max(Path("runs").glob("*/"), key=lambda path: path.stat().st_mtime, default=Path("none"))
    line = re.sub(r"\bruns/ID\b|\b(?:RUN|ID)\b", str(latest), line)
    words = shlex.split(line)[1:]
    if words[:1] == ["run"] and not is_shown:
        words = shorten(line)
    words = [name for word in words for name in (expand(word) if "*" in word else [word])]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = build_app(load_all=True)(words, standalone_mode=False)
    assert not code, printed.getvalue()
    return printed.getvalue()


def expand(pattern: str) -> list[str]:
    """Return the paths that a shell would insert for a pattern such as `runs/*`."""
    return sorted(str(path) for path in Path().glob(pattern)) or [pattern]


def compare(printed: str, shown: str) -> None:
    """Compare two texts; on the kind of processor that made the documents, numbers differ little.

    Another kind rounds differently. Then runs near divergence, and intervals of three seeds, differ a lot.
    """
    is_same_kind = find_table("mlp") is KINDS[0]
    compare_texts(printed, shown, *((0.02, 1.5) if is_same_kind else (0.5, 25.0)))


def run_blocks(page: list[Block], namespace: dict[str, Any]) -> int:
    """Run the blocks of a page in the current folder; return how many ran."""
    Path("tiny.txt").write_text("A small text. " * 60)
    Path("corpus.txt").write_text("A small text. " * 60)
    count = 0
    for block in page:
        if block.file and "/" not in block.file:
            Path(block.file).write_text(block.content)
        if not is_code(block) or block.reason:
            continue
        printed = io.StringIO()
        if block.language == "python":
            with contextlib.redirect_stdout(printed):
                exec(block.content.replace(".run()", ".run(jobs=1)"), namespace)
        else:
            for line in read_lines(block.content):
                assert line.startswith("straggler "), f"{line!r} cannot run here; mark the block"
                printed.write(run_command(line, block.output is not None))
        if block.output is not None:
            compare(printed.getvalue(), block.output)
        count += 1
    return count


def test_blocks_that_do_not_run_say_why() -> None:
    assert set(PARSED) <= set(PAGES)
    marks = {block.mark for found in RUNNABLE.values() for block in found if is_code(block) and block.mark}
    assert all(re.match(r"not run: .{10}", mark) for mark in marks), marks


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page, found in RUNNABLE.items() if any(map(is_code, found))])
def test_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    run_blocks(RUNNABLE[page], {"__name__": "__main__"})


EXAMPLE = """
```python
x = 2
```

```python
print(x)
```

```text
2
```

<!-- not run: needs a GPU -->
```sh
make coffee
```

```python code.py
this is not Python
```
"""
WRONG = {"output": "```python\nprint(1)\n```\n```text\n99\n```\n", "command": "```sh\nmake coffee\n```\n"}


def test_blocks_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = list(read_blocks(EXAMPLE))
    assert run_blocks(page, {}) == 2
    assert page[3].reason == "needs a GPU"
    assert page[4].file == "code.py"


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_block_fails(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError):
        run_blocks(list(read_blocks(WRONG[kind])), {})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_notebook_runs_and_prints_what_it_shows(tmp_path: Path) -> None:
    notebook = read(ROOT / "docs" / "notebook.ipynb", NO_CONVERT)
    shown = [text_outputs(cell) for cell in notebook.cells]
    NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for cell, expected in zip(notebook.cells, shown, strict=True):
        compare(text_outputs(cell), expected)


def text_outputs(cell: Any) -> str:
    """Return what a cell printed."""
    return "".join(output.get("text", "") for output in cell.get("outputs", []))
