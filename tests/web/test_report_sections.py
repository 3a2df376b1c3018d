"""Contents, sections and targets of reports; every format carries the same information."""

import re
from html import unescape
from pathlib import Path

import polars as pl
import pytest
from matplotlib.text import Text

from straggler.analysis.sweep_tables import choose_target
from straggler.config.registry import InputError
from straggler.web.printed_report import align_table, draw_pages, lay_out_markdown
from straggler.web.report import build_summary, render_html_report, render_markdown_report, report
from straggler.web.report_sections import (
    build_study_report,
    find_study_runs,
    list_best_accuracies,
    split_document,
)
from straggler.web.run_facts import RunFacts
from straggler.web.study_page import StudyPage

DOCUMENT = """# A study

Words before.

## Claims

| claim | verdict |
| --- | --- |
| it holds | replicated |

## Tables & more

### One

1

### Two

2

## Figures

![beside](beside.png)
"""


@pytest.fixture
def sweep(runs: dict[str, Path], tmp_path: Path) -> tuple[StudyPage, Path]:
    """The results of a sweep with a document, and the folder of its runs; one run is not on this machine."""
    folder = tmp_path / "results" / "My sweep"
    folder.mkdir(parents=True)
    names = [runs[name].name for name in ("asgd", "seed 1", "ssgd")]
    pl.DataFrame({"id": [*names, "elsewhere"]}).write_parquet(folder / "summaries.parquet")
    (folder / "README.md").write_text(DOCUMENT)
    return StudyPage(folder), runs["asgd"].parent


def check_links(page: str) -> list[str]:
    """Check that every link of the contents leads to one place of the page; return the links."""
    body = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    links = re.findall(r'href="#([^"]+)"', body)
    identifiers = re.findall(r'\bid="([^"]+)"', body)
    assert links and all(identifiers.count(link) == 1 for link in links), (links, identifiers)
    return links


def test_a_document_is_folded_at_its_headings(sweep: tuple[StudyPage, Path]) -> None:
    page, runs_folder = sweep
    built = build_study_report(page, runs_folder)
    titles = [section.title for section in built.sections]
    assert titles == ["", "Claims", "Tables & more", "Figures"]
    assert [part.title for part in built.sections[2].parts] == ["One", "Two"]
    assert [section.is_open for section in built.sections] == [True, True, False, False]
    whole = "".join(s.html + "".join(part.html for part in s.parts) for s in built.sections)
    words = re.sub(r"<h[23]>.*?</h[23]>", "", page.documents["README"])
    assert re.sub(r"\s", "", whole) == re.sub(r"\s", "", words)  # nothing is lost
    assert split_document("", "a") == [] and split_document("<p>x</p>", "a")[0].anchor == "a"


@pytest.mark.slow
def test_contents_lead_to_every_part(sweep: tuple[StudyPage, Path], runs: dict[str, Path]) -> None:
    page, runs_folder = sweep
    both = [RunFacts(runs["asgd"]), RunFacts(runs["ssgd"])]
    html = render_html_report(both, [build_study_report(page, runs_folder)])
    links = check_links(html)
    assert {"summary", "settings", "commands", "figure-accuracy", "study-my-sweep-runs"} <= {*links}
    assert any(link.startswith("figure-study-my-sweep") for link in links)
    assert "Tables &amp; more</a>" in html and "&amp;amp;" not in html
    check_links(render_html_report(both))


def test_a_sweep_shows_its_runs_and_figures(sweep: tuple[StudyPage, Path]) -> None:
    page, runs_folder = sweep
    built = build_study_report(page, runs_folder)
    assert len(built.runs) == 3 and {figure.name for figure in built.figures} >= {"accuracy", "loss"}
    html = render_html_report([], [built], embedded=False)
    assert all(f'data-figure="study-my-sweep-{figure.name}"' in html for figure in built.figures)
    assert build_study_report(page, None).runs == []


