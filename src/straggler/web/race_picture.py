"""The animated picture of the playground's first race: one SVG file without scripts, for the README."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from straggler.config.registry import InputError
from straggler.core import Arrival, Decision
from straggler.core.loop import Budget
from straggler.experiment import Experiment
from straggler.running.atomic_files import replace_atomically
from straggler.running.simulation import create_simulation
from straggler.web.playground import build_race_settings
from straggler.web.report import read_static, render_template

WIDTH, LANE_WIDTH, LEFT, ROW, SERVER = 860, 790, 54, 13, 24
PIXELS_PER_SECOND = 34  # of virtual time, on the timelines
SPEED, HOLD = 5.0, 4.0  # virtual seconds per second, and seconds for which the end stays
FLIGHT = 2.5  # virtual seconds in which a gradient travels to the server
CHART_HEIGHT = 150
RAMP = [(0, 158, 115), (86, 180, 233), (240, 228, 66), (230, 159, 0), (213, 94, 0), (160, 40, 120)]


@dataclass(frozen=True)
class DrawnJob:
    """A job in the coordinates of its timeline: where it begins and ends, and its gradient's staleness."""

    worker: int
    begin: float
    end: float
    staleness: int
    delay: float | None  # seconds on the wall until its gradient leaves; None: the job is still running


def write_race_picture(path: Path) -> Path:
    """Write the picture and return its path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path) as temporary:
            temporary.write_text(draw_race(), encoding="utf-8")
    except OSError as error:
        raise InputError(f"Cannot write {path} ({error.strerror}). Choose another file.") from None
    return path


def draw_race() -> str:
    """Return the picture of the first story, from its recorded curves and its simulated jobs."""
    page, races = (json.loads(read_static(name)) for name in ("playground.json", "races.json"))
    state = page["start"] | page["stories"][0]["set"]
    target, workers = state["target"], state["workers"]
    recorded = {json.dumps(race["settings"]): race["curve"] for race in races["runs"]}
    settings = {lane: build_race_settings(state, lane) for lane in ("a", "b")}
    curves = {lane: recorded[json.dumps(each)] for lane, each in settings.items()}
    crossings = {lane: find_crossing(curve, target) for lane, curve in curves.items()}
    end = 1.1 * max(crossings.values())
    jobs = {lane: simulate_lane(each, min(end, curves[lane][-1][0])) for lane, each in settings.items()}
    most = max(job.staleness for lane in jobs.values() for job in lane)
    lane_height = SERVER + workers * ROW + 10
    return render_template(
        "race.svg",
        width=WIDTH,
        left=LEFT,
        lane_width=LANE_WIDTH,
        lane_height=lane_height,
        row=ROW,
        server=SERVER,
        workers=workers,
        chart_height=CHART_HEIGHT,
        target=target,
        strip=end * PIXELS_PER_SECOND,
        cursor=LANE_WIDTH - 14,
        duration=end / SPEED + HOLD,
        moving=100 * (end / SPEED) / (end / SPEED + HOLD),
        flight=100 * (FLIGHT / SPEED) / (end / SPEED + HOLD),
        lanes=[
            {
                "name": settings[lane]["method"],
                "id": lane,
                "jobs": [(job, colour_staleness(job.staleness, most)) for job in jobs[lane]],
                "points": format_points(curves[lane], end),
                "finish": crossings[lane] / end * LANE_WIDTH,
                "time": crossings[lane],
                "shown": 100 * (crossings[lane] / SPEED) / (end / SPEED + HOLD),
                "final": curves[lane][-1][1],
                "ended": 100 * (curves[lane][-1][0] / SPEED) / (end / SPEED + HOLD),
                "has_ended": curves[lane][-1][0] < end,
            }
            for lane in ("a", "b")
        ],
        ticks=[(f"{at} s", at / end * LANE_WIDTH) for at in range(0, int(end), 20)],
        level=CHART_HEIGHT * (1 - target / 100),
        epochs=state["epochs"],
        slowness=state["slowness"],
        factor=crossings["b"] / crossings["a"],
        ramp=[f"rgb{colour}" for colour in RAMP],
        most=most,
    )


def simulate_lane(settings: dict[str, Any], seconds: float) -> list[DrawnJob]:
    """Simulate the jobs of a run and return those that start within so many seconds."""
    jobs: list[DrawnJob] = []

    def observe(arrival: Arrival, decision: Decision, staleness: int) -> None:
        if arrival.started < seconds:
            is_running = arrival.time > seconds
            shown = arrival.started, min(arrival.time, seconds)
            begin, end = (round(time * PIXELS_PER_SECOND, 1) for time in shown)
            delay = None if is_running else round(arrival.time / SPEED, 2)
            jobs.append(DrawnJob(arrival.worker, begin, end, staleness, delay))

    create_simulation(Experiment(**settings)).run(Budget(seconds=2 * seconds), observe)
    return jobs


def find_crossing(curve: list[list[float]], target: float) -> float:
    """Return when a curve first reaches the target."""
    return next(seconds for seconds, accuracy in curve if accuracy >= target)


def format_points(curve: list[list[float]], end: float) -> str:
    """Return the points of a curve in the coordinates of the chart."""
    return " ".join(
        f"{seconds / end * LANE_WIDTH:.1f},{CHART_HEIGHT * (1 - accuracy / 100):.1f}"
        for seconds, accuracy in curve
        if seconds <= end
    )


def colour_staleness(staleness: int, most: int) -> str:
    """Return the colour of a staleness on a logarithmic scale, as the playground does."""
    place = math.log2(1 + staleness) / math.log2(1 + max(most, 7)) * (len(RAMP) - 1)
    low = min(int(place), len(RAMP) - 2)
    mixed = (a + (place - low) * (b - a) for a, b in zip(RAMP[low], RAMP[low + 1], strict=True))
    return "#" + "".join(f"{round(value):02x}" for value in mixed)
