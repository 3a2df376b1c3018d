"""Sweeps: a grid of experiments, the pools of processes that run them, and their summaries."""
