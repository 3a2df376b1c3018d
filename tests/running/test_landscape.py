"""Landscapes: exact on quadratics, equal to the snapshots, computed once."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

from straggler.algorithms.work import gradient_program
from straggler.analysis.figures.landscape import build_landscape_figure, read_surface
from straggler.analysis.figures.matplotlib_renderer import write_figure
from straggler.analysis.figures.plotly_renderer import write_page
from straggler.analysis.labels import name_runs
from straggler.cli import build_app
from straggler.config.registry import InputError
from straggler.engines.pool.gradient_pool import GradientComputer, GradientPool
from straggler.experiment import Experiment
from straggler.problems.supervised import use_one_thread
from straggler.record import Record
from straggler.running.landscape import Landscape, Plane, compute_landscape

QUADRATIC = "quadratic(dimension=6, condition=10, noise=0.1)"


def train(folder: Path, **settings: Any) -> Record:
    defaults = {"dataset": QUADRATIC, "workers": 3, "lr": 0.1, "updates": 60, "snapshots": 8, "eval_every": 0}
    return Experiment(**defaults | settings).run(folder, jobs=1)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    folder = tmp_path_factory.mktemp("runs")
    return name_runs([train(folder, momentum=momentum) for momentum in (0.0, 0.5, 0.9)])


@pytest.fixture(scope="module")
def seen(three: dict[str, Record]) -> Landscape:
    return compute_landscape(three, grid=9, margin=0.5, jobs=1)


def quadratic_loss(x: np.ndarray[Any, Any]) -> float:
    problem: Any = Experiment(dataset=QUADRATIC, workers=3).problem()
    away = x - problem.optimum.numpy()
    return float(0.5 * (problem.curvature.numpy() * away) @ away)


def test_the_grid_matches_the_closed_form(seen: Landscape) -> None:
    grid = seen.points.filter(kind="grid")
    assert len(grid) == 81
    for a, b, loss in grid.select("a", "b", "loss").iter_rows():
        assert loss == pytest.approx(quadratic_loss(seen.plane.at(a, b)), rel=1e-12)


def test_paths_have_projected_coordinates_and_their_losses(seen: Landscape, three: dict[str, Record]) -> None:
    for run, record in three.items():
        weights = record.snapshots()["weights"].numpy()
        path = seen.points.filter(kind="path", run=run)
        shadow = seen.points.filter(kind="shadow", run=run)
        expected = (weights - seen.plane.middle) @ seen.plane.directions.T
        assert np.allclose(path.select("a", "b").to_numpy(), expected, atol=1e-12)
        assert path.select("a", "b").equals(shadow.select("a", "b"))
        assert path["loss"].to_list() == pytest.approx([quadratic_loss(x) for x in weights], rel=1e-12)
        back = [quadratic_loss(seen.plane.at(a, b)) for a, b in expected]
        assert shadow["loss"].to_list() == pytest.approx(back, rel=1e-12)
        assert path["updates"].to_list() == record.snapshots()["updates"].tolist()


def test_the_residual_is_the_unexplained_variance(seen: Landscape, three: dict[str, Record]) -> None:
    weights = np.concatenate([record.snapshots()["weights"].numpy() for record in three.values()])
    back = np.array([seen.plane.at(a, b) for a, b in seen.plane.project(weights)])
    away = ((weights - back) ** 2).sum() / ((weights - weights.mean(axis=0)) ** 2).sum()
    assert away == pytest.approx(1 - sum(seen.plane.explained), abs=1e-12)
    assert 0.5 < sum(seen.plane.explained) < 1


def test_a_plane_explains_everything_in_two_dimensions(tmp_path: Path) -> None:
    record = train(tmp_path, dataset="quadratic(dimension=2, noise=0.3)")
    flat = compute_landscape({"": record}, grid=3, jobs=1)
    assert sum(flat.plane.explained) == pytest.approx(1)
    path, shadow = (flat.points.filter(kind=kind)["loss"].to_numpy() for kind in ("path", "shadow"))
    assert np.allclose(path, shadow, rtol=1e-9)


def test_the_grid_covers_the_paths_and_a_margin(seen: Landscape) -> None:
    across, up, losses = read_surface(seen.points)
    assert losses.shape == (9, 9)
    for axis, places in (("a", across), ("b", up)):
        path = seen.points.filter(kind="path")[axis].to_numpy()
        width = path.max() - path.min()
        assert places[0] == pytest.approx(path.min() - 0.5 * width)
        assert places[-1] == pytest.approx(path.max() + 0.5 * width)


def test_a_straight_path_still_spans_a_plane() -> None:
    steps = np.outer(np.arange(4.0), [1.0, 2.0, 3.0])
    plane = Plane.through(steps)
    assert plane.explained == pytest.approx((1.0, 0.0))
    assert np.allclose(plane.directions @ plane.directions.T, np.eye(2))


def test_cached_landscapes_are_not_computed_again(
    seen: Landscape, three: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        "straggler.running.landscape.evaluate_points", lambda *_: pytest.fail("computed again")
    )
    again = compute_landscape(three, grid=9, margin=0.5, jobs=1, report=said.append)
    assert again.points.equals(seen.points)
    assert said and said[0].startswith("Read from")
    for other in ({"grid": 8}, {"margin": 0.4}, {"samples": 5}):
        with pytest.raises(pytest.fail.Exception, match="computed again"):
            compute_landscape(three, **{"grid": 9, "margin": 0.5, "jobs": 1, **other})  # type: ignore[arg-type]


def test_an_interrupted_grid_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"": train(tmp_path)}
    monkeypatch.setattr("straggler.running.landscape.SAVE_SECONDS", 0.0)

    def interrupt(done: float, what: str) -> None:
        if done > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute_landscape(runs, grid=6, jobs=1, progress=interrupt)
    counted: list[str] = []
    whole = compute_landscape(runs, grid=6, jobs=1, progress=lambda done, what: counted.append(what))
    assert 10 < len(counted) < 30  # of 36 + 18
    fresh = compute_landscape({"": train(tmp_path / "other")}, grid=6, jobs=1)
    assert whole.points.equals(fresh.points)


@pytest.mark.slow
def test_one_and_two_processes_give_the_same_bits() -> None:
    experiment = Experiment(dataset="digits", model="asu-fashion", workers=2)
    problem = experiment.problem()
    x, buffers = problem.initial_model()
    models = [(x + 0.01 * i, buffers) for i in range(12)]
    pool = GradientPool(gradient_program(problem), 2)
    try:
        pool.wait_until_ready()
        with use_one_thread():
            alone = [
                [c.loss for c in chunks]
                for chunks in GradientComputer(gradient_program(problem)).evaluate_each(models, "train")
            ]
            there = [[c.loss for c in chunks] for chunks in pool.evaluate_each(iter(models), "train")]
    finally:
        pool.close()
    assert alone == there and len(alone) == 12 and len(alone[0]) == problem.count_chunks("train") > 1


@pytest.mark.slow
def test_batch_norm_and_a_part_of_the_test_set(tmp_path: Path) -> None:
    """The path is evaluated with its own buffers, so that its last loss is the run's test loss."""
    record = train(tmp_path, dataset="digits", model="asu-fashion", updates=30, snapshots=3)
    whole = compute_landscape({"": record}, grid=2, jobs=1)
    last = whole.points.filter(kind="path")["loss"][-1]
    assert last == pytest.approx(record.summary["test_loss"], rel=1e-6)
    part = compute_landscape({"": record}, grid=2, samples=50, jobs=1)
    assert part.points.filter(kind="path")["loss"][-1] != last
    assert part.points.select("a", "b").equals(whole.points.select("a", "b"))


