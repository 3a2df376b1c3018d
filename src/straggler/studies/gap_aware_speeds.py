"""Figure 12: how fast clusters are without any training, up to 1,024 workers, kept as a small table."""

from collections.abc import Callable, Sequence
from pathlib import Path

from straggler.analysis.clusters import speedup_figure
from straggler.catalogue import parse
from straggler.delays import DELAYS
from straggler.record import read_table, write_parquet
from straggler.speedup import speedups
from straggler.sweeps.cells import Cell

__all__ = ["HETEROGENEOUS", "HOMOGENEOUS", "SPEED_SEEDS", "speed_figures", "tallied"]

FILE = "speedups.parquet"
HOMOGENEOUS = "gamma(mean=1, cv=0.1)"
HETEROGENEOUS = "gamma-machines(mean=1, cv_machine=0.6, cv_task=0.1)"
METHODS = ("asgd", "ssgd", "k-sync(k=90%)")
WORKERS = tuple(2**power for power in range(11))
BATCHES = 100  # of each worker; the paper's 100,000 iterations take hours and are hardly surer
SPEED_SEEDS = 20  # as the paper's


def tallied(
    cells: Sequence[Cell],
    runs: Path,
    results: Path,
    jobs: int | None,
    data: Path | None,
    report: Callable[[str], None],
    progress: Callable[[float, str], None],
) -> None:
    """Count whose gradients arrive when, unless the results have it."""
    if (results / FILE).is_file() or not any(cell.labels["table"] == "12" for cell in cells):
        return
    report("figure 12: clusters of up to 1,024 workers, some minutes")
    laws = [parse(law, DELAYS, "delay law") for law in (HOMOGENEOUS, HETEROGENEOUS)]
    frame = speedups(METHODS, laws, [], WORKERS, BATCHES, range(SPEED_SEEDS), 1.0, progress)
    results.mkdir(parents=True, exist_ok=True)
    write_parquet(frame.select("cluster", "method", "workers", "seed", "speedup"), results / FILE)


def speed_figures(results: Path) -> list[Path]:
    file = results / FILE
    return [speedup_figure(read_table(file), results / "speeds.png")] if file.is_file() else []
