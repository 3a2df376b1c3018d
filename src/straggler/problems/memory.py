"""The memory limit: settings that need too much memory are refused before anything is allocated."""

MAX_NUMBERS = 2**31  # in one array: 8 GB in single precision


def check_size(text: str, numbers: int) -> None:
    """Raise ValueError if a setting needs an array that is too large."""
    if numbers > MAX_NUMBERS:
        rule = f"the limit is 2^31 ({MAX_NUMBERS * 4 / 2**30:g} GB in single precision)"
        raise ValueError(f"{text} needs an array of {numbers:.3g} numbers; {rule}. Use smaller settings.")
