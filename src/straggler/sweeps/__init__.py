"""Many experiments: a grid of cells, the processes that run them, and what is kept of each."""

__all__: list[str] = []
