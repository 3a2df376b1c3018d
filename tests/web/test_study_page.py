"""Reports of studies."""

import json
from pathlib import Path

import polars as pl
import pytest

from straggler.web.report import render_html_report
from straggler.web.study_page import StudyPage, is_study_folder

CLAIM = {"statement": "async is <b>faster</b>", "source": "Table 3", "verdict": "holds", "effect": 1.5}
CLAIM |= {"low": 1.2, "high": 1.8, "cause": "no waiting"}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "epfl"
    folder.mkdir()
    (folder / "table.md").write_text(
        "# Table\n\n| method | ours |\n|---|---|\n| asgd | 91 |\n\n![f](fig.png)\n<i>x</i>"
    )
    (folder / "claims.json").write_text(json.dumps([CLAIM]))
    picture = bytes.fromhex("89504e470d0a1a0a")
    (folder / "fig.png").write_bytes(picture)
    (folder / "other.png").write_bytes(picture)
    pl.DataFrame({"seed": [0, 1]}).write_parquet(folder / "summaries.parquet")
    return folder


def test_study_report_has_tables_claims_and_figures(study: Path) -> None:
    found = StudyPage(study)
    text = render_html_report([], [found])
    assert is_study_folder(study) and found.run_count == 2 and found.verdicts == {"holds": 1}
    assert "<td>asgd</td>" in text and "async is &lt;b&gt;faster" in text and "[1.20, 1.80]" in text
    assert text.count('src="data:image/png;base64') == 2  # one in the document, one below it
    assert "&lt;i&gt;x" in text and found.problems == []


def test_study_report_embeds_only_files_of_its_folder(study: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    (study / "table.md").write_text(
        "![a](../secret.png) ![b](https://example.org/x.png) [c](javascript:alert(1))"
    )
    text = StudyPage(study).documents["table"]
    assert "c2VjcmV0" not in text and "example.org" not in text and 'href="javascript' not in text


@pytest.mark.parametrize("claims", ["nonsense", '{"a": 1}', "[1]", "null"])
def test_damaged_claims_are_reported(study: Path, claims: str) -> None:
    (study / "claims.json").write_text(claims)
    text = render_html_report([], [StudyPage(study)])
    assert "claims.json cannot be read" in text and "<td>asgd</td>" in text
