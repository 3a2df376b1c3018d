"""What a user brings: tensors, Datasets, modules, entries of one's own; told apart by fingerprints."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from straggler.config.fingerprints import fingerprint
from straggler.config.registry import GIVEN, CatalogueEntry, is_custom
from straggler.core.randomness import preserve_global_generators, seed_global_generators
from straggler.problems.custom_data import CustomData

CUSTOM_LOSS_REMARK = "# loss: "  # how the text begins of an experiment with one


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
