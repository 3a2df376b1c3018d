"""Everything there is to choose from, and how it is listed."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from straggler.algorithms.corrections import CORRECTIONS
from straggler.algorithms.methods import METHODS
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.algorithms.policies import POLICIES
from straggler.algorithms.schedules import available_schedules
from straggler.analysis.tables import build_table
from straggler.config.registry import format_value
from straggler.config.settings import PROBLEM_DATA
from straggler.problems.models import MODELS
from straggler.problems.partitions import PARTITIONS
from straggler.timing import DELAYS

CATALOGUES: dict[str, Mapping[str, Any]] = {
    "methods": METHODS,
    "policies": POLICIES,
    "corrections": CORRECTIONS,
    "optimizers": OPTIMIZERS,
    "schedules": available_schedules(),
    "delays": DELAYS,
    "partitions": PARTITIONS,
    "models": MODELS,
    "datasets": PROBLEM_DATA,
}


def catalogue_table(name: str) -> Table:
    entries = CATALOGUES[name]
    if name == "methods":
        rows = [
            [key, f"{m.policy} × {m.correction} × {m.optimizer}", m.summary, m.citation]
            for key, m in METHODS.items()
        ]
        return build_table(name, ["method", "policy × correction × optimizer", "what it is", "paper"], rows)
    if name == "schedules":
        rows = [[key, entry.__name__.replace("<lambda>", "none")] for key, entry in entries.items()]
        return build_table(name, ["schedule", "torch.optim.lr_scheduler"], rows)
    rows = []
    for key, entry in entries.items():
        first = next(other for other in entries if entries[other] is entry)
        what = (entry.__doc__ or "").split("\n")[0] if first == key else f"Another name of {first}."
        rows.append([key, settings_text(entry) if first == key else "", what])
    return build_table(name, ["name", "settings", "what it is"], rows)


def settings_text(entry: Any) -> str:
    return ", ".join(
        key if field.is_required() else f"{key}={format_value(field.get_default())}"
        for key, field in entry.model_fields.items()
    )
