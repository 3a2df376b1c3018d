"""The fleet on a Ray cluster: a plain task per run, a core each; Ray is imported only when asked for."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from straggler.catalogue import InputError
from straggler.sweeps.cells import Task
from straggler.sweeps.fleet import Told, attempt

__all__ = ["RayFleet"]

RETRIES = 3  # of a run whose node died; what it had saved in `runs` goes on if the folder is shared


@dataclass
class RayFleet:
    """Records go to `runs` as the nodes see it; facts come back by Ray: summaries need no shared folder."""

    address: str | None  # of a cluster that is up; None starts one on this machine
    runs: Path
    data: Path | None = None

    def run(self, tasks: Iterable[Task]) -> Generator[Told]:
        """Every task at once, to be scheduled by Ray; told in the order in which they end."""
        ray = joined(self.address)
        try:
            remote = ray.remote(num_cpus=1, max_retries=RETRIES)(alone)
            keep = {self._submit(remote, task): task for task in tasks}
            waiting = list(keep)
            while waiting:
                (done,), waiting = ray.wait(waiting, num_returns=1)
                yield self._told(ray, keep[done], done)
        finally:
            ray.shutdown()

    def _submit(self, remote: Any, task: Task) -> Any:
        return remote.remote(task.experiment.resolved(), str(self.runs), self.data, task.keep)

    def _told(self, ray: Any, task: Task, done: Any) -> Told:
        try:
            what, content = ray.get(done)
        except ray.exceptions.RayError as error:
            what, content = "failed", f"its node or process died ({type(error).__name__})"
        return Told(task, what, content)


def alone(settings: dict[str, Any], runs: str, data: Path | None, keep: tuple[str, ...]) -> tuple[str, Any]:
    """One run on a node; it has nobody to tell how far it is."""
    return attempt(settings, Path(runs), data, keep, lambda seen: None)


def joined(address: str | None) -> Any:
    try:
        import ray
    except ImportError:
        raise InputError("--on ray: Ray is not installed; pip install 'straggler[ray]'") from None
    try:
        ray.init(address=address, include_dashboard=False, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(
            f"--on ray: no cluster at {address!r} ({error}); start one, or leave it out"
        ) from None
    return ray
