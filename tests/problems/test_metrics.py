"""Metrics are averaged over the samples of a split, on any number of cores, and appear in every result."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from straggler import Metric
from straggler.analysis.figures.curves import build_curve_figure, list_metrics
from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.problems.metrics import TopKAccuracy, measure_outputs
from straggler.problems.supervised import SupervisedProblem
from straggler.sweeps.sweep import sweep

DIGITS: dict[str, Any] = {
    "dataset": "digits",
    "model": "mlp",
    "workers": 2,
    "epochs": 0.5,
    "eval_every": 0.25,
}


def confidence(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the probability of the true class, one value per sample."""
    return outputs.softmax(1).gather(1, targets[:, None])


def first_target(outputs: Tensor, targets: Tensor) -> float:
    return float(targets[0])


class Margin(Metric):
    """Largest score."""

    power: int = 1

    def compute(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.max(dim=1).values ** self.power

    def finish(self, mean: float, loss: float) -> float:
        return mean ** (1 / self.power) if mean > 0 else 0.0


def test_metrics_are_means_over_the_whole_split_on_any_number_of_cores(tmp_path: Path) -> None:
    """The training set has 1,437 samples: two whole chunks and a part of one."""
    metrics = ["perplexity", "top-k(3)", confidence, Margin(power=2)]
    experiment = Experiment(**DIGITS, metrics=metrics, train_metrics="always", validation=0.1)
    alone, pooled = experiment.run(tmp_path / "1", jobs=1), experiment.run(tmp_path / "3", jobs=3)
    assert alone.curve.equals(pooled.curve, null_equal=True)
    summary, problem = alone.summary, experiment.problem()
    assert isinstance(problem, SupervisedProblem)
    module = problem.module.eval()
    module.load_state_dict(alone.weights())
    for split in ("train", "test", "validation"):
        examples = problem.splits[split]
        inputs, targets = examples.fetch(np.arange(len(examples)))
        with torch.no_grad():
            outputs = module(inputs)
        found = (outputs.topk(3).indices == targets[:, None]).any(1).double().mean()
        expected = {
            "perplexity": math.exp(summary[f"{split}_loss"]),
            "top-k(k=3)": 100 * float(found),
            "confidence": float(confidence(outputs, targets).mean()),
            "Margin(power=2)": float(outputs.max(1).values.square().mean().sqrt()),
        }
        for name, value in expected.items():
            assert summary[f"{split}_{name}"] == pytest.approx(value, rel=1e-5), (split, name)
            assert alone.curve[f"{split}_{name}"][-1] == summary[f"{split}_{name}"]
    assert list_metrics([alone]) == list(expected)
    assert build_curve_figure("confidence", {"a": [alone], "b": [pooled]}, ["epochs"]) is not None


def test_top_k_of_sequences_and_of_images() -> None:
    scores, targets = torch.randn(4, 7, 5), torch.randint(5, (4, 7))
    expected = 100 * float((scores.argmax(2) == targets).double().mean())
    assert measure_outputs(TopKAccuracy(k=1), scores, targets) == pytest.approx(expected)
    assert measure_outputs(TopKAccuracy(k=1), scores.transpose(1, 2), targets) == pytest.approx(expected)


def test_metrics_change_the_id_with_their_code_only() -> None:
    plain = Experiment(**DIGITS)
    assert Experiment(**DIGITS, metrics=[]).id == plain.id
    ids = {Experiment(**DIGITS, metrics=m).id for m in (confidence, first_target, "perplexity", "top-k(1)")}
    assert len(ids | {plain.id}) == 5
    assert Experiment(**DIGITS, metrics=[confidence]).id == Experiment(**DIGITS, metrics=confidence).id


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ("perplexty", "Did you mean 'perplexity'"),
        (["perplexity", "perplexity"], "in use"),
        (lambda outputs, targets: None, "must return a number"),
        (lambda outputs, targets: outputs.nothing, "nothing"),
        ("top-k(11)", "at most the number of classes, 10"),
    ],
)
def test_a_wrong_metric_is_refused_before_training(metrics: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=reason):
        Experiment(**DIGITS, metrics=metrics).run(tmp_path / "runs", jobs=1)
    assert not (tmp_path / "runs").exists()


def test_import_strings_follow_trust_and_tables_show_every_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def gap(outputs, targets, base=1.0):\n    return outputs.std() / base\n")
    metrics = ["perplexity", "./mine.py:gap(base=2.0)"]
    record = Experiment(**DIGITS, metrics=metrics).run(jobs=1)
    with pytest.raises(InputError, match="--trust"):
        Experiment.from_record(record)
    assert Experiment.from_record(record, trust=True).id == record.path.name
    result = sweep({**DIGITS, "metrics": metrics, "lr": [0.01, 0.02]}, cores=1, progress=False)
    assert result.formatter is not None and len(result.table) == 2
    columns, rows = result.formatter.rows()
    assert columns[:4] == ["lr", "test accuracy (%)", "perplexity", "gap(base=2.0)"]
    assert float(rows[0][3]) == pytest.approx(record.summary["test_gap(base=2.0)"], rel=1e-3)
