"""Names of runs in legends and tables: the method, and the settings in which the runs differ."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import polars as pl

from straggler.algorithms.aggregations import AGGREGATIONS
from straggler.algorithms.channels import CHANNELS
from straggler.algorithms.corrections import parse_correction
from straggler.algorithms.methods import METHODS
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.algorithms.policies import POLICIES
from straggler.algorithms.work import WORK
from straggler.config.registry import parse_call, parse_entry

COMPONENTS = ("policy", "correction", "optimizer", "work", "channel", "aggregation")
# What a record of an older version does not state, and what a label does not mention.
DEFAULTS = {"correction": "none", "optimizer": "sgd", "work": "gradient", "channel": "exact"}
DEFAULTS |= {"aggregation": "mean"}
CATALOGUES: dict[str, Any] = {"policy": POLICIES, "optimizer": OPTIMIZERS, "work": WORK}
CATALOGUES |= {"channel": CHANNELS, "aggregation": AGGREGATIONS}
OPTIMIZER_SETTINGS = ("momentum", "nesterov", "weight_decay")
NEVER_SHOWN = (
    "method",
    "eval_every",
    "train_metrics",
    "metrics",
    "snapshots",
)  # the last ones only affect measuring
Settings = Mapping[str, Any]


class RunData(Protocol):
    """The attributes of a run that labels and figures need: a Record, or any object that has them."""

    @property
    def path(self) -> Path: ...
    @property
    def settings(self) -> dict[str, Any]: ...
    @property
    def summary(self) -> dict[str, Any]: ...
    @property
    def curve(self) -> pl.DataFrame: ...
    @property
    def jobs(self) -> pl.DataFrame: ...


R = TypeVar("R", bound=RunData)


@lru_cache(maxsize=1)
def list_method_components() -> dict[str, tuple[str, ...]]:
    """Return the components of every method, as a record writes them."""
    found = {}
    for name, method in METHODS.items():
        texts = {component: getattr(method, component) for component in COMPONENTS}
        parsed = {key: parse_entry(texts[key], catalogue) for key, catalogue in CATALOGUES.items()}
        parsed["correction"] = parse_correction(texts["correction"])
        found[name] = tuple(str(parsed[component]) for component in COMPONENTS)
    return found


def name_method(settings: Settings) -> str:
    """Return the method's name; of a combination without a name, the components that are not the defaults.

    The recorded method counts only if its components have the recorded names: they can be overridden.
    """
    components = tuple(str(settings.get(key, DEFAULTS.get(key, ""))) for key in COMPONENTS)
    plain = tuple(map(remove_optimizer_settings, components))
    known, recorded = list_method_components(), settings.get("method")
    if known.get(str(recorded)) == components:
        return str(recorded)
    for wanted in (components, plain):
        names = (name for name, own in known.items() if own == wanted and not METHODS[name].single)
        if (name := next(names, None)) is not None:
            return name
    if recorded in METHODS:
        expected = known[str(recorded)]
        if [text.split("(")[0] for text in expected] == [text.split("(")[0] for text in components]:
            return str(recorded)
    pairs = zip(COMPONENTS, components, strict=True)
    return (
        " × ".join(shorten_custom(text) for key, text in pairs if text not in (DEFAULTS.get(key), "")) or "?"
    )


def remove_optimizer_settings(text: str) -> str:
    """Return `sgd` for `sgd(momentum=0.9)`; other arguments stay."""
    keys = "|".join(OPTIMIZER_SETTINGS)
    return re.sub(rf"\b({keys})=[^,)]*(, )?", "", text).removesuffix("()").replace(", )", ")")


def shorten_custom(text: str) -> str:
    """Return a custom component's class name and arguments, without its module and fingerprint."""
    return re.sub(r"\s*\[(?:given|custom) [^\]]*\]|(?<![\w'\"./\\-])[\w./\\-]++:(?=[A-Za-z_])", "", text)


