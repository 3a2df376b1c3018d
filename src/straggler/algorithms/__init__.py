"""Policies, corrections, optimizers and the methods made of them."""
