"""Links: how long models and messages travel in virtual time."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from straggler.config.registry import Catalogue, CatalogueEntry
from straggler.timing.terms import Workers, select_workers

Bandwidth = Annotated[float, Field(gt=0, allow_inf_nan=True)]


class Link(CatalogueEntry):
    """A latency in seconds, and bandwidths in bytes per second: up to the server, and down to the worker."""

    name: ClassVar[str] = "link"
    latency: float = Field(0.0, ge=0)
    up: Bandwidth = math.inf
    down: Bandwidth = math.inf
    workers: Workers | None = None


LINKS = Catalogue("link", "links", Link, [Link])


class Network:
    """The links of all workers and of the server, and when the server's link is free.

    All workers share the server's link: it sends one model at a time and receives one message at a time, in
    the order in which they reach it. A worker's own link never queues: if a job is cancelled while its model
    or its message is on the link, the next model has the whole bandwidth at once.
    """

    def __init__(
        self, links: Sequence[Link], server_link: Link | None, workers: int, bytes_up: int, bytes_down: int
    ) -> None:
        server = server_link or Link()
        if server.workers is not None:
            raise ValueError(f"server_link={server}: all workers share the server's link. Omit workers=….")
        self.is_shared = server_link is not None  # whether messages queue at the server
        self._down, self._up, used = [0.0] * workers, [0.0] * workers, dict[int, Link]()
        for link in links:
            for worker in select_workers(link, link.workers, workers):
                if worker in used:
                    raise ValueError(
                        f"Worker {worker} has two links, {used[worker]} and {link}. "
                        f"Give each worker at most one: write workers=[…] in each link."
                    )
                used[worker] = link
                self._down[worker] = link.latency + bytes_down / link.down
                self._up[worker] = link.latency + bytes_up / link.up
        slow = [link for link in (*links, server) if math.inf in (bytes_down / link.down, bytes_up / link.up)]
        if slow:
            raise ValueError(f"{slow[0]}: a message would never arrive. Use a larger bandwidth.")
        self._latency = server.latency
        self._sending, self._receiving = bytes_down / server.down, bytes_up / server.up  # seconds
        self._down_free = self._up_free = 0.0

    def send_model(self, worker: int, now: float) -> float:
        """Return when a model that the server sends now reaches the worker."""
        if not self.is_shared:
            return now + self._down[worker]
        self._down_free = max(now, self._down_free) + self._sending
        return self._down_free + (self._latency + self._down[worker])

    def send_message(self, worker: int, now: float) -> float:
        """Return when a message that the worker sends now reaches the server's link."""
        return now + self._up[worker]

    def receive_message(self, now: float) -> float:
        """Return when the server has a message that reaches its link now; call this in the order of time."""
        self._up_free = max(now, self._up_free) + self._receiving
        return self._up_free + self._latency

    def state(self) -> dict[str, Any]:
        """Return when the server's link is free in both directions, for a checkpoint."""
        return {"down": self._down_free, "up": self._up_free}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint."""
        self._down_free, self._up_free = state["down"], state["up"]
