"""A GPT on the characters of a text, trained with three methods on every engine: perplexity falls."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from straggler.experiment import Experiment
from straggler.record import Record
from straggler.running.loggers import TensorBoardLogger
from straggler.running.replay import replay
from straggler.web.report import report

TALE = "once upon a time a slow worker met a fast one. they shared a model, and both went home happily. "
METHODS: dict[str, dict[str, Any]] = {
    "asgd": {"optimizer": "adamw", "lr": 0.01},
    "ssgd": {"optimizer": "adamw", "lr": 0.02},
    "diloco": {"work": "local(steps=4, lr=0.01, optimizer=adamw, keep=True)"},
}


def train(engine: str, method: str, folder: Path) -> Record:
    tale = folder / "tale.txt"
    tale.write_text("\n%\n".join([TALE * 6] * 6))
    experiment = Experiment(
        dataset=f"text(path='{tale}', separator='%', context=24)",
        model="gpt(layers=1, heads=2, width=16)",
        partition="by-document",
        metrics=["perplexity"],
        method=method,
        workers=3,
        batch_size=8,
        epochs=5,
        train_metrics="never",
        engine=engine,
        **METHODS[method],
    )
    loggers = [TensorBoardLogger()] if engine != "simulator" else []  # its library takes seconds to import
    return experiment.run(folder / "runs", jobs=1, callbacks=loggers)


ENGINES = [
    "simulator",
    pytest.param("processes", marks=pytest.mark.slow),
    pytest.param("ray", marks=pytest.mark.chaos),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_the_perplexity_of_a_gpt_falls_and_is_reported(
    engine: str, method: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if engine == "ray":
        request.getfixturevalue("ray_here")
    if engine != "simulator":
        pytest.importorskip("tensorboard")
    record = train(engine, method, tmp_path)
    perplexity = record.curve["test_perplexity"]
    assert perplexity[0] == pytest.approx(len(set(TALE)), rel=0.2)  # at first the model guesses
    assert perplexity[-1] < 0.7 * perplexity[0]
    assert record.summary["test_perplexity"] == pytest.approx(np.exp(record.summary["test_loss"]))
    assert '"name":"test perplexity"' in report(record, tmp_path / "report.html").read_text()
    assert replay(record).matches
    if engine != "simulator":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(record.path / "tensorboard")).Reload().Scalars("test_perplexity")
        assert [event.value for event in events] == [pytest.approx(value) for value in perplexity]
