"""Sections of a report: documents folded at their headings, and figures of a sweep's runs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

from straggler.analysis.figures.colours import assign_colours
from straggler.analysis.figures.curves import build_curve_figure
from straggler.analysis.figures.description import FigureSpec
from straggler.analysis.figures.outcomes import build_error_figure, build_pareto_figure
from straggler.analysis.labels import group_seeds
from straggler.running.untrusted_files import is_regular_file
from straggler.web.gallery import try_building
from straggler.web.run_facts import RunFacts, limit_memory
from straggler.web.study_page import StudyPage

MOST_RUNS = 400  # of a study, whose records are read for figures
MOST_CURVES, MOST_POINTS = 12, 32  # settings in one figure
OPEN_SECTIONS = ("Claims",)


@dataclass
class ReportSection:
    """A part of a document under a heading, with the parts below it."""

    title: str
    anchor: str
    html: str = ""
    parts: list["ReportSection"] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether a page shows the section before the reader asks for it."""
        return not self.title or self.title in OPEN_SECTIONS


@dataclass
class StudyReport:
    """A study or sweep in a report: its documents in sections, its runs on this machine, their figures."""

    study: StudyPage
    sections: list[ReportSection]
    runs: list[RunFacts]
    figures: list[FigureSpec]
    note: str = ""

    @property
    def anchor(self) -> str:
        return make_anchor("study", self.study.name)


def make_anchor(*words: str) -> str:
    """Return a name for a link within a page."""
    return "-".join(re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") for word in words)


def split_document(html: str, anchor: str, level: int = 2) -> list[ReportSection]:
    """Split HTML at its headings; the first section is what comes before them, without a title."""
    first, *rest = re.split(rf"<h{level}>(.*?)</h{level}>", html, flags=re.DOTALL)
    sections = [ReportSection("", anchor, first)] if first.strip() else []
    for number, (title, body) in enumerate(zip(rest[::2], rest[1::2], strict=True), 1):
        words = unescape(re.sub(r"<[^>]+>", "", title))
        section = ReportSection(words, f"{anchor}-{number}-{make_anchor(words)}", body)
        if level < 3 and body.count(f"<h{level + 1}>") > 1:
            before, *section.parts = split_document(body, section.anchor, level + 1)
            section.html = before.html if not before.title else ""
            section.parts = section.parts if not before.title else [before, *section.parts]
        sections.append(section)
    return sections


def build_study_report(study: StudyPage, runs_folder: Path | None) -> StudyReport:
    """Split the documents, and build figures of the study's runs that are in a folder of this machine."""
    sections = []
    for name, html in study.documents.items():
        sections += split_document(html, make_anchor("study", study.name, name))
    runs = find_study_runs(study, runs_folder) if runs_folder is not None else []
    groups = group_seeds([run for run in runs if run.settings])
    figures, note = build_study_figures(study.name, runs, groups) if groups else ([], "")
    return StudyReport(study, sections, runs, figures, note)


def find_study_runs(study: StudyPage, folder: Path) -> list[RunFacts]:
    """Return the runs of a study whose records are in a folder, as far as memory allows."""
    names = [name for name in study.run_ids if re.fullmatch(r"\w[\w.-]*", name)][:MOST_RUNS]
    folders = [folder / name for name in names if not (folder / name).is_symlink()]
    found = [RunFacts(one) for one in folders if is_regular_file(one / "experiment.toml")]
    return limit_memory(found)[0]


def build_study_figures(
    name: str, runs: Sequence[RunFacts], groups: Mapping[str, Sequence[RunFacts]]
) -> tuple[list[FigureSpec], str]:
    """Return the figures that can show so many settings, and a sentence if some are left out."""
    builders: dict[str, Any] = {}
    if len(groups) <= MOST_CURVES:
        colours = assign_colours(groups)
        for metric in ("accuracy", "loss"):
            builders[metric] = lambda metric=metric: build_curve_figure(
                metric, groups, training=False, colours=colours
            )
    ended = {label: [run for run in group if "converged" in run.summary] for label, group in groups.items()}
    has_accuracy = any(run.summary.get("test_accuracy") is not None for run in runs)
    if len(groups) <= MOST_POINTS and has_accuracy and all(ended.values()):
        builders["pareto"] = lambda: build_pareto_figure(ended)
        by_size = group_seeds([run for group in ended.values() for run in group], ("workers",))
        if len({run.settings.get("workers") for run in runs}) > 1:
            builders["error"] = lambda: build_error_figure(by_size)
    figures = [try_building(runs, what, build) for what, build in builders.items()]
    command = f"straggler plot accuracy {name} --only KEY=VALUE"
    note = (
        ""
        if len(groups) <= MOST_CURVES
        else f"{len(groups)} settings are too many for curves: use {command}."
    )
    return [figure for figure in figures if figure is not None], note


def list_best_accuracies(groups: Mapping[str, Sequence[RunFacts]]) -> list[float]:
    """Return the best test accuracy of each setting of which a run converged."""
    best = []
    for runs in groups.values():
        tops = [run.curve["test_accuracy"].max() for run in runs if has_accuracy(run)]
        if found := [top for top in tops if isinstance(top, float)]:
            best.append(max(found))
    return best


def has_accuracy(run: RunFacts) -> bool:
    """Return whether a run may have reached a target: it did not diverge, and was evaluated."""
    return run.summary.get("converged") is not False and "test_accuracy" in run.curve.columns
