"""What to call runs that are shown together: by what differs between them."""

from collections.abc import Sequence
from typing import Any

from straggler.record import Record

__all__ = ["named"]

SHARED = ("momentum", "nesterov", "weight_decay")  # stand in the optimizer's text too
NOT_TOLD = ("eval_every", "train_metrics", "snapshots")  # change what is seen, not what happens


def named(records: Sequence[Record]) -> dict[str, Record]:
    """Every run by the settings in which it differs from another; one alone by its policy and workers.

    Runs that differ in numbers come in their order, others as they are given.
    """
    if len(records) == 1:
        alone = records[0].settings
        return {f"{alone['policy']} × {alone['workers']}": records[0]}
    every = [record.settings for record in records]
    telling = differing(every)
    order = list(range(len(records)))
    if all(isinstance(keys.get(key), int | float) for keys in every for key in telling):
        order.sort(key=lambda place: [every[place][key] for key in telling])
    names = [", ".join(told(key, keys.get(key)) for key in telling) for keys in every]
    runs: dict[str, Record] = {}
    for place in order:
        name, record = names[place], records[place]
        clear = name and names.count(name) == 1
        runs[name if clear else f"{name} {record.path.name}".strip()] = record
    return runs


def differing(every: Sequence[dict[str, Any]]) -> list[str]:
    """The keys whose values are not all the same, each difference once."""
    keys = dict.fromkeys(key for one in every for key in one if key not in NOT_TOLD)
    found = [key for key in keys if len({repr(one.get(key)) for one in every}) > 1]
    optimizers = {str(one.get("optimizer")).split("(")[0] for one in every}
    if "optimizer" in found and len(optimizers) == 1 and any(key in found for key in SHARED):
        found.remove("optimizer")
    return found


def told(key: str, value: Any) -> str:
    """`lr 0.1`; a policy or a law says itself what it is."""
    text = " + ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if isinstance(value, str) else f"{key.replace('_', ' ')} {text or 'none'}"
