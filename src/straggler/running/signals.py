"""Handling of SIGINT (Ctrl-C) and SIGTERM."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def handling_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `handler` on SIGINT and SIGTERM in this block; outside the main thread, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [signal.signal(number, handler) for number in STOP_SIGNALS]
    try:
        yield
    finally:
        for number, previous in zip(STOP_SIGNALS, before, strict=True):
            signal.signal(number, previous)


@contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the block if SIGINT or SIGTERM came during it.

    An exception in a callback that runs around a fork would be lost.
    """
    received: list[int] = []
    with handling_signals(lambda number, frame: received.append(number)):
        yield
    if received:
        raise KeyboardInterrupt
