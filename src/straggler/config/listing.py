"""The contents of all catalogues as tables.

`straggler list` must be fast, so it reads listing.json in this folder instead of importing torch. A test
compares the file with the catalogues; `python -m straggler.config.listing` writes it again.
"""

import json
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

LISTING_FILE = Path(__file__).with_suffix(".json")
Listing = dict[str, dict[str, list[Any]]]  # columns and rows by catalogue


def read_listing() -> Listing:
    """Return all catalogues, with the entries that installed packages register."""
    listing: Listing = json.loads(LISTING_FILE.read_text(encoding="utf-8"))
    for name, table in listing.items():
        known = {row[0] for row in table["rows"]}
        table["rows"] += [
            [point.name, "", f"Registered by an installed package: {point.value}"]
            for point in entry_points(group=f"straggler.{name}")
            if point.name not in known
        ]
    return listing


def build_listing() -> Listing:
    """Return the built-in entries of all catalogues; this imports all of them."""
    from straggler.algorithms.aggregations import AGGREGATIONS
    from straggler.algorithms.channels import CHANNELS
    from straggler.algorithms.corrections import CORRECTIONS
    from straggler.algorithms.methods import METHODS
    from straggler.algorithms.optimizers import OPTIMIZERS
    from straggler.algorithms.policies import POLICIES
    from straggler.algorithms.schedules import available_schedules
    from straggler.algorithms.work import WORK
    from straggler.config.settings import PROBLEM_DATA
    from straggler.problems.metrics import METRICS
    from straggler.problems.models import MODELS
    from straggler.problems.partitions import PARTITIONS
    from straggler.timing import DELAYS
    from straggler.timing.churn import CHURN
    from straggler.timing.cores import CORES
    from straggler.timing.links import LINKS

    methods = [[name, m.stages, m.summary, m.citation] for name, m in METHODS.items()]
    schedules = [
        [name, entry.__name__.replace("<lambda>", "none")] for name, entry in available_schedules().items()
    ]
    catalogues = (
        *(WORK, CHANNELS, POLICIES, CORRECTIONS, AGGREGATIONS, OPTIMIZERS),
        *(DELAYS, LINKS, CHURN, CORES, PARTITIONS, MODELS, PROBLEM_DATA, METRICS),
    )
    listing: Listing = {
        "methods": {
            "columns": ["method", "stages", "what it does", "paper"],
            "rows": methods,
        },
        "schedules": {"columns": ["schedule", "torch.optim.lr_scheduler"], "rows": schedules},
    }
    for catalogue in catalogues:
        rows = list_entries(catalogue.built_in)
        listing[catalogue.plural] = {"columns": ["name", "settings", "what it is"], "rows": rows}
    return listing


def list_entries(entries: Mapping[str, Any]) -> list[list[str]]:
    """Return name, settings and summary of each entry; an alias refers to its entry."""
    rows = []
    for name, entry in entries.items():
        if name != entry.name:
            rows.append([name, "", f"Another name of {entry.name}."])
        else:
            rows.append([name, format_settings(entry), (entry.__doc__ or "").split("\n")[0]])
    return rows


def format_settings(entry: Any) -> str:
    """Return the settings of an entry with their defaults: `seconds, workers=None`."""
    from straggler.config.registry import format_value

    return ", ".join(
        key if field.is_required() else f"{key}={format_value(field.get_default(call_default_factory=True))}"
        for key, field in entry.model_fields.items()
    )


if __name__ == "__main__":
    LISTING_FILE.write_text(
        json.dumps(build_listing(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
