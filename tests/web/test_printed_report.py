"""Printed reports."""

from pathlib import Path

from straggler.web.printed_report import draw_pages
from straggler.web.run_facts import RunFacts


def test_printed_timelines_share_one_legend(runs: dict[str, Path]) -> None:
    _, curves, timelines, _ = draw_pages(
        [RunFacts(runs[name]) for name in ("asgd", "ssgd", "k-sync", "seed 1")], (), "# Title"
    )
    assert not any(axes.get_legend() for axes in timelines.axes)
    words = [text.get_text() for legend in timelines.legends for text in legend.get_texts()]
    assert sorted(words) == sorted({*words}) and {"delayed", "waiting", "cancelled"} <= {*words}
    curves.draw_without_rendering()
    timelines.draw_without_rendering()
    below = min(axes.get_tightbbox().y0 for axes in timelines.axes)  # type: ignore[union-attr]
    assert timelines.legends[0].get_window_extent().y1 < below
    assert all(", the first" in axes.get_title() for axes in timelines.axes)
    ticks = next(axes for axes in curves.axes if "staleness" in axes.get_xlabel()).get_xticks()
    assert all(float(tick).is_integer() for tick in ticks)
    entries = [text.get_text() for text in curves.axes[0].get_legend().get_texts()]
    assert entries == ["ssgd", "asgd", "k-sync"]
