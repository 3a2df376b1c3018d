"""A simulation fitted to a real run recovers the known laws and predicts the measured rates."""

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn

from straggler.cli.calibrate import calibrate_
from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.record import Record
from straggler.timing import calibration
from straggler.timing.calibration import calibrate
from straggler.timing.laws import Gamma
from straggler.web.report import render_html_report
from straggler.web.run_facts import RunFacts

DIGITS: dict[str, Any] = {"dataset": "digits", "model": "mlp(hidden=[16])", "lr": 0.01, "eval_every": 0}


def called_real(record: Record, folder: Path, cores: int = 64) -> Record:
    """Return the record of a simulation with known laws, which claims to be of processes on some cores."""
    shutil.copytree(record.path, folder)
    text = record.text.replace('engine = "simulator"', 'engine = "processes"')
    kept = [line for line in text.splitlines() if not line.startswith("cores")]
    (folder / "experiment.toml").write_text("\n".join(kept))
    (folder / "environment.json").write_text(json.dumps(record.environment | {"cores": cores}))
    return Record(folder)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["asgd", "ssgd", "ssp", "k-async"])
def test_calibration_recovers_known_laws(method: str, tmp_path: Path) -> None:
    settings = DIGITS | {"method": method, "workers": 4, "gradients": 4000}
    laws = {
        "compute": "gamma(mean=0.02, cv=0.3)",
        "delay": ["constant(0.05, workers=[0])", "gamma(0.01, 0.2, workers=[3])"],
    }
    record = Experiment(**settings, **laws).run(tmp_path / "runs", jobs=1)
    real = called_real(record, tmp_path / "real")
    found = calibrate(real)
    compute = found.experiment.compute
    assert isinstance(compute, Gamma)
    assert compute.mean == pytest.approx(0.02, rel=0.05)
    assert compute.cv == pytest.approx(0.3, rel=0.1)
    assert [str(law) for law in found.experiment.delay][:2] == [
        "constant(seconds=0.05, workers=[0])",
        "gamma(mean=0.01, cv=0.2, workers=[3])",
    ]
    assert max(found.parts["transport"]) < 1e-9  # virtual messages take no time
    for name in ("updates per second", "mean staleness"):
        assert found.predicted[name] == pytest.approx(found.measured[name], rel=0.03, abs=0.02)
    assert not found.warnings and found.experiment.cores is None
    assert sum(found.staleness["measured"]) == pytest.approx(1)
    assert sum(found.staleness["predicted"]) == pytest.approx(1)
    distance = (found.staleness["measured"] - found.staleness["predicted"]).abs().sum() / 2
    assert distance < 0.06  # total variation
    assert json.loads(found.to_json())["measured"] == found.measured
    assert "Predicted and measured staleness" not in render_html_report([RunFacts(real.path)])
    (real.path / "calibration.json").write_text(found.to_json())
    assert "Predicted and measured staleness" in render_html_report([RunFacts(real.path)])


def test_runs_that_cannot_be_fitted_are_refused(tmp_path: Path) -> None:
    record = Experiment(**DIGITS, gradients=20).run(tmp_path / "runs", jobs=1)
    with pytest.raises(InputError, match="was simulated"):
        calibrate(record)
    with pytest.raises(InputError, match="worker 0 finished 4 jobs, but a fit needs 20"):
        calibrate(called_real(record, tmp_path / "real"))
    (tmp_path / "real" / "summary.json").write_text('{"status": "interrupted"}')
    with pytest.raises(InputError, match="has not ended"):
        calibrate(Record(tmp_path / "real"))


