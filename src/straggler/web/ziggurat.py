"""The widths of numpy's ziggurat layers, with which the playground draws the same durations in a browser."""

from functools import cache

import numpy as np

MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645  # of PCG64
MODULUS = 2**128
LAYERS = 256
MAX_TRIES = 1000


@cache
def read_ziggurat_widths() -> dict[str, list[float]]:
    """Return the widths of the layers of the standard normal and the standard exponential.

    numpy does not export them. A draw is width × place, unless the place is near the edge of its layer. We
    set the generator so that its next 64 bits choose a layer and a power of two as the place; dividing the
    draw by the power of two is exact.
    """
    return {
        "normal": [read_width("standard_normal", layer | 1 << 60, 2.0**51) for layer in range(LAYERS)],
        "exponential": [
            read_width("standard_exponential", layer << 3 | 1 << 63, 2.0**52) for layer in range(LAYERS)
        ],
    }


def read_width(distribution: str, bits: int, place: float) -> float:
    """Return the width of the layer that these 64 bits choose, at this place."""
    source = np.random.PCG64(0)
    state = source.state
    increment = state["state"]["inc"]
    draws: dict[float, int] = {}
    for high in range(MAX_TRIES):  # different `high` give the same bits now, and others afterwards
        low = bits ^ high  # below 2⁵⁸, `high` does not rotate the output
        following = (high << 64) | low
        state["state"]["state"] = (following - increment) * pow(MULTIPLIER, -1, MODULUS) % MODULUS
        source.state = state
        draw = float(getattr(np.random.Generator(source), distribution)())
        draws[draw] = draws.get(draw, 0) + 1
        if draws[draw] == 2:  # a draw that was rejected is replaced by another one each time
            return draw / place
    raise RuntimeError(f"numpy's {distribution} does not use the expected method.")
