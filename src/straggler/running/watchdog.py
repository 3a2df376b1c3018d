"""Watchdog: notices that the driver of a run has processed no event for a while, and says where it is.

The thread that trains calls `note_progress` at every event, and while it waits for processes, which have
deadlines of their own. A thread that does not call it is in code that does not return, such as an endless
loop in a custom policy.
"""

import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Self

LOOK_SECONDS = 1.0  # between two looks at the thread
GRACE_SECONDS = 30.0  # in addition to the limit: the driver may wait that long for its fork server
SHOWN_CALLS = 3  # of the stack

_events = Counter[int]()  # by thread
_silent = dict[int, str]()  # what was reported of the threads that have made no progress for too long


def note_progress() -> None:
    """Note that this thread has processed an event, or waits for a process that has a deadline."""
    _events[threading.get_ident()] += 1


def list_silences() -> list[str]:
    """Return a line for every watched thread of this process that has made no progress for too long."""
    return list(_silent.values())


class Watchdog(threading.Thread):
    """Watches the thread that creates it, in a `with` block, and reports once when it makes no progress."""

    def __init__(self, timeout: float, report: Callable[[str], None]) -> None:
        super().__init__(daemon=True)
        self.limit, self._report = timeout + GRACE_SECONDS, report
        self._watched, self._is_over = threading.get_ident(), threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        self.join()
        _silent.pop(self._watched, None)
        del _events[self._watched]

    def run(self) -> None:
        """Look at the thread every second. Looks are counted, so that a stopped process is not silent."""
        seen, silence = -1, 0.0
        while not self._is_over.wait(LOOK_SECONDS):
            now = _events[self._watched]
            silence = silence + LOOK_SECONDS if now == seen else 0.0
            seen = now
            if silence < self.limit:
                _silent.pop(self._watched, None)
            elif self._watched not in _silent:
                place = describe_place(self._watched)
                line = f"The run has processed no event for {self.limit:g} s. It is in {place}."
                _silent[self._watched] = line
                self._report(line)


def describe_place(thread: int) -> str:
    """Return the innermost calls of a thread: `receive (quorum.py:14), called by …`."""
    frame = sys._current_frames().get(thread)
    calls = traceback.extract_stack(frame)[::-1][:SHOWN_CALLS]
    return ", called by ".join(f"{call.name} ({Path(call.filename).name}:{call.lineno})" for call in calls)
