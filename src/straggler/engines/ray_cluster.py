"""Connections to a Ray cluster: join or start one, check its resources, and call functions on its nodes."""

import atexit
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import ray_constants
from ray._private import utils as ray_utils
from ray._private import worker as ray_worker
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from straggler.config.registry import InputError
from straggler.engines.real_time import WorkerError
from straggler.running.signals import deferring_interrupts

ONE_CPU = {"CPU": 1.0}
CANCEL_SECONDS = 10.0  # time that cancelled calls have to clean up
SILENCE_SECONDS = 60.0  # without a message of a call that has begun, after which it counts as hung
SHUTDOWN_SECONDS = 5.0  # time to disconnect from a cluster whose control store is gone
LOOK_SECONDS = 2.0  # between two looks at Ray's control store
RECONNECT_SETTING = "RAY_gcs_rpc_server_reconnect_timeout_s"  # Ray's limit, 60 s unless it is set


class ClusterLostError(WorkerError):
    """Raised if Ray's control store is gone. A supervisor starts the run again."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again later


class ControlStoreWatch(threading.Thread):
    """Notices that Ray's control store (GCS) is gone.

    Ray ends all processes of a cluster, and this one without a message, if the control store is gone for a
    minute. `check` raises before that, while a checkpoint can be saved.
    """

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.limit = 0.75 * float(os.environ.get(RECONNECT_SETTING, 60))
        self._gone_since = math.inf
        self._closed = threading.Event()

    def run(self) -> None:
        """Look at the control store now and then, until the watch is closed."""
        while not self._closed.wait(LOOK_SECONDS):
            self.is_reachable()

    def is_reachable(self) -> bool:
        """Return whether the control store accepts connections."""
        began = time.monotonic()
        try:
            connect(self.address, timeout=LOOK_SECONDS)
        except OSError:
            self._gone_since = min(self._gone_since, began)
            return False
        self._gone_since = math.inf
        return True

    def check(self) -> None:
        """Raise ClusterLostError if the control store has been gone for too long."""
        if time.monotonic() - self._gone_since > self.limit:
            raise ClusterLostError(
                f"Ray's control store at {self.address} has not answered for {self.limit:g} s. Start Ray "
                f"again on the head and on the other machines, then resume"
            )

    def close(self) -> None:
        """End the thread."""
        self._closed.set()


def connect(address: str, timeout: float) -> None:
    """Open and close a connection to a server; raise OSError if that is impossible."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout).close()


class RayConnection:
    """This process's connection to a cluster, or to a Ray that it starts on this machine.

    If the process is connected already, the connection is used and stays open.
    """

    def __init__(self, address: str | None, workers: int, resources: Mapping[str, float] = ONE_CPU) -> None:
        self._opened = False
        if not ray.is_initialized():
            self._open(address, workers, resources)
        self.watch = ControlStoreWatch(ray.get_runtime_context().gcs_address)
        self.watch.start()

    def _open(self, address: str | None, workers: int, resources: Mapping[str, float]) -> None:
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

    def wait(self, references: Sequence[Any], timeout: float = math.inf) -> list[Any]:
        """Return one of the references whose object is here, or none after the timeout.

        Raise ClusterLostError if Ray's control store is gone.
        """
        end = time.monotonic() + timeout
        while True:
            self.watch.check()
            left = max(0.0, min(end - time.monotonic(), LOOK_SECONDS))
            ready: list[Any] = ray.wait(list(references), timeout=left)[0]
            if ready or time.monotonic() >= end:
                return ready

    def close(self) -> None:
        """Disconnect, and end a Ray that this connection started."""
        self.watch.close()
        if self._opened:
            if self.watch.is_reachable():
                ray.shutdown()
            else:  # it may wait until Ray ends this process
                ending = threading.Thread(target=ray.shutdown, daemon=True)
                ending.start()
                ending.join(SHUTDOWN_SECONDS)
                if ending.is_alive():
                    atexit.register(exit_at_once)  # runs before Ray's own handler, which would wait too
            ray_worker.print_to_stdstream = self._print_to_stdstream
            self._opened = False


