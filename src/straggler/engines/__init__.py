"""Where jobs run: in virtual time; on processes and clusters to come."""

__all__: list[str] = []
