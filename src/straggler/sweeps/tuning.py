"""The settings of a tuning: what is searched, how many trials, and by which objective they are compared."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from straggler.config.registry import InputError, explain_validation_error, suggest_name
from straggler.experiment import Experiment
from straggler.sweeps.objective import Objective
from straggler.sweeps.search_space import Space, count_combinations, parse_values
from straggler.sweeps.suggestions import Sampler

TRIALS = 20
BATCH = 4
NUMBERS = tuple(
    key
    for key, one in Experiment.model_fields.items()
    if {int, float} & {one.annotation, *get_args(one.annotation)}
)


class TuningOptions(BaseModel):
    """The options of a tuning, which the table `tune` of a sweep has beside the searched settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    per: list[str] | None = None
    objective: str = "validation_accuracy"
    trials: int | None = Field(None, ge=1)
    sampler: Sampler | None = None
    seeds: int | list[int] | None = None
    prune: float | None = Field(None, gt=0, lt=100)
    batch: int = Field(BATCH, ge=1)
    widen: bool = False


@dataclass(frozen=True)
class Tuning:
    """What is searched, how many trials, and by which objective they are compared."""

    space: Space
    objective: Objective
    trials: int
    sampler: Sampler
    per: Sequence[str] | None = None  # labels: a search for each combination; None: for every cell
    seeds: Sequence[int] | None = None  # of each trial; None: those of the sweep
    prune: float | None = None  # keep this percentage of the runs at every evaluation
    batch: int = BATCH  # trials that are suggested together, whatever the number of cores
    widen: bool = False  # search beyond an edge on which the best lies
    shorter: Mapping[str, Any] = field(default_factory=dict)  # settings of the trials only

    @property
    def example(self) -> dict[str, Any]:
        """The first values of every searched setting."""
        return {key: values.examples[0] for key, values in self.space.items()}

    def list_examples(self) -> Iterator[dict[str, Any]]:
        """Yield combinations with every listed value and bound of every searched setting."""
        for key, values in self.space.items():
            for value in values.examples:
                yield self.example | {key: value}

    def check(self, settings: Mapping[str, Any], seed: int) -> None:
        """Raise InputError if a searched value is impossible with these settings."""
        for key in self.space:
            if key in settings:
                raise InputError(f"{key} is set to {settings[key]!r} and searched. Remove one of them")
        for values in self.list_examples():
            experiment = Experiment(**{**settings, **values, **self.shorter}, seed=seed)
            Experiment(**settings, **values, seed=seed)
            self.objective.check(experiment, self.prune is not None)


def make_tuning(
    space: Space, shorter: Mapping[str, Any] | None = None, seeds: Sequence[int] | None = None, **options: Any
) -> Tuning:
    """Check the options and return the tuning. `space` maps settings to their values."""
    try:
        found = TuningOptions(**options)
    except ValidationError as error:
        raise InputError(f"tune: {explain_validation_error(error, TuningOptions.model_fields)}") from None
    if not space:
        raise InputError("tune searches nothing. Add a setting, such as lr = 'log(1e-4, 1)'")
    known = [key for key in Experiment.model_fields if key != "seed"]
    for key in (*space, *(shorter or {})):
        if key not in known:
            hint = "Use seeds, the number of runs per trial" if key == "seed" else suggest_name(key, known)
            raise InputError(f"tune: unknown key {key!r}. {hint}")
        if key in space and key in (shorter or {}):
            raise InputError(f"tune: {key} is searched and set. Remove one of them")
    combinations = count_combinations(space)
    sampler = found.sampler or (
        "grid" if combinations and combinations <= (found.trials or TRIALS) else "tpe"
    )
    if sampler == "grid":
        if combinations is None:
            key, values = next((k, v) for k, v in space.items() if count_combinations({k: v}) is None)
            points = f"{str(values)[:-1]}, points=5)"
            raise InputError(
                f"sampler=grid needs a number of values for {key}={values}. Write {key}={points}"
            )
        if found.trials is not None and combinations > found.trials:
            raise InputError(
                f"trials={found.trials}, but the grid has {combinations} combinations. "
                "Leave out trials, or use sampler=random or tpe"
            )
    trials = combinations if sampler == "grid" and combinations else (found.trials or TRIALS)
    objective = Objective.parse(found.objective)
    how = (found.per, seeds, found.prune, found.batch, found.widen, dict(shorter or {}))
    return Tuning(dict(space), objective, trials, sampler, *how)


def parse_tuning(table: Any) -> Tuning:
    """Return the tuning of a table `tune`: options, searched settings, and settings of the trials only."""
    if isinstance(table, Tuning):
        return table
    if not isinstance(table, Mapping):
        raise InputError(f"tune must be a table such as {{ lr = 'log(1e-3, 1)' }}, got {table!r}")
    options = {key: value for key, value in table.items() if key in TuningOptions.model_fields}
    rest = {key: value for key, value in table.items() if key not in options}
    unknown = [key for key in rest if key not in Experiment.model_fields]
    if unknown:
        known = [*TuningOptions.model_fields, *Experiment.model_fields]
        raise InputError(f"tune: unknown key {unknown[0]!r}. {suggest_name(unknown[0], known)}")
    space = {key: parse_values(key, value) for key, value in rest.items() if is_searched(key, value)}
    shorter = {key: value for key, value in rest.items() if key not in space}
    seeds = options.pop("seeds", None)
    return make_tuning(space, shorter, None if seeds is None else parse_seeds(seeds), **options)


def is_searched(key: str, value: Any) -> bool:
    """Return whether a value in the table `tune` stands for several: a list, or a range of numbers."""
    if not isinstance(value, str):
        return isinstance(value, list)
    return key in NUMBERS and "(" in value and not value.startswith("balanced")  # a batch size


def check_per(per: Iterable[str], labels: Sequence[str]) -> None:
    """Raise InputError for names that the cells of a sweep do not have."""
    for name in per:
        if name not in labels:
            known = suggest_name(name, labels) if labels else "It varies nothing: leave per out"
            raise InputError(f"tune: per names {name!r}, but the sweep does not vary it. {known}")


def parse_seeds(seeds: Any) -> Sequence[int]:
    """Return the seeds that a number or a list means."""
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds > 0:
        return range(seeds)
    listed = list(seeds) if isinstance(seeds, Sequence) and not isinstance(seeds, str) else []
    are_seeds = all(isinstance(seed, int) and seed >= 0 for seed in listed)
    if not listed or not are_seeds or len(set(listed)) < len(listed):
        raise InputError(
            f"seeds = {seeds!r} must be a positive number (3) or a list of different seeds ([0, 7])"
        )
    return listed
