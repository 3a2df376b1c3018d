"""Custom models and data: modules in any mode, unusual buffers, several inputs, any output, lazy Datasets."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.problems.supervised import use_one_thread
from straggler.running.replay import replay


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
def test_evaluation_restores_the_mode_of_every_part(model: nn.Module, tmp_path: Path) -> None:
    seldom = outcome(model, tmp_path, eval_every=0)
    often = outcome(model, tmp_path, eval_every=0.1)
    assert seldom["weights_sha256"] == often["weights_sha256"]


def test_a_module_in_evaluation_mode_is_trained_but_a_part_in_evaluation_mode_stays_so(
    tmp_path: Path,
) -> None:
    fresh, used, still = (
        outcome(model, tmp_path)["weights_sha256"]
        for model in (with_batchnorm(), with_batchnorm().eval(), frozen())
    )
    assert fresh == used != still
    weights = experiment(frozen()).run(tmp_path, jobs=1).weights()
    assert torch.equal(weights["1.running_mean"], torch.zeros(8))


class Buffered(nn.Module):
    """A layer with a buffer that scales its output."""

    def __init__(self, buffer: Tensor, use: Callable[[Tensor], Any] = lambda buffer: 1.0) -> None:
        super().__init__()
        self.layer, self.use = nn.Linear(8, 2), use
        self.register_buffer("scale", buffer)

    def forward(self, inputs: Tensor) -> Any:
        return self.layer(inputs) * self.use(self.scale)  # type: ignore[arg-type]


@pytest.mark.parametrize("buffer", [torch.tensor([123456789]), torch.tensor([0.1], dtype=torch.float64)])
def test_a_buffer_that_messages_would_round_is_refused(buffer: Tensor, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'scale'.*plain attribute"):
        outcome(Buffered(buffer), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("buffer", [torch.tensor([1 + 2j]), torch.tensor([5]), torch.tensor([True])])
def test_other_buffers_keep_their_values(buffer: Tensor, tmp_path: Path) -> None:
    record = experiment(Buffered(buffer, use=lambda scale: scale.sum().abs())).run(tmp_path, jobs=1)
    assert record.summary["converged"]
    assert torch.equal(record.weights()["scale"], buffer)


class MovingMean(nn.Module):
    """Replaces the tensor of its buffer instead of writing into it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer = nn.Linear(8, 2)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, inputs: Tensor) -> Any:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
        return self.layer(inputs - self.mean)


def test_a_module_may_replace_its_buffers(tmp_path: Path) -> None:
    problem = experiment(MovingMean()).problem()
    x, buffers = problem.initial_model()
    with use_one_thread():
        first = problem.gradient(x, buffers, 0, 0)
        problem.gradient(x, torch.full_like(buffers, 3.0), 1, 4)
        again = problem.gradient(x, buffers, 0, 0)
    assert torch.equal(first.vector, again.vector) and torch.equal(first.buffers, again.buffers)
    assert first.buffers.abs().sum() > 0


