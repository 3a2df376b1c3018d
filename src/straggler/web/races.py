"""The recorded races of the playground: `python -m straggler.web.races` trains them and writes races.json."""

import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from straggler.experiment import Experiment
from straggler.web.playground import build_race_settings, read_curve
from straggler.web.report import STATIC, read_static

RACES_FILE = STATIC / "races.json"


def list_race_settings() -> list[dict[str, Any]]:
    """Return the settings of both methods of every story, each once."""
    page = json.loads(read_static("playground.json"))
    states = [page["start"] | story["set"] for story in page["stories"]]
    found = [build_race_settings(state, lane) for state in states for lane in ("a", "b")]
    return [settings for place, settings in enumerate(found) if settings not in found[:place]]


def record_race(settings: dict[str, Any], out: Path) -> dict[str, Any]:
    """Train with these settings; return them with the accuracy curve and what identifies the run."""
    record = Experiment(**settings).run(out)
    facts = {key: record.summary[key] for key in ("id", "weights_sha256")}
    return {"settings": settings, **facts, "curve": read_curve(record.curve)}


def write_races(file: Path = RACES_FILE) -> None:
    """Train all races and write their curves, one run per line."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for settings in list_race_settings():
            race = record_race(settings, Path(folder))
            lines.append(json.dumps(race, separators=(",", ":"), ensure_ascii=False))
            print(f"{settings['method']:14} {race['id']} {race['curve'][-1]}")
    text = ",\n".join(lines)
    file.write_text(f'{{"version": "{version("straggler")}", "runs": [\n{text}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    write_races()
