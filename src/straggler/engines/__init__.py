"""Where jobs run: in virtual time, on processes, on a Ray cluster; or as a record says they did."""

__all__: list[str] = []
