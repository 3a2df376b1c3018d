"""Connections to a Ray cluster: join or start one, check its resources, and call functions on its nodes."""

import math
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import ray_constants
from ray._private import utils as ray_utils
from ray._private import worker as ray_worker
from ray.exceptions import RayError, RayTaskError

from straggler.config.registry import InputError
from straggler.running.signals import deferring_interrupts

ONE_CPU = {"CPU": 1.0}
CANCEL_SECONDS = 10.0  # time that cancelled calls have to clean up


class RayConnection:
    """This process's connection to a cluster, or to a Ray that it starts on this machine.

    If the process is connected already, the connection is used and stays open.
    """

    def __init__(self, address: str | None, workers: int, resources: Mapping[str, float] = ONE_CPU) -> None:
        self._opened = False
        if ray.is_initialized():
            return
        if address is not None:
            check_reachable(address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._print_to_stdstream = ray_worker.print_to_stdstream
        # Ray prints the death of every worker, which the run reports itself. No option turns that off
        # (log_to_driver does not). `close` restores the function.
        ray_worker.print_to_stdstream = lambda *arguments, **options: None
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        try:
            with adjusted_start(is_local=address is None), deferring_interrupts():
                if address is None:
                    cpus = max(1, math.ceil(workers * resources["CPU"]))
                    ray.init("local", num_cpus=cpus, include_dashboard=False, **quiet)
                else:
                    ray.init(address, **quiet)
                self._opened = True
        except (ConnectionError, ValueError, RuntimeError) as error:
            ray_worker.print_to_stdstream = self._print_to_stdstream
            if address is None:
                raise
            raise make_address_error(address, error) from None

    def close(self) -> None:
        """Disconnect, and end a Ray that this connection started."""
        if self._opened:
            ray.shutdown()
            ray_worker.print_to_stdstream = self._print_to_stdstream
            self._opened = False


@contextmanager
def adjusted_start(is_local: bool) -> Iterator[None]:
    """Start Ray on the loopback interface and without its SIGTERM handler.

    Ray has no public option for either: a local Ray listens on every interface on Linux (on macOS and Windows
    this constant prevents it), and its SIGTERM handler exits without a checkpoint.
    """
    enabled, set_handler = ray_constants.ENABLE_RAY_CLUSTER, ray_utils.set_sigterm_handler
    ray_constants.ENABLE_RAY_CLUSTER = enabled and not is_local
    ray_utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER, ray_utils.set_sigterm_handler = enabled, set_handler


def check_reachable(address: str) -> None:
    """Raise InputError if no server listens at an address; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return  # a name that Ray resolves, such as auto
    try:
        socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise make_address_error(address, error) from None


def make_address_error(address: str, error: Exception) -> InputError:
    """Return the error for an address at which no cluster could be joined."""
    reason = str(error).strip().splitlines()[0].rstrip(".")
    return InputError(
        f"--address {address}: {reason}. Use the address that `ray start --head` prints, or auto on a node "
        f"of the cluster. If the cluster has a token, set RAY_AUTH_MODE=token."
    )


def count_places(resources: Mapping[str, float], most: int) -> int:
    """Return how many workers with these resources fit on the cluster; `most` per node if they need none."""
    needed = {name: amount for name, amount in resources.items() if amount > 0}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    return sum(
        min((int(node.get(name, 0) / amount + 1e-9) for name, amount in needed.items()), default=most)
        for node in nodes
    )


def check_room(workers: int, resources: Mapping[str, float]) -> None:
    """Raise InputError if the workers do not fit on the cluster, where they would wait forever."""
    room = count_places(resources, workers)
    if room < workers:
        each = ", ".join(f"{amount:g} {name}" for name, amount in resources.items() if amount > 0)
        raise InputError(
            f"{workers} workers of {each} each do not fit on a cluster with room for {room}. "
            f"Use fewer workers, or less for each (--worker-resources CPU=0.5)."
        )


@dataclass(frozen=True)
class LostCall:
    """The outcome of a call whose process or node died, or that raised an exception."""

    reason: str


class RemoteCalls:
    """Calls of a generator function on the nodes of a cluster, one CPU each, that yield messages."""

    def __init__(self, function: Callable[..., Iterator[Any]], address: str | None, cores: int) -> None:
        self._connection = RayConnection(address, cores)
        remote = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming", scheduling_strategy="SPREAD")
        self._function = remote(function)
        self._names: dict[Any, str] = {}

    def __len__(self) -> int:
        return len(self._names)

    @property
    def room(self) -> int:
        """How many calls the cluster can compute at the same time; nodes may come and go."""
        return count_places(ONE_CPU, 0)

    def share(self, value: Any) -> Any:
        """Store an argument of many calls, so that every node fetches it once; return a reference to it."""
        return ray.put(value)

    def start(self, name: str, *arguments: Any) -> None:
        """Start a call with these arguments; `receive` returns its messages under this name."""
        self._names[self._function.remote(*arguments)] = name

    def receive(self) -> tuple[str, Any]:
        """Wait for the next message of a call; return its name and the message, or None when it has ended."""
        call: Any = ray.wait(list(self._names))[0][0]
        try:
            return self._names[call], ray.get(next(call))
        except StopIteration:
            return self._names.pop(call), None
        except RayError as error:
            return self._names.pop(call), LostCall(summarize_error(error))

    def close(self) -> None:
        """Cancel the calls that are not finished, and disconnect."""
        if self._names:
            ends = [call.completed() for call in self._names]
            for call in self._names:
                ray.cancel(call)
            ray.wait(ends, num_returns=len(ends), timeout=CANCEL_SECONDS)
            self._names = {}
        self._connection.close()


def summarize_error(error: RayError) -> str:
    """Return the exception that the function raised, or the first sentence of Ray's message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip() if isinstance(error, RayTaskError) else lines[0].split(". ")[0].rstrip(".")
