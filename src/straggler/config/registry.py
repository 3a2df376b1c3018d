"""Text ⇄ objects: an entry of a catalogue is format_value `name` or `name(key=value, …)`, everywhere."""

import ast
import difflib
import keyword
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

GIVEN = "[given "  # in the text of what a user gave in Python, before its fingerprint


class InputError(ValueError):
    """Something the user gave cannot be used; the message has the value, the rule and the remedy."""


class CatalogueEntry(BaseModel):
    """One choice in a catalogue: its settings, checked when made; its text is how it is format_value."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    name: ClassVar[str]

    def __str__(self) -> str:
        fields = type(self).model_fields
        return self.text(k for k in fields if is_different(getattr(self, k), fields[k].get_default()))

    def text(self, keys: Iterable[str]) -> str:
        """As it is format_value, with these settings."""
        arguments = ", ".join(f"{key}={format_value(getattr(self, key))}" for key in keys)
        return f"{self.name}({arguments})" if arguments else self.name

    def identity(self) -> str:
        """What tells it from any other: every setting, so that a default may change without confusion."""
        return self.text(type(self).model_fields)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))  # by what it is set to, not by what a run left in it

    @classmethod
    def keys(cls) -> list[str]:
        """What may stand between the parentheses."""
        return list(cls.model_fields)


def is_different(value: object, default: object) -> bool:
    """Whether it is not the default; arrays do not say so in one word."""
    try:
        return bool(value != default)
    except (ValueError, RuntimeError):
        return True


E = TypeVar("E", bound=CatalogueEntry)


def parse_entry(value: object, catalogue: Mapping[str, type[E]], what: str, kind: type[E] | None = None) -> E:
    """The entry that a text, a table with a `name`, or an entry itself stands for.

    An entry of a class that is in no catalogue will do if it is of this kind: users write their own.
    """
    if kind is not None and isinstance(value, kind) and is_custom(type(value)):
        if not isinstance(getattr(value, "name", None), str):
            rule = f'a {what} has a name; write name: ClassVar[str] = "…" into {type(value).__name__}'
            raise ValueError(f"{type(value).__name__}(…): {rule}")
        return value
    if isinstance(value, CatalogueEntry):
        if type(value) not in catalogue.values():
            raise ValueError(f"{value} is not a {what}; known: {', '.join(catalogue)}")
        return value  # type: ignore[return-value]
    if isinstance(value, Mapping):
        settings, positional = dict(value), list[Any]()
        name = str(settings.pop("name", ""))
    elif isinstance(value, str) and GIVEN in value:
        raise ValueError(
            f"{what} {value!r} was given in Python, which text cannot hold; give the object there"
        )
    elif isinstance(value, str):
        name, positional, settings = parse_call(value)
    elif kind is not None and isinstance(value, type) and issubclass(value, kind):
        raise ValueError(f"{what}={value.__name__} is a class; give an object of it, as {value.__name__}()")
    else:
        raise ValueError(f"{what} {value!r}: write it as text, for example {next(iter(catalogue))!r}")
    if name not in catalogue:
        raise ValueError(f"unknown {what} {name!r}; {suggest_name(name, catalogue)}")
    return build_entry(catalogue[name], positional, settings)


def is_custom(entry: type[CatalogueEntry]) -> bool:
    """Whether a user wrote it."""
    return entry.__module__.split(".")[0] != __name__.split(".")[0]


def build_entry(entry: type[E], positional: list[Any], settings: dict[str, Any]) -> E:
    """Make an entry; whatever is wrong is said in one line."""
    keys = entry.keys()
    if len(positional) > len(keys):
        raise ValueError(f"{entry.name} takes at most {len(keys)} values: {', '.join(keys)}")
    for key, value in zip(keys, positional, strict=False):
        if key in settings:
            raise ValueError(f"{entry.name}: {key} is given twice")
        settings[key] = value
    try:
        return entry(**settings)
    except ValidationError as error:
        raise ValueError(f"{entry.name}: {explain_validation_error(error, entry.model_fields)}") from None


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """`name(1, key=2)` as its name, positional values and keyword values."""
    match = re.fullmatch(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
    if match is None:
        raise ValueError(f"{text!r}: write `name` or `name(key=value, …)`")
    try:
        call = ast.parse(f"f({match[2] or ''})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError
        settings = {str(k.arg): parse_value(k.value) for k in call.keywords}
        if any(k.arg is None for k in call.keywords) or len(settings) < len(call.keywords):  # ** or twice
            raise ValueError
        return match[1], [parse_value(node) for node in call.args], settings
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        rule = "between the parentheses write key=value, with numbers, words, 'quoted text' or lists"
        raise ValueError(f"{text!r}: {rule}") from None


WORDS = {"true": True, "false": False, "none": None, "inf": float("inf")}  # as TOML writes them


def parse_value(node: ast.expr) -> Any:
    """A literal, or a bare word as text (`aggregate=sum`)."""
    if isinstance(node, ast.Name):
        return WORDS.get(node.id, node.id)
    if isinstance(node, ast.List | ast.Tuple):
        return [parse_value(item) for item in node.elts]
    return ast.literal_eval(node)


def format_value(value: Any) -> str:
    """A value as `parse_value` reads it back."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(format_value(item) for item in value)}]"
    if isinstance(value, str):
        bare = (
            value.isascii() and value.isidentifier() and value not in WORDS and not keyword.iskeyword(value)
        )
        return value if bare else repr(value)
    return str(value) if isinstance(value, CatalogueEntry) else repr(value)


def suggest_name(name: str, known: Iterable[str]) -> str:
    """`did you mean …? known: …`"""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return (f"did you mean {close[0]!r}? " if close else "") + f"known: {', '.join(names)}"


def explain_validation_error(error: ValidationError, fields: Mapping[str, FieldInfo]) -> str:
    """A validation error in one line: which key, what was given, what is wanted, what would do."""
    return "; ".join(explain_one_error(dict(item), fields) for item in error.errors())


def explain_one_error(item: dict[str, Any], fields: Mapping[str, FieldInfo]) -> str:
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"unknown key {key!r}; {suggest_name(key, fields)}"
    if item["type"] == "missing":
        return f"{key} is missing; write {key}=…"
    reason = item["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    if item["type"] == "value_error":
        return f"{key}: {reason}" if key else reason
    if item["type"] in ("tuple_type", "list_type"):
        return f"{key}={item['input']!r}: it must be a list; write {key}=[{item['input']!r}]"
    default = fields[key].get_default() if key in fields and not fields[key].is_required() else None
    remedy = "change it" if default is None else f"for example {key}={format_value(default)}"
    return f"{key}={item['input']!r}: {reason}; {remedy}"
