"""Run an experiment and record it."""
