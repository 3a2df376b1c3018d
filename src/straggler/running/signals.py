"""Handling of SIGINT (Ctrl-C), SIGTERM and SIGHUP (the terminal was closed)."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP


@contextmanager
def handling_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `handler` on a stop signal in this block, unless it is ignored (as SIGHUP is by `nohup`).

    Outside the main thread, do nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in STOP_SIGNALS if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    handled = [number for number in numbers if before[number] is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])


class StopRequest:
    """Notes the first stop signal; the second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.is_made = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note stop signals in this block instead of raising KeyboardInterrupt at the first."""
        with handling_signals(self._note):
            yield

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.is_made:
            raise KeyboardInterrupt
        self.is_made = True


@contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the block if a stop signal came during it.

    An exception in a callback that runs around a fork would be lost. The second signal ends the process.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    with handling_signals(note):
        yield
    if received:
        raise KeyboardInterrupt
