"""Settings of the memory allocator that make gradients faster; after a run they are reset."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt


def tune_allocator() -> None:
    """Tune the allocator of a process that belongs to Straggler: the command line, a worker, an actor.

    By default glibc returns the memory of a freed gradient to the system, and the next gradient requests it
    again, page by page. Keeping up to 1 GiB makes the gradients of LeNet-5 a third faster.
    """
    # Every server step allocates a new model. In huge pages a large model is ready three times as fast. Torch
    # reads this variable at its first allocation.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if (mallopt := _find_in_libc("mallopt")) is not None:
        mallopt(M_TRIM_THRESHOLD, 1 << 30)
        mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the largest value that glibc accepts


@contextmanager
def tuned_allocator() -> Iterator[None]:
    """Keep freed memory for the duration of a run in the user's process.

    Afterwards the thresholds are those that glibc itself chooses after a program freed a large array (32 MiB
    and 64 MiB), and the cached memory is returned to the system.
    """
    mallopt, malloc_trim = _find_in_libc("mallopt"), _find_in_libc("malloc_trim")
    if mallopt is None or malloc_trim is None:
        yield
        return
    mallopt(M_TRIM_THRESHOLD, 1 << 30)
    mallopt(M_MMAP_THRESHOLD, 32 << 20)
    try:
        yield
    finally:
        mallopt(M_TRIM_THRESHOLD, 64 << 20)
        malloc_trim(0)


def _find_in_libc(name: str) -> Callable[..., int] | None:
    """Return a function of glibc; None on other systems and with other C libraries."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
