"""Reproductions of papers: a study runs a source's experiments and judges its claims."""

from straggler.reproduction.study import Study, load_study
from straggler.sweeps.grid import Cell

__all__ = ["Cell", "Study", "load_study"]
