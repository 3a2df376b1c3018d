"""Targets: conditions on evaluations that end a run, such as `test_accuracy >= 80`."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from straggler.config.registry import suggest_name
from straggler.config.settings import BUDGETS

PROGRESS_COLUMNS = ("seconds", "updates", "gradients", "epochs", "bytes_up", "bytes_down", "lr", "batch_loss")


@dataclass(frozen=True)
class Target:
    """A condition on a column of the curve, such as `test_accuracy >= 80`, that ends a run."""

    column: str
    sign: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `column >= number` or `column <= number`."""
        match = re.fullmatch(r"\s*(\S.*?)\s*([<>]=)(.*)", text)
        try:
            value = float(match[3]) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or not math.isfinite(value):
            raise ValueError(f"until={text!r} must have the form 'test_accuracy >= 80' (>= or <=)")
        return cls(match[1], match[2], value)

    def __str__(self) -> str:
        return f"{self.column} {self.sign} {self.value:.12g}"

    def is_reached(self, row: Mapping[str, Any]) -> bool:
        """Return whether an evaluation reached the target."""
        value = row.get(self.column)
        if value is None:
            return False
        return bool(value >= self.value if self.sign == ">=" else value <= self.value)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise ValueError if a run with these settings never measures the column, or has no limit."""
        if not any(settings[budget] is not None for budget in BUDGETS):
            raise ValueError(
                f"until={self} requires a limit, because a run may never reach it. "
                f"Add {', '.join(BUDGETS[:-1])} or {BUDGETS[-1]}."
            )
        if not settings["eval_every"]:
            raise ValueError(f"until={self} is checked at evaluations, so it requires eval_every above 0")
        splits = ["test"] + ["validation"] * bool(settings["validation"])
        splits += ["train"] * (settings["train_metrics"] == "always")
        names = ["accuracy", "loss", *(metric.label for metric in settings["metrics"])]
        known = [*(f"{split}_{name}" for split in splits for name in names), *PROGRESS_COLUMNS]
        if self.column not in known:
            raise ValueError(f"until={self}: no column {self.column!r}. {suggest_name(self.column, known)}")


def parse_until(value: Any) -> str | None:
    """Return the text of a target in its usual form."""
    return None if value is None else str(Target.parse(str(value)))
