"""The documents are correct: quotes are in the source, commands parse, examples print what they show."""

import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from test_reductions import STATE

from documents import PAGES, ROOT, blocks, commands
from story import run_story
from straggler.algorithms.methods import METHODS
from straggler.cli import build_app
from straggler.cli.train import parse_assignments
from straggler.config.listing import read_listing
from straggler.experiment import Experiment
from straggler.sweeps.grid import expand_grid, read_grid_file

METHODS_PAGE = PAGES["docs/methods.md"]


# Sections.


def test_every_method_has_its_section_in_the_order_of_the_table() -> None:
    headings = re.findall(r"^## `(.+)`$", METHODS_PAGE, re.MULTILINE)
    assert headings == list(METHODS)


def sections(text: str) -> dict[str, str]:
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_every_section_has_the_same_parts(method: str) -> None:
    section = sections(METHODS_PAGE)[f"`{method}`"]
    for wanted in ("```text\n", "**Settings**", "**Memory**", "**Use it**", "**Reduces to**"):
        assert wanted in section


def memory(expression: str, workers: int) -> int:
    """Evaluate an expression such as `N + 1`."""
    return sum(workers if term == "N" else int(term) for term in expression.split(" + "))


@pytest.mark.parametrize("method", METHODS)
def test_the_stated_memory_is_the_counted_memory(method: str) -> None:
    stated = re.search(r"\*\*Memory\*\*: ([N\d](?: \+ \d)?)\b", sections(METHODS_PAGE)[f"`{method}`"])
    assert stated is not None
    assert memory(stated[1], workers=4) == STATE[method]


# Quotes.

QUOTES = [
    (page, source, code)
    for page, text in PAGES.items()
    for source, code in blocks(text, "python")
    if "/" in source
]


def occurs(code: str, source: str) -> bool:
    """Return whether the source has these consecutive lines, at any indentation."""
    wanted, lines = textwrap.dedent(code).rstrip().split("\n"), source.split("\n")
    windows = (lines[start : start + len(wanted)] for start in range(len(lines) - len(wanted) + 1))
    return any(textwrap.dedent("\n".join(window)).split("\n") == wanted for window in windows)


@pytest.mark.parametrize(("page", "source", "code"), QUOTES)
def test_quotes_are_in_the_source(page: str, source: str, code: str) -> None:
    assert occurs(code, (ROOT / source).read_text())


def test_quotes_are_found_and_can_be_wrong() -> None:
    assert len(QUOTES) > 20
    source = "def f():\n    if a:\n        b\n    return c\n"
    assert occurs("if a:\n    b\n", source)
    assert occurs("    return c\n", source)
    assert not occurs("if a:\nb\n", source)
    assert not occurs("if a:\n    return c\n", source)


# Commands.

USAGE_ERROR: Any = typer.BadParameter.__base__  # from the copy of click that typer includes


COMMANDS = [(page, line) for page, text in PAGES.items() for line in commands(text)]


