"""Errors of a machine without room: a full disk, no memory, no file descriptors."""

import errno
import re

REMEDIES = {
    errno.ENOSPC: "The disk is full. Free space on it",
    errno.EDQUOT: "The disk quota is used up. Free space",
    errno.EFBIG: "A file would be larger than allowed. Raise the limit (ulimit -f)",
    errno.EMFILE: "There are no free file descriptors. Raise the limit (ulimit -n), or use fewer workers",
    errno.ENFILE: "The system has no free file descriptors. Close other programs, or use fewer workers",
    errno.ENOMEM: "There is not enough memory. Use fewer workers or processes, or a smaller model",
    errno.EAGAIN: "No more processes can be started. Raise the limit (ulimit -u), or use fewer workers",
}
# The errors of libraries that only have a text: safetensors and polars (Rust), torch.
IN_TEXT = re.compile(r"\(os error (\d+)\)|\[Errno (\d+)\]")
NO_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|Unable to allocate|out of memory|Cannot allocate"
)


def explain_resource_error(error: BaseException) -> str | None:
    """Return what the machine lacks and the remedy, from an error or one of its causes; None for others."""
    seen: BaseException | None = error
    while seen is not None:
        number = seen.errno if isinstance(seen, OSError) else None
        if number is None and (found := IN_TEXT.search(str(seen))) is not None:
            number = int(found[1] or found[2])
        if number is None and (isinstance(seen, MemoryError) or NO_MEMORY.search(str(seen))):
            number = errno.ENOMEM
        if number in REMEDIES:
            return REMEDIES[number]
        seen = seen.__cause__ or seen.__context__
    return None
