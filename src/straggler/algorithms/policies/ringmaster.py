"""Ringmaster: asynchronous, without the gradients that are too stale."""

from collections.abc import Iterable
from itertools import takewhile
from typing import Annotated, ClassVar

from pydantic import Field

from straggler.core import Arrival, Policy, Server


class Ringmaster(Policy):
    """Step on every gradient whose staleness is below `max_delay`; drop others. Maranjyan et al. 2025.

    With `restart`, a job is cancelled and restarted at the current model as soon as its staleness reaches
    `max_delay`, so no gradient is dropped.
    """

    name: ClassVar[str] = "ringmaster"
    max_delay: Annotated[float, Field(ge=1, allow_inf_nan=True)]
    restart: bool = False

    def receive(self, server: Server, arrival: Arrival) -> Iterable[int]:
        if server.staleness(arrival.job) >= self.max_delay:
            return (arrival.worker,)
        server.merge(arrival)
        server.step()
        if not self.restart:
            return (arrival.worker,)
        oldest, jobs = server.k - self.max_delay, server.busy.values()  # in order of version
        return (arrival.worker, *sorted(job.worker for job in takewhile(lambda j: j.version <= oldest, jobs)))