@pytest.mark.slow
def test_figures_are_written_in_every_format(seen: Landscape, tmp_path: Path) -> None:
    for name in ("l.png", "l.svg", "l.pdf"):
        spec = build_landscape_figure(seen.points, seen.plane.explained, None)
        assert write_figure(spec, tmp_path / name).stat().st_size > 5_000
    spec = build_landscape_figure(seen.points, seen.plane.explained, 500)
    page = write_page(spec, tmp_path / "l.html").read_text()
    assert "500 test samples" in page and "momentum 0.9" in page
    assert "cdn.plot.ly" not in page.split("<body>")[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l.html", "l.pdf", "l.png", "l.svg"]


def test_infinite_losses_stay_empty(seen: Landscape, tmp_path: Path) -> None:
    far = seen.points.with_columns(
        loss=pl.when((pl.col("kind") == "grid") & (pl.col("a") > 0)).then(float("inf")).otherwise("loss")
    )
    assert np.isnan(read_surface(far)[2]).any()
    write_figure(build_landscape_figure(far, seen.plane.explained, None), tmp_path / "far.png")


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(build_app(load_all=True), arguments)


def test_landscape_command(three: dict[str, Record], tmp_path: Path) -> None:
    folders = [str(record.path) for record in three.values()]
    target = tmp_path / "l.svg"
    result = invoke("landscape", *folders, "--grid", "4", "--jobs", "1", "--out", str(target))
    assert result.exit_code == 0, result.output
    assert "momentum 0.5" in result.output and "of the variance of the weights" in result.output
    assert "momentum 0.5" in target.read_text()


def test_wrong_input_is_refused(three: dict[str, Record], tmp_path: Path) -> None:
    first = next(iter(three.values()))
    without = train(tmp_path, snapshots=0)
    with pytest.raises(InputError, match="has no snapshots"):
        compute_landscape({"": without})
    other = train(tmp_path, dataset="quadratic(dimension=3)")
    with pytest.raises(InputError, match="has dataset=quadratic"):
        compute_landscape({"a": first, "b": other})
    for wrong in (["--view", "side"], ["--out", "l.gif"]):
        assert isinstance(invoke("landscape", str(first.path), *wrong).exception, InputError)


def test_infinite_snapshots_are_left_out(tmp_path: Path) -> None:
    record = train(tmp_path, snapshots=5)
    snapshots = record.snapshots()
    snapshots["weights"][-1] = torch.nan
    from safetensors.torch import save_file

    save_file(snapshots, record.path / "snapshots.safetensors")
    said: list[str] = []
    found = compute_landscape({"": record}, grid=2, jobs=1, report=said.append)
    assert "left out 1 snapshots" in said[0]
    assert len(found.points.filter(kind="path")) == len(snapshots["weights"]) - 1
