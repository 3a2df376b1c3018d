"""What users bring, as they bring it: modules in any mode, odd buffers, several inputs, any output."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader, Dataset, IterableDataset

from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.problems.supervised import use_one_thread
from straggler.running.replay import replay

pytestmark = pytest.mark.timeout(60)


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    labels = (inputs[:, 0] > 0).long()
    return inputs, labels, inputs[:100], labels[:100]


def experiment(model: Any, **settings: Any) -> Experiment:
    return Experiment(**{"dataset": data(), "model": model, "workers": 2, "epochs": 2, "lr": 0.1} | settings)


def outcome(model: Any, folder: Path, **settings: Any) -> dict[str, Any]:
    return experiment(model, **settings).run(folder, jobs=1, force=True).summary


def with_batchnorm() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))


def frozen() -> nn.Module:
    module = with_batchnorm()
    module[1].eval()  # type: ignore[operator, index]
    return module


@pytest.mark.parametrize("model", [with_batchnorm(), with_batchnorm().eval(), frozen()])
def test_evaluation_leaves_every_part_in_its_mode(model: nn.Module, tmp_path: Path) -> None:
    seldom = outcome(model, tmp_path, eval_every=0)
    often = outcome(model, tmp_path, eval_every=0.1)
    assert seldom["weights_sha256"] == often["weights_sha256"]


def test_a_module_that_was_used_is_trained_all_the_same_and_a_frozen_part_stays_frozen(
    tmp_path: Path,
) -> None:
    fresh, used, still = (
        outcome(model, tmp_path)["weights_sha256"]
        for model in (with_batchnorm(), with_batchnorm().eval(), frozen())
    )
    assert fresh == used != still
    kept = experiment(frozen()).run(tmp_path, jobs=1).weights()
    assert torch.equal(kept["1.running_mean"], torch.zeros(8))


class Buffered(nn.Module):
    """A layer, and a buffer that it may use."""

    def __init__(self, buffer: Tensor, use: Callable[[Tensor], Any] = lambda buffer: 1.0) -> None:
        super().__init__()
        self.layer, self.use = nn.Linear(8, 2), use
        self.register_buffer("kept", buffer)

    def forward(self, inputs: Tensor) -> Any:
        return self.layer(inputs) * self.use(self.kept)  # type: ignore[arg-type]


@pytest.mark.parametrize("buffer", [torch.tensor([123456789]), torch.tensor([0.1], dtype=torch.float64)])
def test_a_buffer_that_would_be_rounded_is_refused(buffer: Tensor, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'kept'.*plain attribute"):
        outcome(Buffered(buffer), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("buffer", [torch.tensor([1 + 2j]), torch.tensor([5]), torch.tensor([True])])
def test_other_buffers_arrive_as_they_were(buffer: Tensor, tmp_path: Path) -> None:
    record = experiment(Buffered(buffer, use=lambda kept: kept.sum().abs())).run(tmp_path, jobs=1)
    assert record.summary["converged"]
    assert torch.equal(record.weights()["kept"], buffer)


class MovingMean(nn.Module):
    """Puts another tensor in its buffer's place, instead of writing into it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer = nn.Linear(8, 2)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, inputs: Tensor) -> Any:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
        return self.layer(inputs - self.mean)


def test_a_buffer_may_be_replaced(tmp_path: Path) -> None:
    problem = experiment(MovingMean()).problem()
    x, buffers = problem.initial_model()
    with use_one_thread():
        first = problem.gradient(x, buffers, 0, 0)
        problem.gradient(x, torch.full_like(buffers, 3.0), 1, 4)
        again = problem.gradient(x, buffers, 0, 0)
    assert torch.equal(first.vector, again.vector) and torch.equal(first.buffers, again.buffers)
    assert first.buffers.abs().sum() > 0


