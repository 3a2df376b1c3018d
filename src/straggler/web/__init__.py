"""Reports in one file, and live pages with a playground."""

__all__: list[str] = []
