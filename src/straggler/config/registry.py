"""Catalogues: text such as `name(key=value, …)` becomes a checked object, and the object becomes text."""

import ast
import difflib
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from straggler.config.imports import IMPORTED, import_object, is_import_string

CUSTOM_MARK = " [custom "  # follows the name of a Python object in text; its fingerprint comes after it
OLD_MARK = "[given "  # the same in records of version 0.1


class InputError(ValueError):
    """Invalid input from the user; the message has the value, the rule and the remedy."""

    exit_code = 2


class CatalogueEntry(BaseModel):
    """One choice in a catalogue. Its fields are its settings, and `str()` returns its text form."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    name: ClassVar[str]

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __str__(self) -> str:
        fields = type(self).model_fields
        defaults = {key: field.get_default(call_default_factory=True) for key, field in fields.items()}
        changed = [key for key in fields if is_different(getattr(self, key), defaults[key])]
        return self.format_with(changed, IMPORTED.get(type(self), self.name))

    @property
    def label(self) -> str:
        """The text form for legends and tables: a custom class appears by its name, without its file."""
        return str(self).replace(IMPORTED.get(type(self), self.name), self.name, 1)

    def format_with(self, keys: Iterable[str], name: str) -> str:
        """Return the text form with these settings."""
        arguments = ", ".join(f"{key}={format_value(getattr(self, key))}" for key in keys)
        return f"{name}({arguments})" if arguments else name

    def identity(self) -> str:
        """Return the text form with every setting, so that an id does not change when a default does."""
        return self.format_with(type(self).model_fields, self.name)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))  # settings only, without private attributes, which change during a run


def is_different(value: object, default: object) -> bool:
    """Return whether a setting differs from its default; arrays count as different."""
    try:
        return bool(value != default)
    except (ValueError, RuntimeError):
        return True


E = TypeVar("E", bound=CatalogueEntry)


class Catalogue(Mapping[str, type[E]], Generic[E]):
    """The entries of one kind by name: built-in classes, and those that installed packages register.

    A package registers a class with an entry point in the group `straggler.<plural>`, for example
    `straggler.policies`.
    """

    def __init__(
        self,
        what: str,
        plural: str,
        kind: type[E],
        entries: Iterable[type[E]],
        aliases: Mapping[str, type[E]] | None = None,
    ) -> None:
        self.what, self.plural, self.kind = what, plural, kind
        self.built_in: dict[str, type[E]] = {entry.name: entry for entry in entries} | dict(aliases or {})

    @cached_property
    def installed(self) -> dict[str, EntryPoint]:
        """Entry points of installed packages by name."""
        found = entry_points(group=f"straggler.{self.plural}")
        return {point.name: point for point in found if point.name not in self.built_in}

    def __getitem__(self, name: str) -> type[E]:
        if name in self.built_in:
            return self.built_in[name]
        point = self.installed[name]
        entry = point.load()
        if not (isinstance(entry, type) and issubclass(entry, self.kind)):
            raise InputError(f"Entry point {name!r} ({point.value}) is not a {self.what}")
        IMPORTED[entry] = name
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter([*self.built_in, *self.installed])

    def __len__(self) -> int:
        return len(self.built_in) + len(self.installed)


def parse_entry(value: object, catalogue: Catalogue[E]) -> E:
    """Return the entry that a value stands for.

    The value may be text (`name(key=value)` or an import string), a table with a `name`, an object or a
    class of the catalogue's kind, or a functools.partial of such a class.
    """
    kind, what = catalogue.kind, catalogue.what
    if isinstance(value, kind):
        return value
    if isinstance(value, partial) and isinstance(value.func, type) and issubclass(value.func, kind):
        return build_entry(value.func, list(value.args), dict(value.keywords))
    if isinstance(value, type) and issubclass(value, kind):
        return build_entry(value, [], {})
    if isinstance(value, Mapping):
        settings, positional = dict(value), list[Any]()
        name = str(settings.pop("name", ""))
    elif isinstance(value, str):
        if CUSTOM_MARK in value or OLD_MARK in value:
            raise ValueError(
                f"{what} {value!r} was a Python object, which text cannot recreate. Pass the object."
            )
        name, positional, settings = parse_call(value)
    else:
        remedy = f"Pass text such as {next(iter(catalogue.built_in))!r}, or a {kind.__name__} object."
        raise ValueError(f"{value!r} is not a {what}. {remedy}")
    if is_import_string(name):
        entry = import_object(name)
        if not (isinstance(entry, type) and issubclass(entry, kind)):
            rule = f"it must be a subclass of {kind.__module__}.{kind.__name__}"
            raise ValueError(f"{name} is not a {what}: {rule}")
    elif name in catalogue:
        entry = catalogue[name]
    else:
        raise ValueError(f"Unknown {what} {name!r}. {suggest_name(name, catalogue)}")
    return build_entry(entry, positional, settings)


def is_custom(entry: type[CatalogueEntry]) -> bool:
    """Return whether a class comes from outside this package."""
    return entry.__module__.split(".")[0] != __name__.split(".")[0]


def build_entry(entry: type[E], positional: list[Any], settings: dict[str, Any]) -> E:
    """Create an entry from its arguments, or raise ValueError with a message of one line."""
    keys = list(entry.model_fields)
    if len(positional) > len(keys):
        raise ValueError(f"{entry.name} takes at most {len(keys)} values: {', '.join(keys)}")
    for key, value in zip(keys, positional, strict=False):
        if key in settings:
            raise ValueError(f"{entry.name}: {key} is set twice. Set it once.")
        settings[key] = value
    try:
        return entry(**settings)
    except ValidationError as error:
        raise ValueError(f"{entry.name}: {explain_validation_error(error, entry.model_fields)}") from None
    except TypeError as error:  # a custom class with its own constructor
        if not is_custom(entry):
            raise
        raise ValueError(f"{entry.name}: {error}") from None


_CALL = re.compile(r"\s*([A-Za-z0-9][\w.-]*|[^()]+:[A-Za-z_][\w.]*)\s*(?:\((.*)\))?\s*", re.DOTALL)


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Return name, positional values and keyword values of `name(1, key=2)`."""
    match = _CALL.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r}: expected `name` or `name(key=value, …)`")
    try:
        call = ast.parse(f"f({match[2] or ''})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError
        settings = {str(k.arg): parse_value(k.value) for k in call.keywords}
        if any(k.arg is None for k in call.keywords) or len(settings) < len(call.keywords):  # ** or twice
            raise ValueError
        return match[1], [parse_value(node) for node in call.args], settings
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        rule = "write key=value in the parentheses, with numbers, words, 'quoted text' or lists as values"
        raise ValueError(f"{text!r}: {rule}") from None


WORDS = {"true": True, "false": False, "none": None, "inf": float("inf")}  # as TOML writes them


def parse_value(node: ast.expr) -> Any:
    """Return a literal's value; a bare word is text (`aggregate=sum`)."""
    if isinstance(node, ast.Name):
        return WORDS.get(node.id, node.id)
    if isinstance(node, ast.List | ast.Tuple):
        return [parse_value(item) for item in node.elts]
    return ast.literal_eval(node)


def format_value(value: Any) -> str:
    """Return a value as text that `parse_value` reads back."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(format_value(item) for item in value)}]"
    if isinstance(value, str):
        is_word = value.isascii() and value.isidentifier() and not keyword.iskeyword(value)
        return value if is_word and value not in WORDS else repr(value)
    if isinstance(value, CatalogueEntry):
        value = str(value)  # an entry in an entry is quoted: local(optimizer='sgd(momentum=0.9)')
        return value if value.isidentifier() else repr(value)
    return repr(value)


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return `Did you mean …? Known: …` for a name that is not known."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return (f"Did you mean {close[0]!r}? " if close else "") + f"Known: {', '.join(names)}"


def explain_validation_error(error: ValidationError, fields: Mapping[str, FieldInfo]) -> str:
    """Return a validation error in one line: the key, the value, the rule and an example."""
    explained = [explain_one_error(dict(item), fields) for item in error.errors()]
    return explained[0] if len(explained) == 1 else "; ".join(text.rstrip(".") for text in explained)


def explain_one_error(item: dict[str, Any], fields: Mapping[str, FieldInfo]) -> str:
    """Return one item of a validation error as text."""
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"unknown key {key!r}. {suggest_name(key, fields)}"
    if item["type"] == "missing":
        return f"{key} is missing. Add {key}=…"
    reason = item["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if item["type"] == "value_error":
        return f"{key}: {reason}" if key else reason
    if item["type"] in ("tuple_type", "list_type"):
        return f"{key} must be a list, got {item['input']!r}. Write {key}=[{item['input']!r}]"
    default = fields[key].get_default() if key in fields and not fields[key].is_required() else None
    example = "" if default is None else f"; for example {key}={format_value(default)}"
    return f"{key} {reason.removesuffix('.')}, got {item['input']!r}{example}"
