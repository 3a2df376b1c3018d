"""Grids: combinations, labels, seeds, limits, and errors that are found before anything runs."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.sweeps.grid import (
    MAX_RUNS,
    Cell,
    expand_grid,
    find_runnable_cells,
    format_label,
    plan_runs,
    read_grid_file,
)

TINY = {"dataset": "digits", "model": "linear", "epochs": 0.5, "eval_every": 0}


def write_grid(folder: Path, text: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def test_a_list_means_alternatives() -> None:
    cells, _ = expand_grid({"workers": [2, 4], "method": ["asgd", "ssgd", "ssp"], "lr": 0.1})
    assert len(cells) == 6
    assert cells[0].labels == {"workers": 2, "method": "asgd"}
    assert cells[0].name == "workers=2, method=asgd"
    assert all(cell.settings["lr"] == 0.1 for cell in cells)


def test_a_list_of_delays_means_alternatives_too(tmp_path: Path) -> None:
    text = 'delay = ["constant(1)", ["constant(1)", "constant(2, workers=[0])"]]\nseeds = [0, 7]\n'
    cells, seeds = expand_grid(read_grid_file(write_grid(tmp_path, text)))
    assert seeds == [0, 7]
    experiments = [cell.experiment(0) for cell in cells]
    assert [len(e.delay) for e in experiments if isinstance(e, Experiment)] == [1, 2]
    assert cells[1].labels["delay"] == "constant(1) + constant(2, workers=[0])"


def test_grid_tables_share_the_settings_around_them(tmp_path: Path) -> None:
    text = 'lr = 0.1\n[[grid]]\nmethod = "sgd"\nworkers = 1\n[[grid]]\nworkers = [2, 4]\nmomentum = 0.9\n'
    cells, _ = expand_grid(read_grid_file(write_grid(tmp_path, text)))
    assert [cell.labels for cell in cells] == [
        {"method": "sgd", "workers": 1, "momentum": None},
        {"method": None, "workers": 2, "momentum": 0.9},
        {"method": None, "workers": 4, "momentum": 0.9},
    ]
    listed, _ = expand_grid([{"lr": 0.1, "workers": 2}, {"lr": 0.1, "workers": [4, 8]}])
    assert [cell.labels for cell in listed] == [{"workers": 2}, {"workers": 4}, {"workers": 8}]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("worker = [2, 4]\n", "workers"),
        ("seed = [0, 1]\n", "Use seeds"),
        ("seeds = 0\n", "seeds = 0"),
        ("seeds = [1, 1]\n", "different seeds"),
        ("lr = []\n", "at least one"),
        ("lr = [\n", "TOML"),
        ("epochs = [1, 0.5, 1]\n", "epochs lists 1 twice"),
        ("momentum = [0.0, 0.5, 0.0]\n", "momentum lists 0.0 twice"),
        ("grid = 3\n", "grid must be a list"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        expand_grid(read_grid_file(write_grid(tmp_path, text)))


def test_a_huge_grid_is_refused_before_it_is_expanded() -> None:
    values = list(range(1, 101))
    with pytest.raises(InputError, match=rf"10,000,000,000 runs, the limit is {MAX_RUNS:,}"):
        expand_grid(dict.fromkeys(("workers", "lr", "batch_size", "epochs", "snapshots"), values))
    with pytest.raises(InputError, match=r"1,000,000,000 runs"):
        expand_grid({}, seeds=10**9)


def test_a_value_that_is_never_possible_stops_the_sweep_and_is_named() -> None:
    cells, _ = expand_grid({"policy": ["synchronous", "asnchronous"], "workers": [2, 4]})
    with pytest.raises(InputError, match=r"policy = asnchronous: .*asynchronous"):
        find_runnable_cells(cells, 0)


def test_an_impossible_combination_does_not_stop_the_sweep() -> None:
    cells, _ = expand_grid({"policy": ["synchronous", "k-sync(k=3)"], "workers": [2, 4]})
    valid, errors = find_runnable_cells(cells, 0)
    assert len(valid) == 3 and list(errors) == ["policy=k-sync(k=3), workers=2"]


class Network(nn.Module):
    """A custom module."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))

    def forward(self, inputs: torch.Tensor) -> Any:
        """Return the outputs."""
        return self.layers(inputs)


def test_labels_show_custom_objects_by_name() -> None:
    shown = [
        Network,
        partial(Network, width=16),
        Network(),
        "./file.py:Net(width=64)",
        "pkg.mod:Net",
        "linear",
    ]
    expected = ["Network", "Network(width=16)", "Network", "Net(width=64)", "Net", "linear"]
    assert [format_label(value) for value in shown] == expected
    cells, _ = expand_grid({"model": [Network(4), Network(8)], "workers": [4, (2, 8)]})
    assert [tuple(cell.labels.values()) for cell in cells[:3]] == [
        ("Network", "4"),
        ("Network", "(2, 8)"),
        ("Network #2", "4"),
    ]


def test_seeds_are_the_same_for_every_cell_unless_a_cell_overrides_their_number() -> None:
    cells = [
        Cell({"row": "a"}, TINY),
        Cell({"row": "b"}, TINY | {"lr": 0.2}),
        Cell({"row": "c"}, TINY | {"lr": 0.3}, seeds=1),
    ]
    found = [(str(run.cells[0].labels["row"]), run.seed) for run in plan_runs(cells, [0, 1])]
    assert found == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 0)]


def test_identical_cells_share_a_run_with_the_measurements_of_both() -> None:
    cells = [
        Cell({"row": "a"}, TINY | {"method": "asgd"}, measurements=("curve",)),
        Cell({"row": "b"}, TINY | {"policy": "asynchronous"}, measurements=("course",)),
    ]
    (run,) = plan_runs(cells, [0])
    assert [cell.labels["row"] for cell in run.cells] == ["a", "b"]
    assert run.measurements == ("curve", "course")


def test_the_order_of_a_run_gives_its_id_again() -> None:
    grid = {"method": ["asgd", "dana-ga", "hybrid"], "delay": ["constant(0.1)"], "model": [Network]}
    for run in plan_runs(expand_grid(grid)[0], [3]):
        assert isinstance(run.order, dict) and Experiment(**run.order).id == run.id
        assert Experiment(**run.portable_order).id == run.id