def run_on_shared_cores(folder: Path, **settings: Any) -> Record:
    """Return the record of four workers and a server that seem to have shared two real cores."""
    shared = {"cores": "cores(2, slice=0.0008, server=0.0004, cv=0.3)", "workers": 4}
    laws = shared | {"compute": "gamma(0.0012, 0.35)", "gradients": 3000}
    record = Experiment(**DIGITS | laws | settings).run(folder / "runs", jobs=1)
    return called_real(record, folder / "real", cores=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "delay", [[], pytest.param(["constant(0.03, workers=[0])"], marks=pytest.mark.chaos)]
)
def test_calibration_recovers_contention(
    delay: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulation with shared cores is found, and predicts the half of the run that it was not fitted to."""
    monkeypatch.setattr(calibration, "FITTED_ARRIVALS", 400)
    monkeypatch.setattr(calibration, "PREDICTED_ARRIVALS", 2000)
    real = run_on_shared_cores(tmp_path, delay=delay)
    found = calibrate(real)
    assert found.experiment.cores is not None and found.experiment.cores.count == 2 and not found.warnings
    assert found.predicted["fresh (staleness 0)"] == pytest.approx(
        found.measured["fresh (staleness 0)"], abs=0.05
    )
    assert abs(found.predicted["staleness, 95 %"] - found.measured["staleness, 95 %"]) <= 1
    assert found.predicted["updates per second"] == pytest.approx(
        found.measured["updates per second"], rel=0.1
    )
    assert json.loads(found.to_json())["cores"].startswith("cores(count=2")


def test_a_poor_fit_has_a_warning_with_the_reason(tmp_path: Path) -> None:
    """In the second half, the workers are twice as fast."""
    simulated = Experiment(**DIGITS, gradients=400, compute="gamma(0.02, 0.3)").run(tmp_path, jobs=1)
    record = called_real(simulated, tmp_path / "real")
    arrivals, half = record.arrivals, record.arrivals["time"][200]
    quicker = [
        pl.when(pl.col(name) > half)
        .then(half + (pl.col(name) - half) / 2)
        .otherwise(pl.col(name))
        .alias(name)
        for name in ("time", "started")
    ]
    arrivals.with_columns(*quicker).write_parquet(record.path / "arrivals.parquet")
    (warning,) = calibrate(Record(record.path)).warnings
    assert warning.startswith("updates per second is") and "something outside the run changed" in warning


@pytest.mark.slow
@pytest.mark.chaos  # only on a quiet machine: other tests take the cores that the prediction assumes
@pytest.mark.parametrize("method", ["asgd", "ssp"])
def test_a_real_run_is_predicted(method: str, tmp_path: Path) -> None:
    """The prediction for four workers, one of them delayed, is within 10 %."""
    delayed = {"workers": 4, "delay": "constant(0.03, workers=[0])", "seconds": 8, "engine": "processes"}
    found = calibrate(Experiment(**DIGITS | {"method": method}, **delayed).run(tmp_path))
    for name in ("updates per second", "mean staleness"):
        assert found.predicted[name] == pytest.approx(found.measured[name], rel=0.1)


def test_a_run_with_custom_data_and_model_is_fitted(tmp_path: Path) -> None:
    """Only times are simulated, so defaults replace custom data and models if no experiment is passed."""
    data = (torch.randn(64, 3), torch.arange(64) % 2, torch.randn(8, 3), torch.arange(8) % 2)
    experiment = Experiment(
        dataset=data, model=lambda: nn.Linear(3, 2), workers=2, gradients=200, compute="gamma(0.02, 0.3)"
    )
    real = called_real(experiment.run(tmp_path / "runs", jobs=1), tmp_path / "real")
    found, whole = calibrate(real), calibrate(real, Experiment(**dict(experiment) | {"engine": "processes"}))
    assert str(found.experiment.compute) == str(whole.experiment.compute)
    assert whole.experiment.dataset is experiment.dataset and whole.experiment.model is experiment.model


def test_the_command_writes_a_fitted_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated = Experiment(**DIGITS, gradients=200, compute="gamma(0.02, 0.3)").run(tmp_path, jobs=1)
    record = called_real(simulated, tmp_path / "real")
    calibrate_(str(record.path), tmp_path)
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("Mean time of a job", "measured", "utilisation", "compute = "))
    fitted = Experiment.from_toml(record.path / "calibrated.toml")
    assert fitted.engine == "simulator" and (record.path / "calibration.json").is_file()
    assert f"straggler run --config {record.path / 'calibrated.toml'}\n" in printed


def test_the_printed_command_of_custom_code_has_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("custom.py").write_text(
        "from straggler import Correction\n\n\nclass Same(Correction):\n"
        "    def correct(self, gradient, arrival, server):\n        return gradient, 1.0\n"
    )
    experiment = Experiment(
        **DIGITS, gradients=200, compute="gamma(0.02, 0.3)", correction="./custom.py:Same"
    )
    record = called_real(experiment.run("runs", jobs=1), tmp_path / "real")
    calibrate_(str(record.path), tmp_path, trust=True)
    assert "calibrated.toml --trust" in capsys.readouterr().out