class Dicey(nn.Module):
    """Draws from Python's and numpy's generators."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(8, 2)

    def forward(self, inputs: Tensor) -> Any:
        noise = torch.tensor([random.random(), np.random.rand()])  # noqa: NPY002
        return self.layer(inputs) + (noise if self.training else 0)


def test_a_model_may_draw_from_any_generator_and_leaves_them_as_they_were(tmp_path: Path) -> None:
    random.seed(5), np.random.seed(5)  # noqa: NPY002
    expected = random.Random(5).random(), np.random.RandomState(5).rand()
    first, again = (outcome(Dicey(), tmp_path)["weights_sha256"] for _ in range(2))
    assert first == again
    assert (random.random(), np.random.rand()) == expected  # noqa: NPY002


class Pairs(Dataset[Any]):
    """Inputs in two parts."""

    def __init__(self, named: bool) -> None:
        self.named, (self.inputs, self.labels, *_) = named, data()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        parts = self.inputs[index, :4], self.inputs[index, 4:]
        return dict(zip("ab", parts, strict=True)) if self.named else parts, int(self.labels[index])


class Joining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, inputs: Any) -> Any:
        return self.layer(torch.cat(list(inputs.values() if isinstance(inputs, dict) else inputs), dim=1))


@pytest.mark.parametrize("named", [False, True])
def test_inputs_may_have_several_parts(named: bool, tmp_path: Path) -> None:
    pairs = Pairs(named), Pairs(named)
    assert outcome(Joining(), tmp_path, dataset=pairs)["test_accuracy"] > 70
    with pytest.raises(InputError, match="several parts"):
        outcome("linear", tmp_path, dataset=pairs)


def one_logit(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs.reshape(-1), targets.float())


def first_of(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs[0], targets)


class Tupled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, inputs: Tensor) -> Any:
        return self.layer(inputs), inputs


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (nn.Linear(8, 1), one_logit),
        (nn.Sequential(nn.Linear(8, 1), nn.Flatten(0)), one_logit),
        (Tupled(), first_of),
    ],
)
def test_outputs_that_are_no_scores_of_classes_have_no_accuracy(
    model: nn.Module, loss: Any, tmp_path: Path
) -> None:
    facts = outcome(model, tmp_path, loss=loss)
    assert facts["test_accuracy"] is None and "confusion" not in facts
    assert facts["converged"] and facts["test_loss"] < 0.7


def test_parametrized_modules_are_trained_and_told_apart(tmp_path: Path) -> None:
    def spectral() -> nn.Module:
        torch.manual_seed(0)
        return parametrizations.spectral_norm(nn.Linear(8, 2))

    assert outcome(spectral, tmp_path)["converged"]
    other = spectral()
    with torch.no_grad():
        other.bias.fill_(1.0)  # type: ignore[operator, union-attr]
    ids = [experiment(module).id for module in (spectral(), spectral(), other)]
    assert ids[0] == ids[1] != ids[2]


def test_what_cannot_be_trained_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="bfloat16; there must be some"):
        outcome(nn.Linear(8, 2).bfloat16(), tmp_path)
    with pytest.raises(InputError, match="bfloat16, which numpy has not"):
        experiment("linear", dataset=tuple(part.bfloat16() for part in data()))
    with pytest.raises(InputError, match="gives NoneType; let it return a Module"):
        experiment(lambda: None)


class Unpaired(Dataset[Any]):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, number: int) -> Any:
        return {"input": number}


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield torch.zeros(8), 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((Endless(), Endless()), "Endless: a Dataset must have a length and items by number"),
        ((DataLoader(Unpaired()),) * 2, "DataLoader: .*give what a DataLoader is made of"),
        ((Unpaired(), Unpaired()), r"Unpaired: its first item is no pair \(input, target\)"),
        (Unpaired(), r"the data have 1 of the parts that they need: give \(train, test\)"),
        ((5, 5, 5, 5), "5 is no set of examples"),
    ],
    ids=["iterable", "loader", "dictionaries", "no test set", "numbers"],
)
def test_data_that_are_none_are_refused_in_words(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=f"^dataset: {said}"):
        experiment("linear", dataset=given)


@pytest.mark.parametrize(
    "loss", [lambda outputs, targets: 1.0, lambda outputs, targets: outputs.sum().detach()]
)
def test_a_loss_that_leads_nowhere_is_refused(loss: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="which leads back to no parameter"):
        outcome("linear", tmp_path, loss=loss)
    assert not list(tmp_path.iterdir())


def test_pairs_of_inputs_and_labels_are_the_same_data_as_four_parts() -> None:
    inputs, labels, unseen, truth = data()
    in_pairs = experiment("linear", dataset=((inputs, labels), (unseen, truth)))
    assert in_pairs.id == experiment("linear").id


def test_a_replay_leads_to_the_same_weights_whatever_mode_a_module_came_in(tmp_path: Path) -> None:
    given = experiment(frozen(), eval_every=0.5)
    record = given.run(tmp_path, jobs=1)
    assert replay(record, given) == record.summary["weights_sha256"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": lambda: nn.Linear(3, 1)}, "Target 1 is out of bounds"),
        ({"model": lambda: nn.Linear(4, 2)}, "shapes cannot be multiplied"),
        ({"loss": nn.CrossEntropyLoss}, "ambiguous"),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, "2 elements"),
        (
            {"model": lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), "batch_size": 1},
            "more than 1",
        ),
    ],
    ids=["outputs", "inputs", "a class for a loss", "losses", "batch norm of one"],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    data = (torch.randn(20, 3), torch.arange(20) % 2, torch.randn(4, 3), torch.arange(4) % 2)
    settings: dict[str, Any] = {"dataset": data, "model": lambda: nn.Linear(3, 2), "workers": 2, "epochs": 1}
    with pytest.raises(InputError, match=f"fail on a small batch: .*{reason}.*let them fit"):
        Experiment(**settings | change).run(tmp_path, jobs=1)
    assert not list(tmp_path.iterdir())


def test_trying_a_model_out_changes_nothing() -> None:
    """Buffers and generators are as they were."""
    data = (torch.randn(20, 3), torch.arange(20) % 2, torch.randn(4, 3), torch.arange(4) % 2)
    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)]
    problem: Any = Experiment(dataset=data, model=nn.Sequential(*layers), workers=2).problem()
    before, state = problem.initial_model(), torch.get_rng_state()
    problem.try_out()
    assert all(map(torch.equal, problem.initial_model(), before)) and torch.equal(
        torch.get_rng_state(), state
    )


def test_what_one_may_not_expect_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    settings = {"dataset": "digits", "model": "linear", "workers": 2, "gradients": 4, "eval_every": 0}
    Experiment(**settings, batch_size=10_000).run(tmp_path, jobs=1, report=said.append)
    assert said == ["batch_size=10000 is more than worker 1 has, whose batches have 718"]


def test_wrong_settings_are_told_in_one_line_in_python_too() -> None:
    with pytest.raises(InputError, match=r"^unknown key 'momentun'. Did you mean 'momentum'\?"):
        Experiment(momentun=0.9)


def test_one_output_needs_a_loss_of_its_own(tmp_path: Path) -> None:
    """Its cross entropy is 0 whatever it says; without a dimension for it, that of the batch is taken."""
    inputs, targets = torch.randn(40, 6), torch.randn(40, 1)
    data = (inputs, targets, inputs, targets)
    with pytest.raises(InputError, match="one output, of which the cross entropy says nothing"):
        Experiment(model=lambda: nn.Linear(6, 1), dataset=data, updates=3).run(tmp_path)
    flat = (inputs, targets[:, 0], inputs, targets[:, 0])
    with pytest.raises(InputError, match="one output, of which the cross entropy says nothing"):
        model = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
        Experiment(model=model, dataset=flat, updates=3).run(tmp_path)
    assert not list(tmp_path.iterdir())
    record = Experiment(
        model=lambda: nn.Linear(6, 1), dataset=data, updates=3, loss=nn.functional.mse_loss
    ).run(tmp_path, jobs=1)
    assert record.summary["test_loss"] > 0