class Dicey(nn.Module):
    """Uses the global generators of Python and numpy."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(8, 2)

    def forward(self, inputs: Tensor) -> Any:
        noise = torch.tensor([random.random(), np.random.rand()])  # noqa: NPY002
        return self.layer(inputs) + (noise if self.training else 0)


def test_a_model_may_use_global_generators_and_a_run_restores_them(tmp_path: Path) -> None:
    random.seed(5), np.random.seed(5)  # noqa: NPY002
    expected = random.Random(5).random(), np.random.RandomState(5).rand()
    first, again = (outcome(Dicey(), tmp_path)["weights_sha256"] for _ in range(2))
    assert first == again
    assert (random.random(), np.random.rand()) == expected  # noqa: NPY002


class Pairs(Dataset[Any]):
    """Inputs that consist of two tensors."""

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
def test_outputs_other_than_class_scores_have_no_accuracy(
    model: nn.Module, loss: Any, tmp_path: Path
) -> None:
    facts = outcome(model, tmp_path, loss=loss)
    assert facts["test_accuracy"] is None and "confusion" not in facts
    assert facts["converged"] and facts["test_loss"] < 0.7


def test_parametrized_modules_are_trained_and_have_different_ids(tmp_path: Path) -> None:
    def spectral() -> nn.Module:
        torch.manual_seed(0)
        return parametrizations.spectral_norm(nn.Linear(8, 2))

    assert outcome(spectral, tmp_path)["converged"]
    other = spectral()
    with torch.no_grad():
        other.bias.fill_(1.0)  # type: ignore[operator, union-attr]
    ids = [experiment(module).id for module in (spectral(), spectral(), other)]
    assert ids[0] == ids[1] != ids[2]


def test_unsupported_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"float32.*got torch.bfloat16"):
        outcome(nn.Linear(8, 2).bfloat16(), tmp_path)
    with pytest.raises(InputError, match=r"Unsupported dtype torch.bfloat16. Convert"):
        experiment("linear", dataset=tuple(part.bfloat16() for part in data()))
    with pytest.raises(InputError, match="NoneType"):
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
    ("dataset", "message"),
    [
        ((Endless(), Endless()), "Endless is not a map-style Dataset"),
        ((DataLoader(Unpaired()),) * 2, r"DataLoader is not a map-style Dataset.*\(not a DataLoader\)"),
        (Unpaired(), r"Custom data must be \(train, test\) or .*, got 1 part$"),
        ((5, 5, 5, 5), "Data must be tensors or arrays with one item per example, got 5"),
        (
            (torch.zeros(3, 2), torch.zeros(2), torch.zeros(1, 2), torch.zeros(1)),
            r"Inputs and labels must have the same lengths, got \[3, 2, 1",
        ),
    ],
    ids=["iterable", "loader", "no test set", "numbers", "lengths"],
)
def test_invalid_data_are_refused(dataset: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^dataset: {message}"):
        experiment("linear", dataset=dataset)


def test_a_dataset_must_return_pairs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Unpaired\[0\] must return \(input, target\), got dict"):
        outcome("linear", tmp_path, dataset=(Unpaired(), Unpaired()))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "loss", [lambda outputs, targets: 1.0, lambda outputs, targets: outputs.sum().detach()]
)
def test_a_loss_without_a_gradient_is_refused(loss: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="The loss must depend on the model's parameters"):
        outcome("linear", tmp_path, loss=loss)
    assert not list(tmp_path.iterdir())


class LazyDataset(Dataset[Any]):
    """A million items that are computed on request; counts the requests."""

    def __init__(self, size: int = 1_000_000, scale: float = 1.0) -> None:
        self.size, self.scale = size, scale

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        reads.append(index)
        return torch.full((8,), self.scale * (index % 2)), index % 2


reads: list[int] = []


@pytest.fixture
def no_reads() -> None:
    reads.clear()


@pytest.mark.usefixtures("no_reads")
def test_a_lazy_dataset_is_read_only_when_its_items_are_needed(tmp_path: Path) -> None:
    lazy = (LazyDataset(), LazyDataset(40))
    settings: dict[str, Any] = {
        "dataset": lazy,
        "epochs": None,
        "updates": 20,
        "batch_size": 8,
        "eval_every": 0,
    }
    made = experiment(lambda: nn.Linear(8, 2), **settings)
    assert made.id and not reads
    problem = made.problem()
    assert problem.classes == ("0", "1") and len(reads) <= 3
    reads.clear()
    summary = made.run(tmp_path, jobs=1).summary
    assert 20 * 8 + 40 <= len(reads) <= 20 * 8 + 40 + 20
    assert summary["test_accuracy"] == 100 and summary["train_accuracy"] is None
    assert "train_loss" not in summary


@pytest.mark.usefixtures("no_reads")
@pytest.mark.parametrize("setting", ["partition", "model"])
def test_labels_of_a_lazy_dataset_are_read_only_on_request(setting: str, tmp_path: Path) -> None:
    """A partition by label needs every label, a built-in model the number of classes; a message says so."""
    changes: dict[str, Any] = {"partition": {"partition": "label"}, "model": {}}[setting]
    model = "linear" if setting == "model" else lambda: nn.Linear(8, 2)
    messages: list[str] = []
    made = experiment(model, dataset=(LazyDataset(30), LazyDataset(10)), **changes)
    problem = made.problem(report=messages.append)
    assert len(messages) == 1 and "all 30 samples" in messages[0] and "`targets`" in messages[0]
    assert set(reads) == set(range(30)) and problem.classes == ("0", "1")


class LabelledDataset(LazyDataset):
    """Knows its targets and the names of its classes without reading items."""

    classes = ("even", "odd")

    @property
    def targets(self) -> list[int]:
        return [index % 2 for index in range(self.size)]


@pytest.mark.usefixtures("no_reads")
def test_targets_and_classes_of_a_dataset_are_used_instead_of_its_items() -> None:
    dataset = (LabelledDataset(30), LabelledDataset(10))
    problem: Any = experiment("linear", dataset=dataset, partition="label").problem()
    assert problem.classes == ("even", "odd") and len(reads) <= 2
    assert [{int(i) % 2 for i in part} for part in problem.parts] in ([{0}, {1}], [{1}, {0}])
    part = torch.utils.data.Subset(LabelledDataset(30), range(0, 30, 3))
    assert experiment("linear", dataset=(part, part), partition="label").problem().classes == ("even", "odd")


def test_the_id_of_a_dataset_depends_on_class_attributes_length_and_fingerprint() -> None:
    class Versioned(LazyDataset):
        def __init__(self, fingerprint: str, table: Tensor) -> None:
            super().__init__()
            self.fingerprint, self.table = fingerprint, table

    def identify(train: Dataset[Any]) -> str:
        return experiment(
            nn.Linear(8, 2).requires_grad_(), dataset=(train, LazyDataset(10))
        ).dataset.fingerprint

    zeros, ones = torch.zeros(3), torch.ones(3)
    different = [
        LazyDataset(20), LazyDataset(30), LazyDataset(20, scale=2.0), LabelledDataset(20),
        Versioned("1", zeros), Versioned("2", zeros), TensorDataset(zeros), TensorDataset(ones),
    ]  # fmt: skip
    assert len({identify(dataset) for dataset in different}) == len(different)
    assert identify(LazyDataset(20)) == identify(LazyDataset(20))
    assert identify(Versioned("1", zeros)) == identify(Versioned("1", ones)), (
        "the fingerprint replaces tensors"
    )


def test_a_value_that_cannot_be_fingerprinted_is_reported() -> None:
    dataset = LazyDataset(10)
    dataset.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="ignores the value of a lock.*`fingerprint` attribute"):
        experiment("linear", dataset=(dataset, LazyDataset(10)))


def test_pairs_of_inputs_and_labels_are_the_same_data_as_four_parts() -> None:
    inputs, labels, unseen, truth = data()
    in_pairs = experiment("linear", dataset=((inputs, labels), (unseen, truth)))
    assert in_pairs.id == experiment("linear").id


def test_a_replay_of_a_module_in_evaluation_mode_gives_the_same_weights(tmp_path: Path) -> None:
    frozen_run = experiment(frozen(), eval_every=0.5)
    record = frozen_run.run(tmp_path, jobs=1)
    assert replay(record, frozen_run).matches


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
def test_a_model_or_loss_that_does_not_fit_is_refused_before_anything_is_written(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    data = (torch.randn(20, 3), torch.arange(20) % 2, torch.randn(4, 3), torch.arange(4) % 2)
    settings: dict[str, Any] = {"dataset": data, "model": lambda: nn.Linear(3, 2), "workers": 2, "epochs": 1}
    with pytest.raises(InputError, match=f"fails on a small batch: .*{reason}"):
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
    assert said == ["Worker 1 has only 718 samples, so its batches are smaller than batch_size=10000."]


def test_wrong_settings_are_told_in_one_line_in_python_too() -> None:
    with pytest.raises(InputError, match=r"^unknown key 'momentun'. Did you mean 'momentum'\?"):
        Experiment(momentun=0.9)


def test_one_output_requires_a_custom_loss(tmp_path: Path) -> None:
    inputs, targets = torch.randn(40, 6), torch.randn(40, 1)
    data = (inputs, targets, inputs, targets)
    with pytest.raises(InputError, match="one output, whose cross entropy is always 0"):
        Experiment(model=lambda: nn.Linear(6, 1), dataset=data, updates=3).run(tmp_path)
    flat = (inputs, targets[:, 0], inputs, targets[:, 0])
    with pytest.raises(InputError, match="one output, whose cross entropy is always 0"):
        model = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
        Experiment(model=model, dataset=flat, updates=3).run(tmp_path)
    assert not list(tmp_path.iterdir())
    record = Experiment(
        model=lambda: nn.Linear(6, 1), dataset=data, updates=3, loss=nn.functional.mse_loss
    ).run(tmp_path, jobs=1)
    assert record.summary["test_loss"] > 0
