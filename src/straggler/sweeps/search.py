"""Searches: rounds of trials whose runs are compared by their objective, until the best values are known."""

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from straggler.analysis.intervals import Interval, mean_interval
from straggler.config.registry import InputError
from straggler.record import PRUNED, RESULTS_VERSION, Record, RecordError
from straggler.sweeps.grid import Cell, PlannedRun, format_label
from straggler.sweeps.search_space import LIMITS, Side, Space, list_combinations
from straggler.sweeps.suggestions import (
    Curve,
    PruningCallback,
    PruningRule,
    TrialResult,
    suggest_trials,
)

MAX_WIDENINGS = 3
Place = tuple[int, int]  # the number of a cell, and a seed


@dataclass(frozen=True)
class RunOutcome:
    """What a search needs of a run."""

    score: float
    curve: Curve  # up to the evaluation at which it was stopped
    is_pruned: bool = False


@dataclass
class Trial:
    """A combination of values, and its runs."""

    number: int
    values: Mapping[str, Any]
    runs: dict[Place, PlannedRun]
    outcomes: dict[Place, RunOutcome] = field(default_factory=dict)
    state: Literal["running", "finished", "stopped early", "failed"] = "running"

    def summarise(self) -> Interval | None:
        """Return the mean over the cells with its interval over the seeds; None if nothing has finished."""
        seeds = dict.fromkeys(seed for _, seed in self.outcomes)
        means = [
            float(np.mean([one.score for (_, other), one in self.outcomes.items() if other == seed]))
            for seed in seeds
        ]
        if not means:
            return None
        if not all(map(math.isfinite, means)):
            return Interval(float(np.mean(means)), -math.inf, math.inf, len(means), math.inf)
        return mean_interval(means)

    @property
    def result(self) -> TrialResult:
        """The trial as the sampler sees it."""
        mean = self.summarise()
        assert mean is not None
        curves = [one.curve for one in self.outcomes.values() if one.is_pruned]
        return TrialResult(self.values, mean.mean, curves[0] if curves else {}, bool(curves))


@dataclass(frozen=True)
class Edge:
    """The best value of a setting lies on the edge of what was searched."""

    key: str
    side: Side
    value: Any
    searched: str
    wider: str

    def __str__(self) -> str:
        """Return the message with its remedy."""
        extreme, value = "smallest" if self.side == "lower" else "largest", format_label(self.value)
        return (
            f"The best {self.key} = {value} is among the {extreme} values of {self.searched}, so a better "
            f"one may lie beyond. Search {self.key} = {self.wider}, or widen the search"
        )


