"""The bookkeeping of jobs: applied + dropped + cancelled + in flight = dispatched, always."""

from dataclasses import dataclass

__all__ = ["Ledger"]


@dataclass
class Ledger:
    """Where every dispatched job went."""

    dispatched: int = 0
    applied: int = 0
    dropped: int = 0
    cancelled: int = 0

    def check(self, in_flight: int) -> None:
        accounted = self.applied + self.dropped + self.cancelled + in_flight
        if accounted != self.dispatched:
            raise AssertionError(f"{self} with {in_flight} in flight accounts for {accounted} jobs")