def expand_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings with the arguments of the components as separate settings.

    An argument with the name of a setting is called after its component: `work lr`.
    """
    found = {key: value for key, value in settings.items() if key not in NEVER_SHOWN}
    for component in COMPONENTS:
        try:
            name, _, arguments = parse_call(str(found.get(component, "")))
        except ValueError:  # a custom component or a chain of corrections
            continue
        taken = settings.keys() - {*OPTIMIZER_SETTINGS}  # version 0.1 recorded these as settings too
        renamed = {f"{component} {key}" if key in taken else key: arguments[key] for key in arguments}
        found |= {component: name, **renamed}
    return {key: value for key, value in found.items() if value or key not in OPTIMIZER_SETTINGS}


def find_differences(every: Sequence[Settings], hidden: Sequence[str] = ()) -> dict[str, set[str]]:
    """Return the settings in which runs differ, except the seed, each with the methods that mention it.

    A method's name stands for its components, so only runs of the same method mention these.
    """
    expanded, methods = [expand_settings(settings) for settings in every], list(map(name_method, every))
    found = {}
    for key in dict.fromkeys(
        key for settings in expanded for key in settings if key not in ("seed", *hidden)
    ):
        of_component = key in (*COMPONENTS, *OPTIMIZER_SETTINGS) or not any(key in one for one in every)
        values: dict[str, set[str]] = {}
        for settings, method in zip(expanded, methods, strict=True):
            values.setdefault(method if of_component else "", set()).add(repr(settings.get(key)))
        differing = {method for method, different in values.items() if len(different) > 1}
        if differing:
            found[key] = differing if of_component else set(methods)
    return found


def format_setting(key: str, value: Any) -> str:
    """Format one setting for a legend, for example `lr 0.1`."""
    words = key.replace("_", " ")
    if value == "none" or value == []:
        return f"no {words}"
    text = " + ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if isinstance(value, str | list) else f"{words} {text}"


def label_settings(every: Sequence[Settings], hidden: Sequence[str] = ()) -> list[str]:
    """Return a label for the settings of each run, except for `hidden` settings."""
    expanded = [expand_settings(settings) for settings in every]
    labels = [[name_method(settings)] for settings in every]
    for key, methods in find_differences(every, hidden).items():
        texts = ["" if (value := one.get(key)) is None else format_setting(key, value) for one in expanded]
        short = [shorten_custom(text) for text in texts]
        shown = short if len(set(short)) == len(set(texts)) else texts  # two custom classes of one name
        for label, text in zip(labels, shown, strict=True):
            label += [text] if text and label[0] in methods else []
    return [", ".join(label) for label in labels]


def label_runs(runs: Sequence[RunData]) -> list[str]:
    """Return a label for each run; runs that differ only in their seed share a label."""
    return label_settings([run.settings for run in runs])


def group_seeds(runs: Sequence[R], hidden: Sequence[str] = ()) -> dict[str, list[R]]:
    """Group runs that differ only in their seed and in `hidden` settings, by their labels.

    Numbers are sorted by size. Copies of a run count once.
    """
    every = [run.settings for run in runs]
    labels, keys = label_settings(every, hidden), [*find_differences(every, hidden), *hidden, "seed"]
    expanded = [expand_settings(settings) for settings in every]
    names = [*METHODS, *sorted({name_method(settings) for settings in every} - METHODS.keys())]
    place = [names.index(name_method(settings)) for settings in every]
    order = sorted(
        range(len(runs)), key=lambda n: (place[n], [rank_value(expanded[n].get(key)) for key in keys])
    )
    groups: dict[str, dict[tuple[str, ...], R]] = {}
    for position in order:
        run, settings = runs[position], every[position]
        content = str(run.summary.get("weights_sha256") or run.path.name)
        identity = (content, *(str(settings.get(key)) for key in ("seed", *hidden)))
        groups.setdefault(labels[position], {}).setdefault(identity, run)
    return {label: list(group.values()) for label, group in groups.items()}


def name_runs(runs: Sequence[R]) -> dict[str, R]:
    """Return the runs by unique names: their labels, with the seed or the folder's name where necessary."""
    named: dict[str, R] = {}
    for label, group in group_seeds(runs).items():
        seeds = [run.settings.get("seed") for run in group]
        for run, seed in zip(group, seeds, strict=True):
            name = f"{label}, seed {seed}" if len(group) > 1 else label
            name = f"{name} ({run.path.name})" if seeds.count(seed) > 1 else name
            named[f"{name} in {run.path.parent}" if name in named else name] = run
    return named


def rank_value(value: Any) -> list[tuple[float, str]]:
    """Return a sort key: numbers by size, before texts; numbers within texts by size too."""
    if value is None or isinstance(value, int | float):
        return [(float("-inf") if value is None else float(value), "")]
    text = " + ".join(map(str, value)) if isinstance(value, list) else str(value)
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(float(part), "") if odd % 2 else (float("inf"), part) for odd, part in enumerate(parts)]
