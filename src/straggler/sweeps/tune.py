"""`straggler.tune`: find the best values of some settings of an experiment."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from straggler.config.imports import refuse_import_strings
from straggler.config.registry import InputError
from straggler.core.devices import DeviceChoice
from straggler.sweeps.grid import Cell
from straggler.sweeps.runner import Place, open_pool, plan_sweep
from straggler.sweeps.search_report import describe_choice, format_trials
from straggler.sweeps.search_space import Values, parse_values
from straggler.sweeps.suggestions import Sampler
from straggler.sweeps.sweep import SweepResult, run_or_skip
from straggler.sweeps.tuning import BATCH, make_tuning, parse_seeds


class TuneResult(SweepResult):
    """The trials of a tuning, the best values, and the runs with them."""

    @property
    def best(self) -> dict[str, Any]:
        """The values of the best trial; empty if no trial has finished."""
        trial = self.searches[0].best
        return {} if trial is None else dict(trial.values)

    @property
    def edges(self) -> list[str]:
        """A sentence for each setting whose best value lies on the edge of what was searched."""
        return [str(edge) for edge in self.searches[0].find_edges()]

    def __repr__(self) -> str:
        return f"TuneResult(best={self.best}, {len(self.trials)} trials)"

    def _repr_html_(self) -> str:
        columns, rows = format_trials(self.searches[0])
        lines = ["".join(f"<td>{html.escape(text)}</td>" for text in row) for row in (columns, *rows)]
        table = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<p>{html.escape(describe_choice(self.searches))}</p><table>{table}</table>"


def tune(
    settings: Mapping[str, Any],
    search: Mapping[str, str | Sequence[Any] | Values],
    *,
    objective: str = "validation_accuracy",
    trials: int | None = None,
    sampler: Sampler | None = None,
    seeds: int | Sequence[int] = 3,
    prune: float | None = None,
    batch: int = BATCH,
    widen: bool = False,
    shorter: Mapping[str, Any] | None = None,
    out: Path | str = "runs",
    results: Path | str | None = None,
    name: str = "tune",
    cores: int | None = None,
    on: Place = "local",
    address: str | None = None,
    data: Path | None = None,
    device: DeviceChoice = "cpu",
    untrusted_source: str | None = None,
    progress: bool = True,
    dry_run: bool = False,
) -> TuneResult:
    """Find the best values of some settings of an experiment. Identical runs are cached.

    `settings` are those of Experiment, and `search` maps further ones to their values: a text such as
    `log(1e-4, 1)`, `uniform(0, 0.9)` or `int(1, 8)`, or a list. Every trial runs with the same seeds. The
    trial with the best mean of the `objective`, which is never measured on the test set, is chosen. Then the
    chosen values are run with `settings`, and the table shows their test results.

    `sampler` is "grid", "random" or "tpe"; by default a grid if the lists have at most `trials` (20)
    combinations, and TPE otherwise. Trials are suggested `batch` at a time, so the number of cores does not
    change them. `prune=50` stops runs that are not among the best 50 % at an evaluation. `shorter` has
    settings of the trials only, such as fewer epochs. `widen` searches further if the best is on the edge.

    A tuning that was stopped continues when it is called again: the records in `out` are its memory.
    """
    space = {key: parse_values(key, value) for key, value in search.items()}
    chosen_seeds = parse_seeds(seeds)
    options = {"objective": objective, "trials": trials, "sampler": sampler, "prune": prune}
    tuning = make_tuning(space, shorter, None, **options, batch=batch, widen=widen)
    if "seed" in settings:
        raise InputError(f"seed={settings['seed']}: every trial runs with several seeds. Use seeds=[7]")
    cell = Cell({}, dict(settings), tuning=tuning)
    with refuse_import_strings(untrusted_source):
        cell.check(chosen_seeds[0])
        folder = Path(results) if results else Path("results") / name
        with open_pool(on, address, cores, Path(out), data, device) as pool:
            plan = plan_sweep(name, [cell], chosen_seeds, pool, folder, key=["id"])
            result = TuneResult(plan, run_or_skip(plan, progress, dry_run), {})
    if not dry_run:
        result.write()
    return result
