"""The limit on memory: settings that ask for too much are refused before anything is allocated."""

MAX_NUMBERS = 2**31  # in one array: 8 GB in single precision


def check_size(text: str, numbers: int) -> None:
    """Raise if a setting asks for an array that is too large."""
    if numbers > MAX_NUMBERS:
        raise ValueError(f"{text} needs {numbers:.3g} numbers, the limit is 2^31 ({MAX_NUMBERS:.3g})")
