"""Sequences: a target for every token, scores that count tokens, and sequences of custom data."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.problems import supervised
from straggler.problems.losses import IGNORED_TARGET, token_cross_entropy
from straggler.problems.supervised import SupervisedProblem, use_one_thread

VOCABULARY, TOKENS = 7, 12


def make_sequences(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return counting sequences (the next token is the last one plus one), with two targets ignored."""
    start = torch.from_numpy(np.random.default_rng(seed).integers(VOCABULARY, size=(count, 1)))
    tokens = (start + torch.arange(TOKENS + 1)) % VOCABULARY
    targets = tokens[:, 1:].clone()
    targets[::3, -2:] = IGNORED_TARGET
    return tokens[:, :-1].clone(), targets


TRAIN, TEST = make_sequences(90, 0), make_sequences(40, 1)
SETTINGS: dict[str, Any] = {
    "dataset": (*TRAIN, *TEST),
    "model": "gpt(layers=1, width=16)",
    "workers": 3,
    "batch_size": 8,
}


def problem_of(**settings: Any) -> SupervisedProblem:
    problem = Experiment(**SETTINGS | settings).problem()
    assert isinstance(problem, SupervisedProblem)
    return problem


class Scores(nn.Module):
    """A module that returns scores per token, in the last dimension or in dimension 1."""

    def __init__(self, last: bool = True, classes: int = VOCABULARY) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(VOCABULARY, classes), last

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.table(tokens)
        return scores if self.last else scores.transpose(1, 2)


def test_the_loss_is_the_mean_over_tokens_and_accuracy_counts_tokens() -> None:
    problem = problem_of()
    x, buffers = problem.initial_model()
    with use_one_thread():
        chunk = problem.evaluate(x, buffers, "test", 0)
        message = problem.gradient(x, buffers, 1, 0)
    inputs, targets = TEST
    with torch.no_grad():
        outputs = problem.module.eval()(inputs)
    expected = F.cross_entropy(outputs.flatten(0, 1), targets.flatten())
    assert chunk.samples == int((targets >= 0).sum()) == 40 * TOKENS - 14 * 2
    assert chunk.loss / chunk.samples == pytest.approx(float(expected))
    assert chunk.correct == int((outputs.argmax(-1) == targets).sum())
    assert chunk.predictions is None
    inputs, targets = problem.splits["train"].fetch(problem.batch(1, 0))
    outputs = problem.module.train()(inputs)
    assert message.loss == pytest.approx(token_cross_entropy(outputs, targets).item())


def test_metrics_count_the_tokens_that_have_a_target() -> None:
    problem = problem_of(metrics=["top-k(k=1)", "perplexity"])
    chunk = problem.evaluate(*problem.initial_model(), "test", 0)
    assert chunk.correct is not None
    assert chunk.metrics[0] / chunk.samples == pytest.approx(100 * chunk.correct / chunk.samples)


def test_small_chunks_give_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = problem_of()
    monkeypatch.setattr(supervised, "MAX_CHUNK_SCORES", 7 * TOKENS * VOCABULARY)
    small = problem_of()
    assert (whole.count_chunks("test"), small.chunk, small.count_chunks("test")) == (1, 7, 6)
    x, buffers = whole.initial_model()
    one = whole.evaluate(x, buffers, "test", 0)
    parts = [small.evaluate(x, buffers, "test", chunk) for chunk in range(6)]
    assert sum(part.samples for part in parts) == one.samples
    assert sum(part.correct or 0 for part in parts) == one.correct
    assert sum(part.loss for part in parts) == pytest.approx(one.loss, rel=1e-6)


def test_a_gpt_learns_to_count(tmp_path: Any) -> None:
    settings = SETTINGS | {"method": "asgd", "optimizer": "adam", "lr": 0.01, "epochs": 15, "eval_every": 5}
    settings["metrics"] = ["perplexity"]
    record = Experiment(**settings).run(tmp_path, jobs=1)
    assert record.summary["test_accuracy"] > 95
    assert record.summary["converged"]
    assert "confusion" not in record.summary
    assert record.summary["test_perplexity"] == pytest.approx(np.exp(record.summary["test_loss"]))
    assert record.curve["test_accuracy"].is_between(0, 100).all()


def test_scores_of_a_custom_module_are_recognised() -> None:
    problem = problem_of(model=Scores)
    assert (problem.sequence, problem.classes) == (TOKENS, tuple("0123456"))
    x, buffers = problem.initial_model()
    assert problem.evaluate(x, buffers, "test", 0).correct is not None
    torch_shape = problem_of(model=lambda: Scores(last=False), loss="cross_entropy")
    assert torch_shape.gradient(x, buffers, 0, 0).loss == pytest.approx(
        problem.gradient(x, buffers, 0, 0).loss
    )
    assert torch_shape.evaluate(x, buffers, "test", 0).correct is None


def test_scores_whose_dimension_is_ambiguous_need_a_loss(tmp_path: Any) -> None:
    ambiguous: dict[str, Any] = {"model": lambda: Scores(classes=TOKENS)}
    with pytest.raises(InputError, match=r"may be in dimension 1 or 2. Pass loss='token_cross_entropy'"):
        Experiment(**SETTINGS | ambiguous).run(tmp_path)
    assert not list(tmp_path.iterdir())
    problem = problem_of(**ambiguous, loss="token_cross_entropy")
    x, buffers = problem.initial_model()
    assert problem.evaluate(x, buffers, "test", 0).correct is not None


class Documents(Dataset[Any]):
    """Sequences that are read one by one, with the numbers of their documents."""

    documents = np.repeat(np.arange(9), 10)

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.inputs, self.targets_by_token = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[number], self.targets_by_token[number]


def test_a_custom_dataset_is_dealt_by_its_documents() -> None:
    data = Documents(*TRAIN), Documents(*TEST)
    problem = problem_of(dataset=data, model=Scores, partition="by-document")
    assert sorted(np.concatenate(problem.parts)) == list(range(90))
    assert [len({Documents.documents[i] for i in part}) for part in problem.parts] == [3, 3, 3]
    assert problem.classes == tuple("0123456")


def test_sequences_without_documents_are_refused_by_document() -> None:
    with pytest.raises(ValueError, match=r"2 dimensions. Use partition=iid, by-stream .*`documents`"):
        problem_of(partition="by-document")
