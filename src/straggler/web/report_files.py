"""A report on disk: whole or absent, in the format that is asked for."""

import os
from collections.abc import Sequence
from pathlib import Path

from straggler.config.registry import InputError
from straggler.web.document_report import markdown, pages, write_pdf, write_png
from straggler.web.report import render_html_report
from straggler.web.run_facts import RunFacts
from straggler.web.study_page import StudyPage


def write_report(kind: str, runs: Sequence[Path], studies: Sequence[Path], path: Path) -> list[str]:
    """Write it beside, then rename it; answer with what could not be read. Of nothing there is no report."""
    records, folders = [RunFacts(run) for run in dict.fromkeys(runs)], [StudyPage(study) for study in studies]
    if records and not folders and not any(run.settings for run in records):
        raise InputError(f"nothing to report: {records[0].trouble[0]}")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fill(kind, records, folders, temporary)
        temporary.replace(path)
    except OSError as error:
        message = f"{path} cannot be written ({error.strerror}); choose another file with --out"
        raise InputError(message) from None
    finally:
        temporary.unlink(missing_ok=True)
    trouble = [study.trouble for study in folders] + [run.trouble for run in records]
    return list(dict.fromkeys(line for lines in trouble for line in lines))


def fill(kind: str, runs: Sequence[RunFacts], studies: Sequence[StudyPage], path: Path) -> None:
    if kind == "html":
        path.write_text(render_html_report(runs, studies))
    elif kind == "md":
        path.write_text(markdown(runs, studies))
    elif kind == "pdf":
        write_pdf(pages(runs), path)
    else:
        write_png(pages(runs), path)
