"""WHAT: the catalogue of corrections, what is done to a stale gradient."""

from typing import ClassVar

from torch import Tensor

from straggler.core import Arrival, Correction, Server

__all__ = ["CORRECTIONS", "Uncorrected"]


class Uncorrected(Correction):
    """Use the gradient as it came."""

    name: ClassVar[str] = "none"

    def correct(self, gradient: Tensor, arrival: Arrival, server: Server) -> tuple[Tensor, float]:
        return gradient, 1.0


CORRECTIONS: dict[str, type[Correction]] = {correction.name: correction for correction in (Uncorrected,)}
