"""Import strings: `pkg.module:Name(key=value)` and `./file.py:Name(key=value)` name custom code in text."""

import difflib
import hashlib
import importlib
import importlib.util
import linecache
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle


class UntrustedImportError(Exception):
    """Raised for a refused import string. Not a ValueError, so that pydantic stops at the first one."""


IMPORTED: dict[Any, str] = {}  # classes and functions that were named in text, with their import strings
_untrusted_source: ContextVar[str | None] = ContextVar("untrusted_source", default=None)
_files: dict[tuple[str, int], ModuleType] = {}  # modules loaded from files, by path and modification time
INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
INSTALLED += (Path(__file__).absolute().parents[1],)  # this package, wherever it is


def is_import_string(text: object) -> bool:
    """Return whether a text has the form `module:Name` or `file.py:Name`, with or without arguments."""
    where, colon, name = split_import_string(text) if isinstance(text, str) else ("", "", "")
    return bool(colon and where) and name.replace(".", "_").isidentifier()


def has_import_strings(settings: Mapping[str, Any]) -> bool:
    """Return whether a setting, or an element of a list, is an import string."""
    items = (
        item
        for value in settings.values()
        for item in (value if isinstance(value, list | tuple) else [value])
    )
    return any(map(is_import_string, items))


def split_import_string(text: str) -> tuple[str, str, str]:
    """Return (`./file.py`, ":", `Name`) for `./file.py:Name(width=64)`."""
    where, colon, name = text.partition("(")[0].rpartition(":")
    return where.strip(), colon, name.strip()


@contextmanager
def refuse_import_strings(source: str | None) -> Iterator[None]:
    """Refuse import strings in this block because they come from a file; None allows them."""
    token = _untrusted_source.set(source)
    try:
        yield
    finally:
        _untrusted_source.reset(token)


def import_object(text: str) -> Any:
    """Import the object that a text names. Raise ValueError if that fails, and refuse untrusted text."""
    if (source := _untrusted_source.get()) is not None:
        raise UntrustedImportError(
            f"{source} names custom code ({text}), and importing it would run that code. "
            f"If you trust it, pass --trust (in Python: trust=True)."
        )
    where, _, name = split_import_string(text)
    module = load_file(Path(where)) if where.endswith(".py") else load_module(where)
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            names = [known for known in vars(target) if not known.startswith("_")]
            close = difflib.get_close_matches(part, names, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"{where} has no {part!r}.{hint}")
        target = getattr(target, part)
    if isinstance(target, type | FunctionType):
        IMPORTED[target] = f"{where}:{name}"
    return target


def load_module(name: str) -> ModuleType:
    """Import a module by its dotted name; the current folder is searched too."""
    with searching_folder(Path.cwd()), explaining_import_errors(name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise  # the module exists, but something that it imports does not
            raise ValueError(
                f"No module named {error.name!r}. Install it, start straggler in the folder that has it, "
                f"or name a file: ./{error.name}.py:Name."
            ) from None


def load_file(path: Path) -> ModuleType:
    """Import a Python file; the same file gives the same module until it changes."""
    file = path.expanduser().absolute()
    if not file.is_file():
        raise ValueError(f"File {path} does not exist. The current folder is {Path.cwd()}.")
    key = (str(file), file.stat().st_mtime_ns)
    if key not in _files:
        name = f"{file.stem}_{hashlib.sha256(str(key).encode()).hexdigest()[:8]}"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        linecache.checkcache(str(file))  # fingerprints read the source through this cache
        try:
            with searching_folder(file.parent), explaining_import_errors(str(path)):
                sys.modules[name] = module
                spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        _files[key] = module
    return _files[key]


def is_installed_file(file: str) -> bool:
    """Return whether a file belongs to Python, to an installed package or to this one."""
    return any(Path(file).absolute().is_relative_to(place) for place in INSTALLED)


@contextmanager
def searching_folder(folder: Path) -> Iterator[None]:
    """Search a folder for modules during this block, and pickle modules imported from there by value.

    Worker processes and other nodes do not have this process's search path, so they receive the code itself.
    """
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            module = sys.modules[name]
            file = getattr(module, "__file__", None)
            if file and not is_installed_file(file):
                cloudpickle.register_pickle_by_value(module)


@contextmanager
def explaining_import_errors(where: str) -> Iterator[None]:
    """Turn any exception of an import into a ValueError of one line, with the line number in the file."""
    try:
        yield
    except ValueError as error:
        if type(error) is ValueError and error.__suppress_context__:
            raise  # already explained
        raise ValueError(_describe_failure(where, error)) from error
    except SyntaxError as error:
        file = Path(error.filename or where).name
        raise ValueError(f"{where}: syntax error in line {error.lineno} of {file}: {error.msg}") from None
    except Exception as error:
        raise ValueError(_describe_failure(where, error)) from error


def _describe_failure(where: str, error: Exception) -> str:
    """Return the error and the line of custom code that raised it, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    custom = [frame for frame in frames if not is_installed_file(frame.filename)] or frames
    place = f"line {custom[-1].lineno} of {Path(custom[-1].filename).name}"
    reason = (str(error).splitlines() or [""])[0]
    return f"Importing {where} failed in {place}: {type(error).__name__}: {reason}"
