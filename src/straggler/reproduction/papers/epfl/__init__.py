"""Reproduction of the EPFL source."""