class Search:
    """A search for the best values of some settings, the same for all of its cells."""

    def __init__(self, cells: Sequence[Cell], seeds: Sequence[int], runs: Path) -> None:
        tuning = cells[0].tuning
        assert tuning is not None
        self.cells, self.tuning, self.folder = cells, tuning, runs
        per = cells[0].labels if tuning.per is None else tuning.per
        self.labels = {key: cells[0].labels[key] for key in per}
        self.seeds = tuning.seeds or seeds
        self.space: Space = tuning.space
        self.trials: list[Trial] = []
        self.is_over = False
        self.widenings = 0
        self._rounds = self._suggest_rounds()
        self._round: list[Trial] = []
        self._returned = 0  # runs that the last call of `advance` returned

    @property
    def name(self) -> str:
        """The labels in one line, such as `method=asgd, workers=2`; empty if there is only one search."""
        return ", ".join(f"{key}={value}" for key, value in self.labels.items())

    @property
    def best(self) -> Trial | None:
        """The trial with the best mean, of equal ones the first; None if none has finished."""
        finished = [trial for trial in self.trials if trial.state == "finished"]
        sign = 1.0 if self.tuning.objective.is_maximized else -1.0
        return max(finished, key=lambda trial: sign * trial.result.score, default=None)

    @property
    def most_trials(self) -> int:
        """The number of trials, if the space is not widened again."""
        return max(self.tuning.trials, len(self.trials))

    def count_later(self) -> int:
        """Return the number of runs of trials that `advance` has not returned yet, as far as it is known."""
        per_trial = len(self.cells) * len(self.seeds)
        running = [trial for trial in self._round if trial.state == "running"]
        unknown = sum(len(trial.runs) - len(trial.outcomes) for trial in running)
        return (self.most_trials - len(self.trials)) * per_trial + unknown - self._returned

    def example_cells(self) -> tuple[Cell, Cell]:
        """Return a cell of a trial and one with chosen values, for estimates of their time."""
        cell, values = self.cells[0], self.tuning.example
        return cell.with_values(values, self.tuning.shorter), cell.with_values(values)

    def includes(self, seeds: Sequence[int]) -> bool:
        """Return whether the runs with the best values are those of a trial, so that they are cached."""
        return not self.tuning.shorter and set(seeds) <= set(self.seeds)

    def advance(self, failures: Mapping[str, str]) -> list[PlannedRun]:
        """Read the results so far and return the runs that are missing now; none if the search is over."""
        while not self.is_over:
            for seeds in (self.seeds[:1], self.seeds[1:]) if self.tuning.prune else (self.seeds,):
                missing = self._find_missing(seeds, failures)
                self._returned = len(missing)
                if missing:
                    return missing
            for trial in self._round:
                if trial.state == "running":
                    trial.state = "finished"
            suggested = next(self._rounds, None)
            if suggested is None:
                self.is_over = True
            else:
                first = len(self.trials)
                self._round = [self._make_trial(first + n, values) for n, values in enumerate(suggested)]
                self.trials += self._round
        return []

    def _find_missing(self, seeds: Sequence[int], failures: Mapping[str, str]) -> list[PlannedRun]:
        """Return the runs with these seeds whose outcome is unknown; update the states of the trials."""
        missing = []
        for trial in self._round:
            if trial.state != "running":
                continue
            unknown = []
            for place, run in trial.runs.items():
                if place[1] not in seeds or place in trial.outcomes:
                    continue
                if run.id in failures:
                    trial.state = "failed"
                elif (outcome := self._read_outcome(run)) is None:
                    unknown.append(run)
                else:
                    trial.outcomes[place] = outcome
            if not unknown and any(one.is_pruned for one in trial.outcomes.values()):
                trial.state = "stopped early"
            missing += unknown if trial.state == "running" else []
        return missing

    def _read_outcome(self, run: PlannedRun) -> RunOutcome | None:
        """Return the outcome of a run from its record; None if it must be run."""
        objective = self.tuning.objective
        try:
            record = Record(self.folder / run.id)
            if not record.ended or record.results_version != RESULTS_VERSION:
                return None
            is_short = record.summary.get("stopped_by") == PRUNED
            curve = objective.read_curve(record)
            judged = curve if is_short else dict(list(curve.items())[:-1])  # the final model is not judged
            rules = [one.rule for one in run.callbacks if isinstance(one, PruningCallback)]
            stop = next((end for rule in rules if (end := rule.find_stop(judged)) is not None), None)
            if stop is not None:
                return RunOutcome(curve[stop], {n: v for n, v in curve.items() if n <= stop}, True)
            # Other trials may have stopped the run, in a tuning with other settings.
            return None if is_short else RunOutcome(objective.score(record), curve)
        except RecordError:
            return None

    def _make_trial(self, number: int, values: Mapping[str, Any]) -> Trial:
        """Return a trial, whose runs are compared with those of the finished trials."""
        cells = [cell.with_values(values, self.tuning.shorter) for cell in self.cells]
        runs = {}
        for place in itertools.product(range(len(cells)), self.seeds):
            cell, seed = cells[place[0]], place[1]
            callbacks = self._make_callbacks(place)
            runs[place] = PlannedRun(
                cell.experiment(seed), seed, cells=[cell], is_trial=True, callbacks=callbacks
            )
        return Trial(number, values, runs)

    def _make_callbacks(self, place: Place) -> tuple[PruningCallback, ...]:
        tuning = self.tuning
        if tuning.prune is None:
            return ()
        finished = [trial for trial in self.trials if trial.state == "finished"]
        curves = tuple(trial.outcomes[place].curve for trial in finished)
        rule = PruningRule(tuning.prune, tuning.objective.is_maximized, curves)
        return (PruningCallback(rule, tuning.objective.column),)

    def _suggest_rounds(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the combinations of each round; a round is requested when the last one has ended."""
        yield from self._suggest(self.space, self.tuning.trials)
        while self.tuning.widen and self.widenings < MAX_WIDENINGS and (edges := self.find_edges()):
            self.widenings += 1
            key, side = edges[0].key, edges[0].side
            wider, part = self.space[key].widen(side, LIMITS.get(key))
            self.space = {**self.space, key: wider}
            yield from self._suggest({**self.space, key: part}, self.tuning.batch)

    def _suggest(self, space: Space, count: int) -> Iterator[list[dict[str, Any]]]:
        """Yield rounds of so many trials in a space, or of all combinations of a grid."""
        tuning = self.tuning
        if tuning.sampler == "grid":
            combinations = list_combinations(space)
            if tuning.prune:  # in order, each would be better than those before, or each worse
                random.Random(0).shuffle(combinations)
            size = tuning.batch if tuning.prune else max(1, len(combinations))
            yield from (combinations[start : start + size] for start in range(0, len(combinations), size))
            return
        independent = tuning.sampler == "random" and not tuning.prune
        while count > 0:
            results = [trial.result for trial in self.trials if trial.outcomes and trial.state != "failed"]
            size = count if independent else min(count, tuning.batch)
            how = (tuning.sampler, tuning.objective.is_maximized, len(self.trials), tuning.batch)
            found = suggest_trials(space, results, size, *how)
            if not found:
                return
            count -= len(found)
            yield found

    def find_edges(self) -> list[Edge]:
        """Return the settings whose best value lies on an edge, if there are valid values beyond."""
        if (best := self.best) is None or best.result.score == self.tuning.objective.worst:
            return []
        found = []
        for key, searched in self.space.items():
            side = searched.find_edge(best.values[key])
            if side is None:
                continue
            wider, part = searched.widen(side, LIMITS.get(key))
            values = {**best.values, key: part.examples[0 if side == "lower" else -1]}
            try:
                for cell in self.cells:
                    cell.with_values(values, self.tuning.shorter).experiment(self.seeds[0])
            except InputError:
                continue  # there is nothing beyond
            found.append(Edge(key, side, best.values[key], str(searched), str(wider)))
        return found

    def choose_cells(self) -> list[Cell]:
        """Return the cells with the best values; none if no trial has finished."""
        return [] if self.best is None else [cell.with_values(self.best.values) for cell in self.cells]

    def rank_trials(self) -> pl.DataFrame:
        """Return a row per trial, the best first: values, mean of the objective, interval, seeds, state."""
        rows = []
        for trial in self.trials:
            mean = trial.summarise()
            has_interval = mean is not None and mean.is_shown and trial.state == "finished"
            labels = self.cells[0].with_values(trial.values).labels
            rows.append(
                {
                    **{key: labels[key] for key in trial.values},
                    "objective": None if mean is None else mean.mean,
                    "low": mean.low if mean and has_interval else None,
                    "high": mean.high if mean and has_interval else None,
                    "seeds": 0 if mean is None else mean.seeds,
                    "state": trial.state,
                    "is_best": trial is self.best,
                    "trial": trial.number,
                }
            )
        table = pl.DataFrame(rows, infer_schema_length=None)
        if table.is_empty():
            return table
        is_finished = pl.col("state") == "finished"
        descending = [True, self.tuning.objective.is_maximized, False]
        return table.sort(is_finished, "objective", "trial", descending=descending, nulls_last=True)


def group_searches(cells: Iterable[Cell], seeds: Sequence[int], runs: Path) -> list[Search]:
    """Return a search for every combination of the labels that the tunings of these cells name."""
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        if cell.tuning is None:
            continue
        per = cell.labels if cell.tuning.per is None else cell.tuning.per
        key = (id(cell.tuning), *(str(cell.labels[name]) for name in per))
        groups.setdefault(key, []).append(cell)
    return [Search(group, seeds, runs) for group in groups.values()]
