"""Callbacks that write evaluations for other tools: TensorBoard, MLflow, Weights & Biases and Trackio."""

import io
import math
import os
import re
import shutil
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from straggler.config.imports import import_object, is_import_string
from straggler.config.registry import InputError, parse_call, suggest_name
from straggler.running.callbacks import Callback, LiveRun

Values = Mapping[str, float]


class Logger(Callback):
    """Writes every evaluation to a tool, by the number of updates, into the run's folder by default."""

    package: str  # to import
    extra: str  # of this package, which installs it; also the name of the folder

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        if find_spec(self.package) is None:
            raise InputError(
                f"The logger {self.extra!r} requires the package {self.package}. "
                f"Install it with: pip install 'straggler[{self.extra}]'"
            )

    @abstractmethod
    def open(self, run: LiveRun, folder: Path, settings: Mapping[str, str]) -> None:
        """Start or resume the tool's run."""

    @abstractmethod
    def log(self, values: Values, step: int) -> None:
        """Write numbers that were measured after `step` updates."""

    @abstractmethod
    def close(self, values: Values, status: str) -> None:
        """Write the final summary and end the tool's run."""

    def on_start(self, run: LiveRun) -> None:
        folder = self.folder or run.path.absolute() / self.extra
        if self.folder is None and not run.is_resumed:  # of an earlier run with the same id
            shutil.rmtree(folder, ignore_errors=True)
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        self.open(run, folder, {key: str(value) for key, value in run.experiment.to_dict().items()})
        for row in run.curve if is_new else ():  # evaluations before this logger was added
            self.on_evaluation(run, row)

    def on_evaluation(self, run: LiveRun, row: Mapping[str, Any]) -> None:
        self.log(select_numbers(row), int(row["updates"]))

    def on_end(self, run: LiveRun, summary: Mapping[str, Any]) -> None:
        self.close(select_numbers(summary), str(summary["status"]))


def select_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a row."""
    numbers = {key: value for key, value in row.items() if type(value) in (int, float)}
    return {key: float(value) for key, value in numbers.items() if math.isfinite(value)}


class TensorBoardLogger(Logger):
    """Writes event files for TensorBoard."""

    package, extra = "tensorboard", "tensorboard"

    def open(self, run: LiveRun, folder: Path, settings: Mapping[str, str]) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(folder)
        table = "\n".join(f"| {key} | {value} |" for key, value in settings.items())
        self._writer.add_text("experiment", f"| setting | value |\n|---|---|\n{table}")

    def log(self, values: Values, step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, values: Values, status: str) -> None:
        self._writer.add_text("status", status)
        self._writer.close()


class MLflowLogger(Logger):
    """Writes a run for MLflow, into files or to the server `uri`."""

    package, extra = "mlflow", "mlflow"

    def __init__(self, uri: str | None = None, experiment: str = "straggler") -> None:
        super().__init__()
        self._uri, self._experiment = uri, experiment

    def open(self, run: LiveRun, folder: Path, settings: Mapping[str, str]) -> None:
        from mlflow import MlflowClient

        if self._uri is None:  # MLflow 3 asks for this before it writes files
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client = MlflowClient(self._uri or folder.as_uri())
        known = self._client.get_experiment_by_name(self._experiment)
        number = known.experiment_id if known else self._client.create_experiment(self._experiment)
        same = f"tags.`mlflow.runName` = '{run.path.name}'"
        found = self._client.search_runs([number], same) if run.is_resumed else []
        started = found[0] if found else self._client.create_run(number, run_name=run.path.name)
        self._run = started.info.run_id
        for key, value in settings.items():
            if key not in started.data.params:
                self._client.log_param(self._run, key, value)

    def log(self, values: Values, step: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, re.sub(r"[^\w\-. /]", "_", name), value, step=step)

    def close(self, values: Values, status: str) -> None:
        ends = {"finished": "FINISHED", "diverged": "FINISHED", "interrupted": "KILLED"}
        self._client.set_tag(self._run, "status", status)
        self._client.set_terminated(self._run, ends.get(status, "FAILED"))


class WandbLogger(Logger):
    """Writes a run for Weights & Biases; `wandb sync` uploads it, or `mode="online"` does so at once."""

    package, extra = "wandb", "wandb"

    def __init__(self, project: str = "straggler", mode: str = "offline") -> None:
        super().__init__()
        self._project, self._mode = project, mode

    def open(self, run: LiveRun, folder: Path, settings: Mapping[str, str]) -> None:
        import wandb

        name = run.path.name
        self._run = wandb.init(
            project=self._project,
            name=name,
            id=name,
            dir=folder,
            config=dict(settings),
            mode=self._mode,  # type: ignore[arg-type]
            resume="allow",
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, values: Values, step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self, values: Values, status: str) -> None:
        self._run.summary.update({**values, "status": status})
        self._run.finish(exit_code=0 if status in ("finished", "diverged") else 1)


class TrackioLogger(Logger):
    """Writes a run for Trackio; show it with `TRACKIO_DIR=runs/…/trackio trackio show`.

    Trackio has one folder per process: TRACKIO_DIR if it is set, otherwise that of the first run.
    """

    package, extra = "trackio", "trackio"

    def __init__(self, project: str = "straggler") -> None:
        super().__init__()
        self._project = project

    def open(self, run: LiveRun, folder: Path, settings: Mapping[str, str]) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(folder))  # read when trackio is imported
        with redirect_stdout(io.StringIO()):  # it prints hints for its dashboard
            import trackio

            self._run: Any = trackio.init(
                self._project,
                name=run.path.name,
                config=dict(settings),
                resume="allow",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

    def log(self, values: Values, step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self, values: Values, status: str) -> None:
        with redirect_stdout(io.StringIO()):
            import_module("trackio").finish()


LOGGERS: dict[str, type[Logger]] = {
    logger.extra: logger for logger in (TensorBoardLogger, MLflowLogger, WandbLogger, TrackioLogger)
}


def parse_logger(text: str) -> Callback:
    """Return the callback that a text such as `tensorboard` or `./file.py:Name(key=value)` stands for."""
    name, positional, settings = parse_call(text)
    if not is_import_string(name) and name not in LOGGERS:
        raise InputError(f"Unknown logger {name!r}. {suggest_name(name, LOGGERS)}, or an import string")
    kind: Any = import_object(name) if is_import_string(name) else LOGGERS[name]
    try:
        callback = kind(*positional, **settings)
    except TypeError as error:
        raise InputError(f"--logger {text}: {error}") from None
    if not isinstance(callback, Callback):
        raise InputError(f"--logger {text} is not a subclass of straggler.Callback")
    return callback
