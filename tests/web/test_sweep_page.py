"""The results of a sweep: from its summaries, and from the list of runs while it is running."""

from pathlib import Path

import polars as pl
import pytest

from straggler.record import RecordError
from straggler.web.sweep_page import describe_sweep

ROWS = [
    {
        "method": method,
        "lr": lr,
        "dataset": "digits",
        "seed": seed,
        "id": f"{method}-{lr}-{seed}",
        "test_accuracy": accuracy + seed,
        "converged": not (method == "ssgd" and lr == 0.2),
        "mean_staleness": 1.0,
        "seconds": 10.0 * lr + seed,
    }
    for method, accuracy in (("asgd", 80.0), ("ssgd", 70.0))
    for lr in (0.01, 0.2)
    for seed in range(3)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pl.DataFrame(ROWS).write_parquet(tmp_path / "summaries.parquet")
    return tmp_path


def test_figures_and_table_of_the_summaries(folder: Path) -> None:
    times = {row["id"]: 5.0 + row["seed"] for row in ROWS if row["method"] == "asgd"}
    page = describe_sweep(folder, [], times, 90.0)
    assert page["keys"] == ["method", "lr"]  # the data set does not vary
    assert page["columns"][-3] == "time to 90 % (s)"
    cells = {tuple(row["cells"][:2]): row["cells"][2:] for row in page["rows"]}
    assert cells["asgd", "0.01"][:3] == ["3", "81.00 ± 2.48", "6.0 ± 2.5"]
    assert cells["ssgd", "0.2"][:3] == ["3", "NC", "–"]
    heat = next(figure for figure in page["figures"] if figure["name"] == "heatmap")
    assert heat["views"][0]["data"][0]["z"] == [[81, 81], [71, None]]
    lines = next(figure for figure in page["figures"] if figure["name"] == "parallel")
    assert len(lines["data"]) == 3  # settings that converged
    assert all(0 <= value <= 1 for line in lines["data"] for value in line["y"])
    assert {figure["name"] for figure in page["figures"]} == {"heatmap", "parallel", "time"}


def test_running_sweeps_are_shown_from_the_list_of_runs(tmp_path: Path) -> None:
    """Settings that the method decides are left out."""
    policies = {"asgd": {}, "ssgd": {"policy": "synchronous"}}
    listed = [
        {key: value for key, value in row.items() if key != "lr"}
        | {"settings": {"lr": row["lr"], **policies[str(row["method"])]}, "status": "finished"}
        for row in ROWS
    ]
    page = describe_sweep(tmp_path, listed, {}, 80.0)
    assert page["keys"] == ["method", "lr"] and len(page["rows"]) == 4


def test_one_setting_has_no_heatmap_and_an_empty_sweep_says_so(tmp_path: Path) -> None:
    page = describe_sweep(tmp_path, ROWS[:3], {}, 80.0)
    assert [figure["name"] for figure in page["figures"]] == ["time"] and len(page["rows"]) == 1
    with pytest.raises(RecordError, match="no results yet"):
        describe_sweep(tmp_path, [], {}, 80.0)


def test_hostile_labels_are_escaped_where_plotly_interprets_html(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>%{x}"
    rows = [row | {"method": hostile if row["method"] == "ssgd" else "asgd"} for row in ROWS]
    pl.DataFrame(rows).write_parquet(tmp_path / "summaries.parquet")
    for figure in describe_sweep(tmp_path, [], {}, 80.0)["figures"]:
        for trace in figure.get("data", []):
            assert "<img" not in str(trace.get("hovertemplate", ""))
            assert "<img" not in str(trace.get("text", ""))
