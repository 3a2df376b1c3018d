"""Reproduction of the Gap-Aware source."""
