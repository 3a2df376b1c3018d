"""What is learned from, how it is shared out among workers, and the networks that learn it."""

__all__: list[str] = []
