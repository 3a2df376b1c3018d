"""`straggler.sweep`: run every combination of a grid, several seeds of each."""

import html
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import polars as pl

from straggler.analysis.figures.matplotlib_renderer import write_figure
from straggler.analysis.sweep_tables import CAPTION, SweepTable, choose_target
from straggler.config.imports import refuse_import_strings
from straggler.core.devices import DeviceChoice
from straggler.record import Record, find_finished_record
from straggler.running.atomic_files import write_text_atomically
from straggler.running.console import WordConsole
from straggler.sweeps.grid import Grid, expand_grid, find_runnable_cells, read_grid_file
from straggler.sweeps.runner import Place, SweepPlan, open_pool, plan_sweep, run_plan
from straggler.sweeps.search import Search
from straggler.sweeps.search_report import build_search_figures, describe_choice, tabulate_trials
from straggler.sweeps.summaries import collect_labels, read_summaries

MOST_TIMED = 1000  # runs, whose curves are read for the time to a target that was not requested


class SweepResult:
    """The runs of a sweep: a table with a row per cell, the records, and the reasons of failures."""

    def __init__(
        self,
        plan: SweepPlan,
        failures: dict[str, str],
        impossible: dict[str, str],
        target: float | None = None,
    ) -> None:
        self.plan, self.target = plan, target
        self.failures = failures  # reasons by id
        self.impossible = impossible  # combinations that cannot be run: reasons by name

    @property
    def searches(self) -> list[Search]:
        """The searches of a sweep with `tune`, in the order of the grid."""
        return self.plan.searches

    @cached_property
    def trials(self) -> pl.DataFrame:
        """A row per trial of every search: its labels, values, mean of the objective, and state."""
        return tabulate_trials(self.searches)

    @cached_property
    def summaries(self) -> pl.DataFrame:
        """A row per cell and seed, in the order of the grid: labels, seed, id and all single results."""
        stored = read_summaries(self.plan.store.folder)
        if stored.is_empty():
            return stored
        order = pl.DataFrame({"id": [run.id for run in self.plan.all_runs]})
        return order.join(stored, on="id", maintain_order="left")

    @cached_property
    def formatter(self) -> SweepTable | None:
        """The table with its text, Markdown, CSV and LaTeX forms; None before the first run has ended."""
        if self.summaries.is_empty():
            return None
        summaries = self.summaries
        target = self._choose_target() if self.target is None else self.target
        if target is not None:
            times = {record.path.name: record.time_to(target) for record in self.records}
            column = [times.get(id) for id in summaries["id"]]
            summaries = summaries.with_columns(pl.Series("time_to_target", column, dtype=pl.Float64))
        experiments = [run.experiment for run in self.plan.all_runs]
        metrics = dict.fromkeys(m.label for one in experiments for m in getattr(one, "metrics", ()))
        return SweepTable(summaries, collect_labels(self.plan.all_runs), target, list(metrics))

    def _choose_target(self) -> float | None:
        """Return the highest multiple of 5 % that half of the runs ended above; None if there is none."""
        if "test_accuracy" not in self.summaries.columns:
            return None
        if len(self.plan.all_runs) > MOST_TIMED:
            return None
        return choose_target(self.summaries.filter("converged")["test_accuracy"].drop_nulls())

    @property
    def table(self) -> pl.DataFrame:
        """A row per cell: labels, mean, low and high end of the 95 % confidence interval, and more."""
        return self.formatter.table if self.formatter else pl.DataFrame()

    @cached_property
    def records(self) -> list[Record]:
        """The finished records on this machine, in the order of the grid."""
        found = (find_finished_record(self.plan.pool.runs / run.id) for run in self.plan.all_runs)
        return [record for record in found if record is not None]

    def write(self) -> None:
        """Write the table to `sweep.md`, `sweep.csv` and `sweep.tex` in the results.

        With `tune`, also the trials to `trials.csv` and the figures `search.png` and `sweep.png`.
        """
        folder, figures = self.plan.store.folder, build_search_figures(self.searches, self.formatter)
        if (table := self.formatter) is not None:
            page = f"# {self.plan.name}\n\n{table.markdown()}"
            if self.searches:
                shown = [f"![{figure.title}]({figure.name}.png)" for figure in figures]
                page += "\n\n".join(["", describe_choice(self.searches), *shown, ""])
            for ending, text in {"md": page, "csv": table.csv(), "tex": table.latex()}.items():
                write_text_atomically(folder / f"sweep.{ending}", text)
        if not self.trials.is_empty():
            rounded = self.trials.with_columns(pl.selectors.float().round_sig_figs(6))
            write_text_atomically(folder / "trials.csv", rounded.write_csv())
        for figure in figures:
            write_figure(figure, folder / f"{figure.name}.png")

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"SweepResult({self.plan}{failed})"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p><p>{CAPTION}</p>{self.table._repr_html_()}"


def sweep(
    grid: Grid | Path | str,
    *,
    seeds: int | Sequence[int] | None = None,
    out: Path | str = "runs",
    results: Path | str | None = None,
    name: str | None = None,
    cores: int | None = None,
    on: Place = "local",
    address: str | None = None,
    data: Path | None = None,
    device: DeviceChoice = "cpu",
    target: float | None = None,
    trust: bool = False,
    progress: bool = True,
    dry_run: bool = False,
) -> SweepResult:
    """Run every combination of the values in a grid, with several seeds. Identical runs are cached.

    `grid` is a dictionary of Experiment settings in which a list means alternatives, a list of such
    dictionaries, or the path of a TOML file. Values may be custom objects. Every experiment is constructed
    before the first one runs. Records go to `out`, the table and the summaries to `results` (results/NAME).

    `cores` is the number of runs at the same time; `on="ray"` runs them on a Ray cluster (`address`).
    Runs take the devices in turn.
    The table has the time until a test accuracy of `target` percent; by default the highest multiple of 5
    that half of the runs ended above. `trust=True` follows import strings in TOML.
    """
    source = None
    if isinstance(grid, Path | str):
        name, source = name or Path(grid).stem, None if trust else str(grid)
        grid = read_grid_file(grid)
    name = name or "sweep"
    cells, chosen_seeds = expand_grid(grid, seeds)
    with refuse_import_strings(source):
        cells, impossible = find_runnable_cells(cells, chosen_seeds[0])
        folder = Path(results) if results else Path("results") / name
        with open_pool(on, address, cores, Path(out), data, device) as pool:
            plan = plan_sweep(name, cells, chosen_seeds, pool, folder, key=["id"])
            failures = run_or_skip(plan, progress, dry_run)
    result = SweepResult(plan, failures, impossible, target)
    if not dry_run:
        result.write()
    return result


def run_or_skip(plan: SweepPlan, progress: bool, dry_run: bool) -> dict[str, str]:
    """Print a plan and run it, unless it is a dry run. Return the reasons of failures by id."""
    console = WordConsole(stderr=True, quiet=not progress)
    console.print(str(plan), markup=False, soft_wrap=True)
    return {} if dry_run else run_plan(plan, console)
