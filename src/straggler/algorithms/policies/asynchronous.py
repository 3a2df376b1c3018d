"""Asynchronous: apply every gradient on arrival."""

from collections.abc import Iterable
from typing import ClassVar

from straggler.core import Arrival, Policy, Server


class Asynchronous(Policy):
    """Step on every arrival and restart its worker. Dean et al. 2012 (Downpour SGD)."""

    name: ClassVar[str] = "asynchronous"

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        server.merge(arrival)
        server.step()
        return (arrival.worker,)
