"""Straggler: what happens to SGD when workers are not equally fast."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import version

    from straggler.analysis.figures.plot import plot
    from straggler.config.registry import InputError
    from straggler.core import (
        Aggregation,
        Arrival,
        Change,
        Channel,
        Correction,
        Engine,
        Job,
        Message,
        Optimizer,
        Policy,
        Problem,
        Server,
        Shapes,
        Work,
    )
    from straggler.engines import EngineSetup
    from straggler.experiment import Experiment
    from straggler.problems.datasets import DataArrays, DataSet
    from straggler.problems.metrics import Metric
    from straggler.problems.models import Model
    from straggler.problems.partitions import Partition
    from straggler.record import Record, load
    from straggler.running.callbacks import Callback, LiveRun
    from straggler.running.replay import replay
    from straggler.running.simulation import simulate
    from straggler.sweeps.sweep import sweep
    from straggler.sweeps.tune import tune
    from straggler.timing import Durations, Law, Memoryless
    from straggler.timing.calibration import calibrate
    from straggler.web.report import report

    __version__ = version("straggler")

# Public names and the modules that define them. They are imported on first use, so that `import straggler` is
# fast and processes that only compute gradients do not load the rest.
_MODULES = {
    "Aggregation": "core",
    "Arrival": "core",
    "Callback": "running.callbacks",
    "Change": "core",
    "Channel": "core",
    "Correction": "core",
    "DataArrays": "problems.datasets",
    "DataSet": "problems.datasets",
    "Durations": "timing",
    "Engine": "core",
    "EngineSetup": "engines",
    "Experiment": "experiment",
    "InputError": "config.registry",
    "Job": "core",
    "Law": "timing",
    "LiveRun": "running.callbacks",
    "Memoryless": "timing",
    "Message": "core",
    "Metric": "problems.metrics",
    "Model": "problems.models",
    "Optimizer": "core",
    "Partition": "problems.partitions",
    "Policy": "core",
    "Problem": "core",
    "Record": "record",
    "Server": "core",
    "Shapes": "core",
    "Work": "core",
    "calibrate": "timing.calibration",
    "load": "record",
    "plot": "analysis.figures.plot",
    "replay": "running.replay",
    "report": "web.report",
    "simulate": "running.simulation",
    "sweep": "sweeps.sweep",
    "tune": "sweeps.tune",
}

__all__ = [
    "Aggregation",
    "Arrival",
    "Callback",
    "Change",
    "Channel",
    "Correction",
    "DataArrays",
    "DataSet",
    "Durations",
    "Engine",
    "EngineSetup",
    "Experiment",
    "InputError",
    "Job",
    "Law",
    "LiveRun",
    "Memoryless",
    "Message",
    "Metric",
    "Model",
    "Optimizer",
    "Partition",
    "Policy",
    "Problem",
    "Record",
    "Server",
    "Shapes",
    "Work",
    "__version__",
    "calibrate",
    "load",
    "plot",
    "replay",
    "report",
    "simulate",
    "sweep",
    "tune",
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
