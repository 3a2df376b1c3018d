"""A soak: a process is killed every 3 seconds, and the memory and descriptors of the run stay the same.

STRAGGLER_SOAK_SECONDS sets the length of the run (default: 5 minutes).
"""

import os
import random
import statistics
import time
from pathlib import Path
from signal import Signals

import pytest
from fault_testing import AttackedRun, attacked_run, list_descendants

from straggler.running.replay import replay

SECONDS = int(os.environ.get("STRAGGLER_SOAK_SECONDS", "300"))
KILL_SECONDS = 3.0
# Five failures per worker within a minute end a run, and this attack makes 20 per minute.
SETTINGS = f"--workers 6 --delay constant(seconds=0.05) --seconds {SECONDS} --eval-every 2 --dataset digits"
pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(2 * SECONDS + 900)]


def read_memory(pid: int) -> int:
    """Return the bytes of memory of a process, shared pages in part (PSS)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def count_files(pid: int) -> int:
    """Return the number of open files of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def measure(run: AttackedRun) -> tuple[int, int, int]:
    """Return the memory of all processes of a run, and the open files of its driver and fork server."""
    (server,) = run.list_processes("fork server")
    pids = [run.process.pid, *list_descendants(run.process.pid)]
    memory = sum(read_memory(pid) for pid in pids)
    drivers, servers = (count_files(pid) for pid in (run.process.pid, server.pid))
    return memory, drivers, servers


def test_memory_and_descriptors_stay_the_same(tmp_path: Path) -> None:
    samples, kills, draw = list[tuple[int, int, int]](), 0, random.Random(0)
    with attacked_run(tmp_path, "processes", f"{SETTINGS} --model mlp(hidden=[512])") as run:
        run.wait_until(lambda: run.read_gradients() > 0)
        due = time.monotonic()
        while not run.is_over():
            run.read_gradients()  # fails if the run hangs
            time.sleep(max(0.0, due - time.monotonic()))
            due = max(due + KILL_SECONDS, time.monotonic())
            victims = run.list_processes("worker") + run.list_processes("evaluator")
            if len(victims) == 7 and not run.is_over():  # all that were killed have been replaced
                try:
                    samples.append(measure(run))
                except (OSError, ValueError):  # the run ends
                    break
            if victims:
                draw.choice(victims).send(Signals.SIGKILL)
                kills += 1
        record = run.check_end()
    fifth = len(samples) // 5
    for name, *values in zip(("memory", "files", "files of the fork server"), *samples, strict=True):
        before, after = (statistics.median(part) for part in (values[fifth : 2 * fifth], values[-fifth:]))
        print(f"{name}: {before:,.0f}, at the end {after:,.0f} ({after / before - 1:+.1%})")
        assert after <= 1.05 * before, f"{name} grew from {before:,.0f} to {after:,.0f}"
    print(
        f"{SECONDS} s, {kills} kills, {record.summary['restarts']} workers replaced, {len(samples)} samples"
    )
    assert kills > SECONDS / KILL_SECONDS / 4
    assert replay(record).matches
