"""Records to look at: reports in one file, and a live page with a playground."""

__all__: list[str] = []
