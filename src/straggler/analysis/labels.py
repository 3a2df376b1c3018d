"""What to call runs that are shown together: by what differs between them."""

import re
from collections.abc import Sequence
from typing import Any

from straggler.record import Record

SHARED = ("momentum", "nesterov", "weight_decay")  # stand in the optimizer's text too
NOT_TOLD = ("eval_every", "train_metrics", "snapshots")  # change what is seen, not what happens
Rank = list[tuple[float, str]]


def name_runs(records: Sequence[Record]) -> dict[str, Record]:
    """Every run by the settings in which it differs from another; one alone by its policy and workers.

    They come in the order of what differs, numbers as numbers.
    """
    every = [record.settings for record in records]
    telling = once(every, differing(every))
    if len(records) == 1:
        return {alone(every[0]): records[0]}
    names = [", ".join(told(key, keys.get(key)) for key in telling) for keys in every]
    runs: dict[str, Record] = {}
    for place in ordered(every, telling):
        name, record = names[place], records[place]
        clear = name and names.count(name) == 1
        runs[name if clear else f"{name} {record.path.name}".strip()] = record
    return runs


def group_seeds(records: Sequence[Record], axes: Sequence[str] = ()) -> dict[str, list[Record]]:
    """Runs that differ in nothing but their seed and what a figure's axes show, by what tells them apart.

    A run that is given twice is there once. The order is that of `named`.
    """
    every = [record.settings for record in records]
    telling = once(every, told_apart_by(records, axes))
    groups: dict[str, dict[tuple[Any, str], Record]] = {}
    for place in ordered(every, [*telling, *axes, "seed"]):
        keys, record = every[place], records[place]
        name = ", ".join(told(key, keys.get(key)) for key in telling) or alone(keys, axes)
        groups.setdefault(name, {})[keys.get("seed"), record.path.name] = record
    return {name: list(group.values()) for name, group in groups.items()}


def told_apart_by(records: Sequence[Record], axes: Sequence[str] = ()) -> list[str]:
    """The settings in which runs differ, but for the seed and what a figure's axes show."""
    return [key for key in differing([record.settings for record in records]) if key not in ("seed", *axes)]


def alone(keys: dict[str, Any], axes: Sequence[str] = ()) -> str:
    """What runs are called that nothing tells apart."""
    return " × ".join(str(keys[key]) for key in ("policy", "workers") if key not in axes)


def differing(every: Sequence[dict[str, Any]]) -> list[str]:
    """The keys whose values are not all the same, each difference once."""
    keys = dict.fromkeys(key for one in every for key in one if key not in NOT_TOLD)
    found = [key for key in keys if len({repr(one.get(key)) for one in every}) > 1]
    optimizers = {own_words(str(one.get("optimizer"))) for one in every}
    if "optimizer" in found and len(optimizers) == 1 and any(key in found for key in SHARED):
        found.remove("optimizer")
    return found


def once(every: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[str]:
    """Without pieces of the optimizer that tell the same as another, as nesterov beside momentum may."""
    tells = {key: [repr(one.get(key)) for one in every] for key in keys}
    patterns = {key: [seen.index(value) for value in seen] for key, seen in tells.items()}
    shared = [key for key in keys if key in SHARED]
    repeated = [
        key for place, key in enumerate(shared) if patterns[key] in [patterns[one] for one in shared[:place]]
    ]
    return [key for key in keys if key not in repeated]


def own_words(optimizer: str) -> tuple[str, ...]:
    """What an optimizer's text says that stands nowhere else."""
    words = re.split(r"[(), ]+", optimizer)
    return tuple(word for word in words if word and word.split("=")[0] not in SHARED)


def ordered(every: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[int]:
    """The places of settings, sorted by these keys."""
    return sorted(range(len(every)), key=lambda place: [rank(every[place].get(key)) for key in keys])


def rank(value: Any) -> Rank:
    """Numbers by size, before texts; numbers within texts too, so that `k=10` comes after `k=2`."""
    if isinstance(value, int | float):
        return [(float(value), "")]
    parts = re.split(
        r"(\d+(?:\.\d+)?)", " + ".join(map(str, value)) if isinstance(value, list) else str(value)
    )
    return [(float(part), "") if number % 2 else (float("inf"), part) for number, part in enumerate(parts)]


def told(key: str, value: Any) -> str:
    """`lr 0.1`; a policy or a law says itself what it is, unless it is none."""
    if value == "none":
        return f"no {key.replace('_', ' ')}"
    text = " + ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if isinstance(value, str) else f"{key.replace('_', ' ')} {text or 'none'}"
