"""What a user brings: tensors, Datasets, modules, entries of one's own; told apart by fingerprints."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from straggler.config.fingerprints import fingerprint
from straggler.config.registry import GIVEN, CatalogueEntry, is_custom
from straggler.core.randomness import addressed_rng, preserve_global_generators, seed_global_generators
from straggler.problems.examples import ArrayExamples, DatasetExamples, Examples

CUSTOM_LOSS_REMARK = "# loss: "  # how the text begins of an experiment with one

PROBES = 64  # items of a Dataset that are looked at to tell it from another


class CustomData:
    """(inputs, labels, test inputs, test labels) as tensors or arrays, in pairs or not; or two Datasets."""

    mark: ClassVar[str] = "given("  # in its text, and in no other's

    def __init__(self, parts: tuple[Any, ...] | list[Any]) -> None:
        if len(parts) == 2 and all(isinstance(part, tuple) and len(part) == 2 for part in parts):
            parts = (*parts[0], *parts[1])  # (inputs, labels), (test inputs, test labels)
        if len(parts) == 4:
            arrays = [as_array(part) for part in parts]
            if len(arrays[0]) != len(arrays[1]) or len(arrays[2]) != len(arrays[3]):
                raise ValueError(f"inputs and labels differ in number: {[len(array) for array in arrays]}")
            self.train: Examples = ArrayExamples(arrays[0], arrays[1])
            self.test: Examples = ArrayExamples(arrays[2], arrays[3])
            self.fingerprint = fingerprint(*arrays)
        elif len(parts) == 2:
            self.train, self.test = DatasetExamples(parts[0]), DatasetExamples(parts[1])
            self.fingerprint = fingerprint(*(probe(examples) for examples in (self.train, self.test)))
        else:
            raise ValueError(
                f"the data have {len(parts)} of the parts that they need: give (train, test) "
                f"or (inputs, labels, test_inputs, test_labels)"
            )
        if not len(self.train) or not len(self.test):
            raise ValueError("the training set and the test set must not be empty")

    def __str__(self) -> str:
        return f"{self.mark}{self.fingerprint})"

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of an input; none if it has several parts."""
        inputs, _ = self.train.fetch(np.array([0]))
        return tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else None

    @property
    def classes(self) -> tuple[str, ...]:
        """Integer labels are classes; anything else is a regression."""
        labels = self.train.labels
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            return ()
        return tuple(str(number) for number in range(int(max(labels.max(), self.test.labels.max())) + 1))


class CustomModel:
    """An nn.Module, or a function or class that makes one."""

    def __init__(self, source: nn.Module | Callable[[], nn.Module]) -> None:
        self.source = source
        # A module may be trained before it is given to a run; what a function makes is always the same.
        self._text = "" if isinstance(source, nn.Module) else self._named(build_module(source))

    def __str__(self) -> str:
        """Its name and a fingerprint of its code, its structure and its first weights."""
        return self._named(self.source) if isinstance(self.source, nn.Module) else self._text

    def _named(self, module: nn.Module) -> str:
        name = getattr(self.source, "__qualname__", type(module).__name__)
        return f"{name}{GIVEN}{fingerprint(module)}]"


def custom_keys(settings: Mapping[str, Any], text: str) -> list[str]:
    """What of a recorded experiment was given in Python, so that its text only names it."""
    marks = dict.fromkeys(settings, GIVEN) | {"dataset": CustomData.mark}
    found = [key for key, mark in marks.items() if mark in str(settings.get(key))]
    return found + (["loss"] if text.startswith(CUSTOM_LOSS_REMARK) else [])


def format_component(entry: Any) -> str:
    """A setting's text; what is of a class of the user's own, or a link of a chain that is, has its mark."""
    return " + ".join(f"{link}{component_mark(link)}" for link in chain_links(entry))


def component_identity(entry: CatalogueEntry) -> str:
    """What tells it from any other: its settings, or, of one's own class, the mark."""
    return " + ".join(
        f"{link.name}{mark}" if (mark := component_mark(link)) else link.identity()
        for link in chain_links(entry)
    )


def component_mark(entry: Any) -> str:
    own = isinstance(entry, CatalogueEntry) and is_custom(type(entry))
    return f"{GIVEN}{fingerprint(component_contents(entry))}]" if own else ""


def chain_links(entry: Any) -> Sequence[Any]:
    return getattr(entry, "links", (entry,))


def component_contents(entry: CatalogueEntry) -> tuple[Any, ...]:
    """Its class, its settings, and what its own code put into private attributes as it was build_module."""
    kind, remembered = type(entry), entry.__pydantic_private__ or {}
    known = [each for each in kind.__mro__ if issubclass(each, CatalogueEntry) and not is_custom(each)]
    theirs = {name for each in known for name in each.__private_attributes__}
    settings = {name: getattr(entry, name) for name in kind.model_fields}
    return kind, settings, {name: value for name, value in remembered.items() if name not in theirs}


def build_module(source: Callable[[], nn.Module]) -> nn.Module:
    try:
        with preserve_global_generators():
            seed_global_generators(0)
            module = source()
    except Exception as error:
        raise ValueError(f"the function that makes it fails: {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ValueError(f"the function that makes it gives {type(module).__name__}; let it return a Module")
    return module


def as_array(part: Any) -> NDArray[Any]:
    try:
        array = part.detach().cpu().numpy() if isinstance(part, Tensor) else np.asarray(part)
    except TypeError:
        raise ValueError(f"the data are {part.dtype}, which numpy has not; give them as float32") from None
    if not array.ndim:
        raise ValueError(f"{part!r} is no set of examples; give tensors or arrays with an item for each")
    whole = array.ndim == 1 and np.issubdtype(array.dtype, np.integer)
    return array.astype(np.int64) if whole else array  # labels, as torch wants them


def probe(examples: DatasetExamples) -> tuple[Any, ...]:
    """Its length and items spread over it: enough to tell most Datasets apart, and never the whole of one."""
    chosen = np.unique(np.linspace(0, len(examples) - 1, PROBES).astype(int))
    inputs, _ = examples.fetch(chosen, lambda: addressed_rng(0, "probe"))
    return len(examples), examples.labels, inputs