def test_results_name_only_runs_inside_their_folder(sweep: tuple[StudyPage, Path], tmp_path: Path) -> None:
    page, runs_folder = sweep
    (inside := tmp_path / "records" / "inside").mkdir(parents=True)
    (inside / "linked").symlink_to(runs_folder / page.run_ids[0])
    (inside.parent / "experiment.toml").write_text("seed = 1")
    page.run_ids = ["..", ".", "linked", "../inside"]
    assert find_study_runs(page, inside) == []


def test_the_time_to_a_target_is_in_the_summary(runs: dict[str, Path]) -> None:
    both = [RunFacts(runs["asgd"]), RunFacts(runs["ssgd"])]
    groups = {run.id: [run] for run in both}
    target = choose_target(list_best_accuracies(groups))
    assert target is not None and target % 5 == 0
    tops = sorted(float(run.curve["test_accuracy"].max()) for run in both)  # type: ignore[arg-type]
    assert target <= tops[-1] < target + 5
    assert choose_target([]) is None and choose_target([4.9]) is None
    assert choose_target([61.0, 79.9]) == 75.0  # half of them
    columns, rows = build_summary(both, target)
    place = columns.index(f"time to {target:g} % (s)")
    for row, run in zip(rows, sorted(both, key=lambda run: run.method != "ssgd"), strict=True):
        time = run.record.time_to(target)
        assert row[place] == ("not reached" if time is None else f"{time:,.1f}")
    assert [row[place] for row in build_summary(both, 100.0)[1]] == ["not reached"] * 2


@pytest.mark.parametrize("target", [0.0, -1.0, 101.0])
def test_an_impossible_target_is_refused(target: float, runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="target must be"):
        report(runs["asgd"], tmp_path / "a.md", target=target)


def test_printed_and_html_reports_carry_the_same_information(runs: dict[str, Path]) -> None:
    both = [RunFacts(runs["asgd"]), RunFacts(runs["ssgd"])]
    text = render_markdown_report(both, ())
    pages = draw_pages(both, (), text)
    printed = " ".join(word.get_text() for page in pages for word in page.findobj(Text))  # type: ignore[attr-defined]
    html = unescape(re.sub(r"<[^>]+>", " ", render_html_report(both, embedded=False)))
    columns, rows = build_summary(both, None)
    facts = [cell for row in [columns, *rows] for cell in row]
    facts += [line for run in both for line in run.text.splitlines() if line.strip()]
    facts += [word for run in both for word in run.rerun_command()]
    facts += [str(run.summary["weights_sha256"]) for run in both]
    for fact in facts:
        for shown in (text, printed, html):
            assert "".join(str(fact).split()).replace("'", "") in "".join(shown.split()).replace("'", ""), (
                fact
            )


@pytest.mark.slow
@pytest.mark.parametrize(("form", "magic"), [("pdf", b"%PDF"), ("png", b"\x89PNG")])
def test_studies_are_printed_too(
    sweep: tuple[StudyPage, Path], tmp_path: Path, form: str, magic: bytes
) -> None:
    page, runs_folder = sweep
    file = report(page.path, tmp_path / f"study.{form}", runs_folder=runs_folder)
    assert file.read_bytes().startswith(magic)


@pytest.mark.parametrize("width", [40, 132])
def test_printed_tables_are_aligned_and_lose_no_word(width: int) -> None:
    rows = ["| name | a long heading of a column |", "| --- | --- |", r"| x \| y | " + "word " * 30 + "|"]
    lines = align_table(rows, width)
    assert max(map(len, lines)) <= width
    assert "".join(lines).count("word") == 30 and "x | y" in "".join(lines)
    shown = lay_out_markdown(
        "# Title\n\n" + "\n".join(rows) + "\n\n```\ncode | no table\n```\n![a](b.png)", width
    )
    assert ("Title", True) in shown and ("    code | no table", False) in shown
    assert not any("b.png" in line or "```" in line for line, _ in shown)
