"""Data sets, models, losses, and the problems made of them."""
