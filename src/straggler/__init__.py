"""Straggler: what happens to SGD when workers are not equally fast."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import version

    from straggler.analysis.figures.plot import plot
    from straggler.config.registry import InputError
    from straggler.core import Arrival, Change, Correction, Engine, Gradient, Job, Optimizer, Policy, Server
    from straggler.engines import EngineSetup
    from straggler.experiment import Experiment
    from straggler.problems.datasets import DataArrays, DataSet
    from straggler.problems.models import Model
    from straggler.problems.partitions import Partition
    from straggler.record import Record, load
    from straggler.running.replay import replay
    from straggler.running.simulation import simulate
    from straggler.sweeps.sweep import sweep
    from straggler.timing import Durations, Law, Memoryless
    from straggler.timing.calibration import calibrate
    from straggler.web.report import report

    __version__ = version("straggler")

# Public names and the modules that define them. They are imported on first use, so that `import straggler` is
# fast and processes that only compute gradients do not load the rest.
_MODULES = {
    "Arrival": "core",
    "Change": "core",
    "Correction": "core",
    "DataArrays": "problems.datasets",
    "DataSet": "problems.datasets",
    "Durations": "timing",
    "Engine": "core",
    "EngineSetup": "engines",
    "Experiment": "experiment",
    "Gradient": "core",
    "InputError": "config.registry",
    "Job": "core",
    "Law": "timing",
    "Memoryless": "timing",
    "Model": "problems.models",
    "Optimizer": "core",
    "Partition": "problems.partitions",
    "Policy": "core",
    "Record": "record",
    "Server": "core",
    "calibrate": "timing.calibration",
    "load": "record",
    "plot": "analysis.figures.plot",
    "replay": "running.replay",
    "report": "web.report",
    "simulate": "running.simulation",
    "sweep": "sweeps.sweep",
}

__all__ = [
    "Arrival",
    "Change",
    "Correction",
    "DataArrays",
    "DataSet",
    "Durations",
    "Engine",
    "EngineSetup",
    "Experiment",
    "Gradient",
    "InputError",
    "Job",
    "Law",
    "Memoryless",
    "Model",
    "Optimizer",
    "Partition",
    "Policy",
    "Record",
    "Server",
    "__version__",
    "calibrate",
    "load",
    "plot",
    "replay",
    "report",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("straggler")
    if name not in _MODULES:
        raise AttributeError(f"module 'straggler' has no attribute {name!r}")
    return getattr(import_module(f"straggler.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
