"""What tells two things that a user brings apart: their code, their values, and what their code refers to."""

import hashlib
import inspect
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from pydantic.fields import ModelPrivateAttr
from torch import Tensor

INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
INSTALLED += (Path(__file__).absolute().parents[1],)  # this package, wherever it is
# Of a class: where it stands, and what Python and pydantic make of it.
NOT_ITS_OWN = {"__module__", "__dict__", "__weakref__", "__doc__", "__firstlineno__", "__static_attributes__"}
NOT_ITS_OWN |= {"_abc_impl", "__abstractmethods__", "__class_vars__", "__signature__"}


def fingerprint(*things: Any) -> str:
    """Equal things have equal ones in every process; names of files and numbers of lines do not matter."""
    found = hashlib.sha256()
    for part in substance(things, {}):
        found.update(len(part).to_bytes(8) + part)
    return found.hexdigest()[:12]


def substance(thing: Any, seen: dict[int, tuple[int, Any]]) -> Iterator[bytes]:
    """All that a thing is made of, in order; what was met before (tied weights, a circle) is its number."""
    yield type(thing).__qualname__.encode()
    if isinstance(thing, bytes):
        yield thing
    elif isinstance(thing, str | int | float | complex | type(None) | type(Ellipsis)):
        yield repr(thing).encode()
    elif isinstance(thing, ModuleType):
        yield thing.__name__.encode()
    elif isinstance(thing, tuple | CodeType):  # constants, which Python may share or not
        for part in parts(thing):
            yield from substance(part, seen)
    elif id(thing) in seen:
        yield str(seen[id(thing)][0]).encode()
    else:
        seen[id(thing)] = (len(seen), thing)  # kept, so that its id is nobody else's
        for part in parts(thing):
            yield from substance(part, seen)


def parts(thing: Any) -> Iterator[Any]:
    """What a thing consists of: items, code, values; of anything else, what pickle would take."""
    if isinstance(thing, Tensor | np.ndarray):
        array = as_array(thing) if isinstance(thing, Tensor) else thing
        if isinstance(thing, torch.nn.Parameter) and not thing.requires_grad:
            yield "frozen"
        yield from (
            str(array.dtype),
            array.shape,
            array.tolist() if array.dtype == object else array.tobytes(),
        )
    elif isinstance(thing, Mapping):
        yield from (part for item in thing.items() for part in item)
    elif isinstance(thing, set | frozenset):
        yield from sorted(thing, key=repr)
    elif isinstance(thing, list | tuple):
        yield from thing
    elif isinstance(thing, CodeType):
        yield from (thing.co_code, thing.co_names, *thing.co_consts)
    elif isinstance(thing, FunctionType | type) and installed(thing):
        yield f"{thing.__module__}.{thing.__qualname__}"
        yield from decorated(thing)
    elif isinstance(thing, FunctionType):
        yield from (thing.__code__, thing.__defaults__, thing.__kwdefaults__)
        yield from surroundings(thing)
    elif isinstance(thing, type):
        yield from (thing.__qualname__, thing.__mro__[1:])
        members = {key: value for key, value in vars(thing).items() if key not in NOT_ITS_OWN}
        yield {key: value for key, value in members.items() if not key.startswith("__pydantic_")}
    elif isinstance(thing, ModelPrivateAttr):
        yield from (thing.default, thing.default_factory)
    elif hasattr(thing, "__wrapped__"):  # by lru_cache and the like
        yield from (type(thing).__qualname__, thing.__wrapped__)
    elif isinstance(thing, property):
        yield from (thing.fget, thing.fset, thing.fdel)
    elif isinstance(thing, staticmethod | classmethod):
        yield thing.__func__
    else:
        yield from taken_by_pickle(thing)


def decorated(thing: Any) -> Iterator[Any]:
    """What is one's own within a function that a decorator of a package made."""
    cells = [cell.cell_contents for cell in getattr(thing, "__closure__", None) or () if cell != CellType()]
    for inner in (getattr(thing, "__wrapped__", None), *cells):
        if isinstance(inner, FunctionType) and (not installed(inner) or inner.__closure__):
            yield inner


def as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Its values; of types that numpy has not, its bytes."""
    tensor = tensor.detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:
        return tensor.contiguous().view(torch.uint8).numpy()


def taken_by_pickle(thing: Any) -> Iterator[Any]:
    try:
        taken = thing.__reduce_ex__(2)
    except RuntimeError:  # a module with spectral_norm and the like, which torch does not let pickle have
        taken = type(thing), vars(thing)
    except TypeError:  # a kernel of torch, a generator: what it is called
        taken = getattr(thing, "__name__", type(thing).__qualname__)
    for part in (taken,) if isinstance(taken, str) else taken:
        yield list(part) if isinstance(part, Iterator) else part


def surroundings(function: FunctionType) -> Iterator[Mapping[str, Any]]:
    """What its code refers to: variables of functions around it and of its module."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    enclosed = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
    names, around = names_in(function.__code__), function.__globals__
    used = {name: around[name] for name in sorted(names & around.keys())}
    modules = [value for value in (enclosed | used).values() if isinstance(value, ModuleType)]
    yield from (enclosed, used, *within(modules, names))


def within(modules: list[ModuleType], names: set[str]) -> Iterator[Mapping[str, Any]]:
    """What these names may mean of modules that are one's own, and of modules within those."""
    met = set[str]()
    while modules:
        module = modules.pop()
        if module.__name__ not in met and not installed(module):
            met.add(module.__name__)
            meant = {name: vars(module)[name] for name in sorted(names & vars(module).keys())}
            yield meant
            modules += [value for value in meant.values() if isinstance(value, ModuleType)]


def names_in(code: CodeType) -> set[str]:
    """Names that it uses, in functions within it too."""
    within = (names_in(part) for part in code.co_consts if isinstance(part, CodeType))
    return {*code.co_names}.union(*within)


def installed(thing: Any) -> bool:
    """Whether it comes with Python or a package: its version is in the record, its code does not change."""
    if isinstance(thing, type):  # one that was made by exec has no file, but its methods have, of a kind
        methods = [inspect.unwrap(part) for part in vars(thing).values() if isinstance(part, FunctionType)]
        files = [part.__code__.co_filename for part in methods if isinstance(part, FunctionType)]
        if not all(map(of_a_package, files)):
            return False
    try:
        return of_a_package(inspect.getfile(thing))
    except (TypeError, OSError):
        return getattr(thing, "__module__", "") != "__main__" and not isinstance(thing, FunctionType)


def of_a_package(file: str) -> bool:
    return any(Path(file).absolute().is_relative_to(folder) for folder in INSTALLED)
