"""STUDIES: a source's tables and figures as grids of experiments, with its own numbers and its claims."""

from straggler.reproduction.papers.asu.study import ASU
from straggler.reproduction.papers.epfl.study import EPFL
from straggler.reproduction.papers.gap_aware.study import GAP_AWARE
from straggler.reproduction.study import Study

__all__ = ["ASU", "EPFL", "GAP_AWARE", "STUDIES", "Study"]

STUDIES: dict[str, Study] = {study.name: study for study in (EPFL, ASU, GAP_AWARE)}
