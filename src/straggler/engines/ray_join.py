"""How this process comes to a Ray: it joins one, or starts its own, and no signal is lost meanwhile."""

import math
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import ray_constants
from ray._private import utils as ray_utils
from ray._private import worker as ray_worker

from straggler.engines.ray_remedies import check_reachable, wrong_address

__all__ = ["join"]


def join(address: str | None, workers: int, resources: Mapping[str, float]) -> bool:
    """Join a cluster, or start Ray here; False if this process has one already, which it keeps."""
    if ray.is_initialized():
        return False
    if address is not None:
        check_reachable(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray_worker.print_to_stdstream = lambda *said, **how: None  # a death is reported by the run, once
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    with on_loopback(address is None), interrupts_later():
        if address is None:
            cpus = max(1, math.ceil(workers * resources["CPU"]))
            ray.init("local", num_cpus=cpus, include_dashboard=False, **quiet)
            return True
        try:
            ray.init(address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise wrong_address(address, error) from None
    return True


@contextmanager
def on_loopback(wanted: bool) -> Iterator[None]:
    """A Ray that is started meanwhile is for this machine only: its ports are not open to others."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = before and not wanted
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def interrupts_later() -> Iterator[None]:
    """A signal that comes meanwhile interrupts at the end: what it raises while Ray forks would be lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    numbers, rays = (signal.SIGINT, signal.SIGTERM), ray_utils.set_sigterm_handler
    before = [signal.signal(number, lambda number, frame: came.append(number)) for number in numbers]
    ray_utils.set_sigterm_handler = lambda handler: None  # Ray's own exits with the signal's number
    try:
        yield
    finally:
        ray_utils.set_sigterm_handler = rays
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt
