"""What records say: tables and figures. Reads records only; never runs anything."""

__all__: list[str] = []
