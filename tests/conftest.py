"""Fixtures that all tests share."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

# Ray gives its workers a low priority, with which they hardly start on a busy machine.
os.environ.setdefault("RAY_worker_niceness", "0")

# The same examples in every run, and no deadline, which a busy machine would miss.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def _ray_ends() -> Iterator[None]:
    yield
    import ray

    ray.shutdown()


@pytest.fixture
def ray_here(_ray_ends: None) -> None:
    """Start one Ray for all tests of this process; engines join it."""
    from straggler.engines.ray_cluster import RayConnection

    connection = RayConnection(address=None, workers=6, resources={"CPU": 1.0})
    connection.watch.close()  # engines have watches of their own


@pytest.fixture(autouse=True)
def _same_start() -> None:
    torch.manual_seed(0)
