"""What is said where Ray is missing, or is not where somebody says it is."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from straggler.config.registry import InputError


@contextmanager
def needing_ray(who: str) -> Iterator[None]:
    """Around the import of what uses Ray, which is an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise InputError(f"{who} requires Ray: pip install 'straggler[ray]'") from None


def check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return  # a name that Ray knows, such as auto
    try:
        socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise wrong_address(address, error) from None


def wrong_address(address: str, error: Exception) -> InputError:
    said = str(error).strip().splitlines()[0].rstrip(".")
    return InputError(
        f"--address {address}: {said}; give what `ray start --head` says, or auto on a node of the cluster, "
        f"and set RAY_AUTH_MODE=token if it has a token"
    )
