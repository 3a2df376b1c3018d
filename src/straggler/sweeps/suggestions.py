"""Optuna's part of tuning: which values to try next, and which runs to stop early."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from straggler.config.registry import InputError
from straggler.record import PRUNED
from straggler.running.callbacks import Callback, LiveRun, Row
from straggler.sweeps.search_space import Space

Sampler = Literal["grid", "random", "tpe"]
Curve = Mapping[int, float]  # the objective by the number of the evaluation
FEWEST_CURVES = 3  # of finished trials; with fewer, no run is stopped early
MAX_ASKS = 20  # suggestions per new combination, since some repeat earlier ones


@dataclass(frozen=True)
class TrialResult:
    """A trial that Optuna learns from: its values, and its score or, if it was stopped early, its curve."""

    values: Mapping[str, Any]
    score: float
    curve: Curve = field(default_factory=dict)
    is_pruned: bool = False


@contextmanager
def using_optuna() -> Iterator[Any]:
    """Import Optuna, or say how to install it; its messages are switched off in the block."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise InputError("Tuning requires Optuna: pip install 'straggler[tune]'") from None
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield optuna
    finally:
        optuna.logging.set_verbosity(level)


def suggest_trials(
    space: Space,
    results: Sequence[TrialResult],
    count: int,
    sampler: Sampler,
    is_maximized: bool,
    seed: int,
    startup: int,
) -> list[dict[str, Any]]:
    """Return new combinations of values. They depend on the arguments only, so a restart suggests the same.

    The combinations of one call do not know each other's results. `startup` is the number of results from
    which on TPE uses them.
    """
    known = [one for one in results if all(space[key].contains(value) for key, value in one.values.items())]
    with using_optuna() as optuna:
        samplers = optuna.samplers
        chosen = (
            samplers.TPESampler(n_startup_trials=startup, seed=seed)
            if sampler == "tpe"
            else samplers.RandomSampler(seed=seed)
        )
        study = optuna.create_study(direction="maximize" if is_maximized else "minimize", sampler=chosen)
        study.add_trials([make_optuna_trial(optuna, space, result) for result in known])
        tried, found = [dict(one.values) for one in known], list[dict[str, Any]]()
        for _ in range(MAX_ASKS * count):
            trial = study.ask()
            values = {key: allowed.suggest(trial, key) for key, allowed in space.items()}
            if values not in tried:
                tried.append(values)
                found.append(values)
            if len(found) == count:
                break
    return found


def make_optuna_trial(optuna: Any, space: Space, result: TrialResult) -> Any:
    """Return a result as an Optuna trial."""
    probe = optuna.trial.FixedTrial({key: space[key].encode(value) for key, value in result.values.items()})
    for key, allowed in space.items():
        allowed.suggest(probe, key)
    states = optuna.trial.TrialState
    return optuna.trial.create_trial(
        state=states.PRUNED if result.is_pruned else states.COMPLETE,
        value=None if result.is_pruned else result.score,
        params=probe.params,
        distributions=probe.distributions,
        intermediate_values=dict(result.curve),
    )


@dataclass(frozen=True)
class PruningRule:
    """Optuna's percentile rule, applied to one run and the curves of finished trials with the same seed."""

    best_percent: float  # of the trials, which are kept
    is_maximized: bool
    curves: Sequence[Curve]

    def find_stop(self, curve: Curve) -> int | None:
        """Return the first evaluation at which the run is worse than the rule allows."""
        if len(self.curves) < FEWEST_CURVES or not curve:
            return None
        with using_optuna() as optuna:
            pruner = optuna.pruners.PercentilePruner(self.best_percent, n_startup_trials=FEWEST_CURVES)
            direction = "maximize" if self.is_maximized else "minimize"
            study = optuna.create_study(
                direction=direction, pruner=pruner, sampler=optuna.samplers.RandomSampler(seed=0)
            )
            make = optuna.trial.create_trial
            study.add_trials([make(value=0.0, intermediate_values=dict(one)) for one in self.curves])
            trial = study.ask()
            for number, value in curve.items():
                trial.report(value, number)
                if trial.should_prune():
                    return number
        return None


@dataclass(frozen=True)
class PruningCallback(Callback):
    """Stops a run at the first evaluation at which its rule says so."""

    rule: PruningRule
    column: str

    def on_start(self, run: LiveRun) -> None:
        """Judge the evaluations of a resumed run."""
        self._judge(run)

    def on_evaluation(self, run: LiveRun, row: Row) -> None:
        """Judge a new evaluation, unless it is that of the final model."""
        self._judge(run)

    def _judge(self, run: LiveRun) -> None:
        values = [row.get(self.column) for row in run.curve[1:]]  # without that of the initial model
        curve = {number: float("nan") if value is None else value for number, value in enumerate(values, 1)}
        if curve and run.progress.spent < 1 and self.rule.find_stop(curve) is not None:
            run.stop(PRUNED)
