"""Fingerprints of Python objects: hashes of their source, their values and the objects they use."""

import ast
import dataclasses
import hashlib
import inspect
import linecache
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from straggler.config.imports import is_installed_file

SIMPLE = str | int | float | complex | bytes | type(None) | type(Ellipsis)
DOCUMENTED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def fingerprint(*things: Any) -> str:
    """Return a hash that is equal for equal objects in every process.

    Functions count by their source (without comments and docstrings), their closures, and the global
    variables, functions and classes that they use. Installed packages count by name only, because a record
    has their versions. Without source (code typed into an interpreter), bytecode counts instead.
    """
    digest = hashlib.sha256()
    for part in flatten_object(things, {}):
        digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()[:12]


def flatten_object(thing: Any, seen: dict[int, tuple[int, Any]]) -> Iterator[bytes]:
    """Yield everything an object consists of; for an object seen before (tied weights), only its number."""
    yield type(thing).__qualname__.encode()
    if isinstance(thing, SIMPLE):
        yield repr(thing).encode()
    elif isinstance(thing, ModuleType):
        yield thing.__name__.encode()
    else:
        if not isinstance(thing, tuple | CodeType):  # Python may share equal constants
            if id(thing) in seen:
                yield str(seen[id(thing)][0]).encode()
                return
            seen[id(thing)] = (len(seen), thing)  # keeps the object alive, so that its id stays unique
        for part in list_parts(thing):
            yield from flatten_object(part, seen)


def list_parts(thing: Any) -> Iterable[Any]:
    """Return the parts of an object: items, source or values, and otherwise the parts that pickle stores."""
    if isinstance(thing, np.memmap):  # may be too large to read
        return str(thing.filename), str(thing.dtype), thing.shape, thing.offset
    if isinstance(thing, np.ndarray):
        return str(thing.dtype), thing.shape, thing.tolist() if thing.dtype == object else thing.tobytes()
    if isinstance(thing, Tensor):
        frozen = isinstance(thing, nn.Parameter) and not thing.requires_grad
        values = thing.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return frozen, str(thing.dtype), tuple(thing.shape), values
    if isinstance(thing, Mapping):
        return [part for item in thing.items() for part in item]
    if isinstance(thing, set | frozenset):
        return sorted(thing, key=repr)
    if isinstance(thing, list | tuple):
        return thing
    if isinstance(thing, CodeType):
        return thing.co_code, thing.co_names, *thing.co_consts
    if isinstance(thing, FunctionType | type) and is_installed(thing):
        return f"{thing.__module__}.{thing.__qualname__}", *find_decorated(thing)
    if isinstance(thing, FunctionType):
        source = find_source(thing.__code__) or thing.__code__
        return source, thing.__defaults__, thing.__kwdefaults__, *find_references(thing)
    if isinstance(thing, type):
        return list_class_parts(thing)
    if isinstance(thing, BuiltinFunctionType):
        return (thing.__qualname__,)
    if hasattr(thing, "__wrapped__"):  # by lru_cache and the like
        return type(thing).__qualname__, thing.__wrapped__
    if isinstance(thing, property):
        return thing.fget, thing.fset, thing.fdel
    if isinstance(thing, staticmethod | classmethod):
        return (thing.__func__,)
    if isinstance(thing, Dataset):
        return list_dataset_parts(thing)
    if isinstance(thing, nn.Module):
        return type(thing), vars(thing)
    return list_pickled_parts(thing)


def list_class_parts(kind: type) -> Iterable[Any]:
    """Return the name, bases and members of a class, except those that Python adds to every class."""
    members = {
        key: value
        for key, value in vars(kind).items()
        if key != "_abc_impl" and (isinstance(value, FunctionType) or not key.startswith("__"))
    }
    if not dataclasses.is_dataclass(kind):
        return kind.__qualname__, kind.__mro__[1:], members
    written = {key: value for key, value in members.items() if key[:2] != "__" or find_source(value.__code__)}
    fields = [(field.name, field.default, field.default_factory) for field in dataclasses.fields(kind)]
    return kind.__qualname__, kind.__mro__[1:], written, fields