@pytest.fixture
def custom_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Change to a folder with the Python files that the page defines (its fences name the file)."""
    for source, code in blocks(PAGES[request.getfixturevalue("page")], "python"):
        if source.endswith(".py") and "/" not in source:
            (tmp_path / source).write_text(code)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(line: str) -> Experiment | None:
    """Parse a command as typer does and build the experiment of a `run`; raise if it is invalid."""
    words = [word for word in shlex.split(line)[1:] if word != "…"]
    group: Any = typer.main.get_command(build_app(load_all=True))
    if not words or words[0].startswith("-"):
        harmless = {"--help", "--install-completion", "--show-completion"}  # these would change this shell
        return None if set(words) <= harmless else group.make_context("straggler", words)
    name, arguments = words[0], words[1:]
    command = group.commands[name]
    if "--help" in arguments:
        return None
    if not arguments and any(p.required for p in command.params):  # a mention of the command, not a call
        return None
    parsed = command.make_context(name, arguments).params
    if name == "list":
        assert parsed["what"] is None or parsed["what"] in read_listing()
    if name == "cite":
        assert parsed["method"].isupper() or parsed["method"] in METHODS
    if name != "run":
        return None
    flags = {key: value for key, value in parsed.items() if key in Experiment.model_fields}
    settings = parse_assignments(list(parsed["set_"] or []))
    return Experiment(**settings | {key: value for key, value in flags.items() if value not in (None, ())})


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_commands_parse(page: str, line: str, custom_files: Path) -> None:
    check(line)


SETTINGS = {
    (page, key, value)
    for page in ("docs/faq.md", "docs/index.md", "docs/limitations.md", "docs/names.md", "docs/tutorial.md")
    for key, value in re.findall(r'`(\w+)="([^"`…]+)"`', PAGES[page])
    if key in Experiment.model_fields and "=H" not in value  # a letter stands for a number
}


@pytest.mark.parametrize(("page", "key", "value"), sorted(SETTINGS))
def test_settings_in_the_text_are_valid(page: str, key: str, value: str) -> None:
    assert Experiment(**{"workers": 8, key: value})


def test_commands_are_found_and_can_be_wrong() -> None:
    text = "```\nstraggler run --lr 1 \\\n  --workers 2  # why\n```\nSee `straggler cite asgd`.\n"
    assert [line.split() for line in commands(text)] == [
        ["straggler", "run", "--lr", "1", "--workers", "2"],
        ["straggler", "cite", "asgd"],
    ]
    experiment = check("straggler run --method dana-ga --correction 'dc(lam=1)' --delay 'constant(4)'")
    assert str(experiment.correction) == "dc(lam=1.0)"  # type: ignore[union-attr]
    assert {page for page, _ in COMMANDS} >= {"README.md", "docs/methods.md"}
    for wrong in (
        "straggler run --learning-rate 1",
        "straggler run --method asdg",
        "straggler run --optimizer dana --policy synchronous",
        "straggler walk",
        "straggler cite asdg",
        "straggler list method",
    ):
        with pytest.raises((USAGE_ERROR, ValueError, KeyError, AssertionError)):
            check(wrong)


@pytest.mark.parametrize(
    ("page", "kind", "toml"),
    [
        (page, *block)
        for page, text in PAGES.items()
        for block in blocks(text, "toml")
        if block[0] in ("", "sweep") or block[0].startswith("sweep ")
    ],
    ids=lambda text: text[:30],
)
def test_files_in_the_documents_are_experiments_or_sweeps(
    page: str, kind: str, toml: str, custom_files: Path
) -> None:
    if kind.startswith("sweep"):
        (custom_files / "sweep.toml").write_text(toml)
        cells, seeds = expand_grid(read_grid_file(custom_files / "sweep.toml"))
        assert [cell.experiment(seeds[0]) for cell in cells]
    else:
        Experiment(**tomllib.loads(toml))


@pytest.mark.slow
def test_generated_parts_are_current() -> None:
    """`make docs` writes the map in DESIGN.md, docs/settings.md and docs/commands.md."""
    command = [sys.executable, ROOT / ".ci" / "generate_docs.py", "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(rf"^version: {re.escape(version)}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == version  # type: ignore[index]


# Statements of docs/methods.md that no other test checks.

QUADRATIC: dict[str, Any] = {
    "dataset": "quadratic(dimension=6, noise=0.1, spread=1)",
    "lr": 0.02,
    "workers": 5,
    "updates": 60,
    "compute": "gamma(mean=1, cv=0.4)",
}
NARROW = {"policy": "hybrid(num_workers_ps_update=5, staleness_tolerance=0)"}
SUM = {"policy": "hybrid(num_workers_ps_update=5, aggregate=sum)"}
TWO, UNBOUNDED = {"policy": "hybrid(num_workers_ps_update=2)"}, {"policy": "hybrid(staleness_tolerance=inf)"}
SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "hybrid(N), tolerance 0, is ssgd": (NARROW, {"method": "ssgd"}),
    "hybrid(N), sum, is ssgd of the sum": (SUM, {"policy": "synchronous(aggregate=sum)"}),
    "hybrid(2) is k-async(2)": (TWO, {"policy": "k-async(k=2)"}),
    "hybrid without tolerance is asgd": (UNBOUNDED, {}),
    "ga with one worker is nesterov": (
        {"method": "ga", "workers": 1},
        {"method": "nag-asgd", "workers": 1},
    ),
}


@pytest.mark.parametrize("claim", SAME)
def test_equivalent_methods_are_bit_identical(claim: str) -> None:
    one, other = (run_story(**QUADRATIC | settings).server.x for settings in SAME[claim])
    assert torch.equal(one, other)


def test_a_pull_interval_behind_a_barrier_ages_the_weights_step_by_step() -> None:
    policy = "hybrid(num_workers_ps_update=5, pull_weights_interval=3)"
    story = run_story(**QUADRATIC | {"updates": 8}, policy=policy)
    assert story.staleness == [tau for tau in (0, 0, 1, 2, 0, 1, 2, 0) for _ in range(5)]


@pytest.mark.parametrize("method", ["dana-ga", "dana-dc"])
def test_with_one_worker_the_look_ahead_is_a_gap(method: str) -> None:
    one = QUADRATIC | {"workers": 1}
    ours, dana = (run_story(**one, method=name).server.x for name in (method, "dana"))
    assert not torch.equal(ours, dana)


def test_dana_and_dana_slim_differ_when_the_rate_changes() -> None:
    """An epoch of the quadratic has 1,000 gradients; the learning rate halves after it."""

    def difference(**settings: Any) -> float:
        choices = QUADRATIC | {"updates": 1100} | settings
        full, slim = (run_story(**choices, method=method).server for method in ("dana", "dana-slim"))
        return float((full.optimizer.send(full.x, full.lr, 0) - slim.x).abs().max())

    assert difference() < 1e-12
    assert difference(schedule="step(step_size=1, gamma=0.5)") > 1e-6


# Language.

# Phrases of the old dialect, which texts must not return to (see "Plain English" in CONTRIBUTING.md).
DIALECT = re.compile(
    r"mended|the departed|of one's own|goes on from|nobody |is no (?:cluster|set|pair|run)|at hand",
    re.IGNORECASE,
)
TEXTS = [
    path
    for path in (ROOT / "src").rglob("*")
    if path.suffix in (".py", ".html", ".js", ".json", ".md", ".toml")
]
TEXTS += [*ROOT.glob("docs/*.md"), *(ROOT / f"{name}.md" for name in ("README", "DESIGN", "CONTRIBUTING"))]


def test_texts_are_in_plain_english() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in TEXTS
        if (lines := [line for line in path.read_text().splitlines() if DIALECT.search(line)])
    }
    assert found == {}


# Links.


def documents() -> list[Path]:
    """Return the Markdown files of the project, without those of its tools and runs."""
    pages = (path.relative_to(ROOT) for path in ROOT.rglob("*.md"))
    return sorted(
        ROOT / page for page in pages if page.parts[0] not in LEFT_OUT and not page.parts[0].startswith(".")
    )


LEFT_OUT = {"node_modules", "build", "dist", "runs"}
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\s*\[[^\]]+\]:\s*(\S+)", re.MULTILINE)


def relative_links(text: str) -> list[str]:
    """Return the targets of links and images that are files; code is ignored."""
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "", text)
    targets = [inline or reference for inline, reference in LINK.findall(text)]
    return [target.split("#")[0] for target in targets if not re.match(r"[a-z][a-z0-9+.-]*:|#", target)]


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    folder = document.parent
    if document.name == "notes.md":  # becomes a part of results/NAME/README.md
        folder = ROOT / "results" / folder.name.replace("_", "-")
        if not folder.exists():
            pytest.skip(f"{folder.name} has no results yet")
    missing = [link for link in relative_links(document.read_text()) if not (folder / link).exists()]
    assert missing == []


def test_links_are_found() -> None:
    text = (
        "[a](b.md) ![c](d/e.png) [f](g.md#h) [i](https://j) [k](#l)\n`[m](n)`\n```\n[o](p)\n```\n[q]: r.md\n"
    )
    assert relative_links(text) == ["b.md", "d/e.png", "g.md", "r.md"]


# The README.


def test_the_picture_shows_the_numbers_that_its_text_names() -> None:
    title = re.search(r"<title[^>]*>([^<]+)</title>", (ROOT / "docs" / "race.svg").read_text())
    assert title is not None
    for page in ("README.md", "docs/index.md"):
        (text,) = re.findall(r"!\[(A race: [^\]]+)\]", PAGES[page])
        assert re.findall(r"\d+\.\d", text) == re.findall(r"\d+\.\d", title[1])


def test_the_readme_is_short_and_its_findings_are_on_the_pages_that_it_names() -> None:
    readme = PAGES["README.md"]
    assert len(readme.splitlines()) <= 130
    assert all(f"{len(METHODS)} methods" in PAGES[page] for page in ("README.md", "docs/index.md"))
    findings = re.split(r"^- ", sections(readme)["What it found"], flags=re.MULTILINE)[1:]
    assert len(findings) >= 3
    for finding in findings:
        page = (ROOT / re.findall(r"\]\(([\w/-]+\.md)\)", finding.split("\n\n")[0])[0]).read_text()
        numbers = re.findall(r"-?\d+\.\d+ ± \d+\.\d+", finding)
        assert numbers and all(number in page for number in numbers)