def exit_at_once() -> None:
    """End this process without disconnecting from a cluster that is gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ClusterLostError.exit_code)


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
    if not address.rpartition(":")[2].isdigit():
        return  # a name that Ray resolves, such as auto
    try:
        connect(address.removeprefix("ray://"), timeout=5)
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


@dataclass
class RunningCall:
    """A call: its name, and since its first message where it runs and when it sent a message."""

    name: str
    place: tuple[int, str] | None = None  # process and node
    heard: float = math.inf


def run_with_place(function: Callable[..., Iterator[Any]], *arguments: Any) -> Iterator[Any]:
    """Yield the process and the node of a call, then its messages."""
    yield os.getpid(), ray.get_runtime_context().get_node_id()
    yield from function(*arguments)


def kill_process(pid: int) -> None:
    """Kill a process of this node."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class RemoteCalls:
    """Calls of a generator function on the nodes of a cluster, one CPU each, that yield messages.

    A call that has begun and sends no message for a while, because its process or node is stopped, is lost.
    Its process is killed, so that the CPU is free again.
    """

    def __init__(self, function: Callable[..., Iterator[Any]], address: str | None, cores: int) -> None:
        self._connection = RayConnection(address, cores)
        remote = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming", scheduling_strategy="SPREAD")
        self._remote, self._function = remote(run_with_place), ray.put(function)
        self._calls: dict[Any, RunningCall] = {}
        self._room = 0

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def room(self) -> int:
        """How many calls the cluster can compute at the same time; nodes may come and go."""
        if self._connection.watch.is_reachable():  # otherwise Ray would wait for it
            self._room = count_places(ONE_CPU, 0)
        return self._room

    def share(self, value: Any) -> Any:
        """Store an argument of many calls, so that every node fetches it once; return a reference to it."""
        return ray.put(value)

    def start(self, name: str, *arguments: Any) -> None:
        """Start a call with these arguments; `receive` returns its messages under this name."""
        self._calls[self._remote.remote(self._function, *arguments)] = RunningCall(name)

    def receive(self) -> tuple[str, Any]:
        """Wait for the next message of a call; return its name and the message, or None when it has ended."""
        while True:
            if ready := self._connection.wait(list(self._calls), LOOK_SECONDS):
                running = self._calls[ready[0]]
                running.heard = time.monotonic()
                try:
                    message = ray.get(next(ready[0]))
                except StopIteration:
                    return self._calls.pop(ready[0]).name, None
                except RayError as error:
                    return self._calls.pop(ready[0]).name, LostCall(summarize_error(error))
                if running.place is not None:
                    return running.name, message
                running.place = message
            elif (silent := self._find_silent_call()) is not None:
                return self._end_call(silent)

    def _find_silent_call(self) -> Any:
        """Return a call that counts as hung, or None; at this time no call has a message."""
        limit = time.monotonic() - SILENCE_SECONDS
        return next((call for call, running in self._calls.items() if running.heard < limit), None)

    def _end_call(self, call: Any) -> tuple[str, LostCall]:
        """Kill the process of a call, if its node answers, and give the call up."""
        running = self._calls.pop(call)
        assert running.place is not None
        pid, node = running.place
        where: dict[str, Any] = {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
        ray.remote(num_cpus=0, max_retries=0, **where)(kill_process).remote(pid)
        return running.name, LostCall(f"it sent nothing for {SILENCE_SECONDS:g} s, and its process was ended")

    def close(self) -> None:
        """Cancel the calls that are not finished, and disconnect."""
        if self._calls:
            ends = [call.completed() for call in self._calls]
            for call in self._calls:
                ray.cancel(call)
            ray.wait(ends, num_returns=len(ends), timeout=CANCEL_SECONDS)
            self._calls = {}
        self._connection.close()


def summarize_error(error: RayError) -> str:
    """Return the exception that the function raised, or the first sentence of Ray's message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip() if isinstance(error, RayTaskError) else lines[0].split(". ")[0].rstrip(".")
