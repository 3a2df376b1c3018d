"""Engines run jobs: in virtual time, in worker processes, on a Ray cluster, or in a recorded order."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from straggler.config.fingerprints import fingerprint
from straggler.config.imports import import_object, is_import_string
from straggler.config.registry import InputError, suggest_name
from straggler.core import Engine

# Worker processes import this package. They must not import polars, whose threads make forking unsafe.
if TYPE_CHECKING:
    from straggler.engines.pool.gradient_pool import GradientComputer
    from straggler.timing import Durations
    from straggler.timing.churn import Churn
    from straggler.timing.cores import CoreSchedule
    from straggler.timing.links import Network

__all__ = [
    "ENGINES",
    "EngineSetup",
    "ResumableEngine",
    "identify_engine",
    "is_virtual_engine",
    "load_engine",
    "parse_engine",
    "requiring_ray",
]

# The engines that an experiment can name. Each is imported on first use, because Ray is optional.
ENGINES = {
    "simulator": "straggler.engines.simulator:Simulator",
    "processes": "straggler.engines.processes:ProcessEngine",
    "ray": "straggler.engines.ray:RayEngine",
}


@dataclass(frozen=True)
class EngineSetup:
    """Everything that an engine may need to run the jobs of one experiment."""

    compute: "GradientComputer"  # computes messages; engines in virtual time use it
    durations: "Durations"  # compute time (virtual) and injected delay of every job
    workers: int
    min_workers: int | None = None  # the run waits while fewer workers are present; None: all workers
    worker_timeout: float = math.inf  # seconds without a message until a worker counts as hung (real time)
    seconds: float = math.inf  # the run ends at this time, also while it waits for workers (real time)
    should_stop: Callable[[], bool] = lambda: False  # asked while waiting: whether the user stopped the run
    report: Callable[[str], None] = lambda line: None  # prints one line for the user
    report_failure: Callable[[float, int, str], None] = lambda time, worker, reason: None
    address: str | None = None  # of a cluster; None: start one on this machine
    worker_resources: Mapping[str, float] = field(default_factory=dict)  # reserved per worker on a cluster
    network: "Network | None" = None  # transport times of models and messages (virtual)
    churn: "Churn | None" = None  # when workers come and go (virtual)
    cores: "CoreSchedule | None" = None  # cores that workers and server share (virtual)


class ResumableEngine(Engine, Protocol):
    """An engine that an experiment can use: it can be created from a setup and continue a stopped run."""

    is_virtual: ClassVar[bool]  # whether time is simulated, so that measuring the model costs no time
    started: dict[int, float]  # when each worker began its current job
    launches: dict[int, int]  # the launch number of each worker's current job

    @classmethod
    def create(cls, setup: EngineSetup) -> Self: ...

    def state(self) -> dict[str, Any]:
        """Return what `resume` needs besides the clock: numbers, texts, and lists and dicts of these."""

    def resume(
        self, now: float, started: dict[int, float], present: list[int], state: dict[str, Any]
    ) -> None:
        """Start the clock at `now`. The next jobs of these workers began at `started`."""


@contextmanager
def requiring_ray(feature: str) -> Iterator[None]:
    """Explain how to install Ray if the block, which imports it, fails because it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise InputError(f"{feature} requires Ray: pip install 'straggler[ray]'") from None


def load_engine(name: str) -> type[ResumableEngine]:
    """Import an engine class by its name in ENGINES or by its import string."""
    if name not in ENGINES:
        custom: type[ResumableEngine] = import_object(name)
        return custom
    module, class_name = ENGINES[name].split(":")
    with requiring_ray(f"engine={name!r}"):
        built_in: type[ResumableEngine] = getattr(import_module(module), class_name)
    return built_in


def is_virtual_engine(name: str) -> bool:
    """Return whether an engine simulates time; the real-time engines are not imported to find out."""
    return name == "simulator" or (name not in ENGINES and load_engine(name).is_virtual)


def parse_engine(value: Any) -> str:
    """Return the name of an engine, or the import string of a custom engine class."""
    if isinstance(value, type):
        value = f"{value.__module__}:{value.__qualname__}"
    if not isinstance(value, str) or (value not in ENGINES and not is_import_string(value)):
        raise ValueError(f"Unknown engine {value!r}. {suggest_name(str(value), ENGINES)}")
    if value not in ENGINES and not callable(getattr(load_engine(value), "create", None)):
        raise ValueError(
            f"{value} is not an engine: it must be a class with a `create` class method (see ResumableEngine)"
        )
    return value


def identify_engine(name: str) -> str:
    """Return an engine's name, and for a custom engine a fingerprint of its code too."""
    return name if name in ENGINES else f"{name} {fingerprint(load_engine(name))}"