def list_dataset_parts(dataset: Any) -> Iterable[Any]:
    """Return the class, the length and the attributes of a Dataset, but none of its items.

    A `fingerprint` attribute replaces all attributes but numbers and text.
    """
    declared = getattr(dataset, "fingerprint", None)
    length = len(dataset) if hasattr(dataset, "__len__") else None
    attributes = {k: v for k, v in vars(dataset).items() if declared is None or isinstance(v, SIMPLE)}
    return type(dataset), length, declared() if callable(declared) else declared, attributes


def list_pickled_parts(thing: Any) -> Iterable[Any]:
    """Return the parts that pickle stores of an object; if pickle fails, warn and return its type."""
    try:
        reduced = thing.__reduce_ex__(2)
    except Exception as error:
        name = type(thing).__qualname__
        remedy = "If it belongs to a Dataset, give the Dataset a `fingerprint` attribute."
        warnings.warn(f"The id ignores the value of a {name} ({error}). {remedy}", stacklevel=2)
        return (name,)
    parts = (reduced,) if isinstance(reduced, str) else reduced
    return [list(part) if isinstance(part, Iterator) else part for part in parts]


def find_source(code: CodeType) -> str | None:
    """Return the source of a function without comments and docstrings, or None if it is unknown."""
    linecache.checkcache(code.co_filename)  # the file may have been edited and imported again
    found = index_functions("".join(linecache.getlines(code.co_filename)))
    sources = found.get((code.co_firstlineno, code.co_name), [])
    return sources[0] if len(sources) == 1 else None  # two lambdas may share a line


@lru_cache(maxsize=64)
def index_functions(text: str) -> dict[tuple[int, str], list[str]]:
    """Return the functions in a file by first line and name."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:  # the file has changed since it was imported
        return {}
    found: dict[tuple[int, str], list[str]] = {}
    for node in nodes:
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            line = min(part.lineno for part in [node, *getattr(node, "decorator_list", [])])
            found.setdefault((line, getattr(node, "name", "<lambda>")), []).append(ast.unparse(node))
    return found


def find_decorated(thing: Any) -> Iterator[Any]:
    """Yield the custom functions inside a function that a decorator of an installed package returned."""
    cells = [cell.cell_contents for cell in getattr(thing, "__closure__", None) or () if cell != CellType()]
    for inner in (getattr(thing, "__wrapped__", None), *cells):
        if isinstance(inner, FunctionType) and (not is_installed(inner) or inner.__closure__):
            yield inner


def find_references(function: FunctionType) -> Iterator[Mapping[str, Any]]:
    """Yield the values that a function uses: from its closure, its module, and custom modules it imports."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    enclosed = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
    names, scope = list_names(function.__code__), function.__globals__
    used = {name: scope[name] for name in sorted(names & scope.keys())}
    yield from (enclosed, used)
    modules = [value for value in (enclosed | used).values() if isinstance(value, ModuleType)]
    visited = set[str]()
    while modules:
        module = modules.pop()
        if module.__name__ not in visited and not is_installed(module):
            visited.add(module.__name__)
            found = {name: vars(module)[name] for name in sorted(names & vars(module).keys())}
            yield found
            modules += [value for value in found.values() if isinstance(value, ModuleType)]


def list_names(code: CodeType) -> set[str]:
    """Return the names that a function and the functions inside it use."""
    inner = (list_names(part) for part in code.co_consts if isinstance(part, CodeType))
    return {*code.co_names}.union(*inner)


def is_installed(thing: Any) -> bool:
    """Return whether an object comes with Python, an installed package or Straggler."""
    if isinstance(thing, type):  # a class made by exec has no file, but its methods name one
        methods = [inspect.unwrap(part) for part in vars(thing).values() if isinstance(part, FunctionType)]
        files = [part.__code__.co_filename for part in methods if isinstance(part, FunctionType)]
        if not all(map(is_installed_file, files)):
            return False
    try:
        return is_installed_file(inspect.getfile(thing))
    except (TypeError, OSError):
        return getattr(thing, "__module__", "") != "__main__" and not isinstance(thing, FunctionType)
