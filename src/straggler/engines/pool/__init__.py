"""Processes that compute gradients, and the memory they share."""
