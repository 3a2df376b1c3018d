"""Ids and weights that committed results rely on must never change."""

import json
from pathlib import Path
from typing import Any

import pytest

from straggler.experiment import Experiment

COMMITTED = json.loads((Path(__file__).parent / "committed_ids.json").read_text())


@pytest.mark.parametrize("entry", COMMITTED, ids=lambda entry: entry["id"])
def test_ids_of_committed_results_are_unchanged(entry: dict[str, Any]) -> None:
    assert Experiment(**entry["settings"]).id == entry["id"]
