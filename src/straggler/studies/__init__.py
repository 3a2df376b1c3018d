"""STUDIES: a source's tables and figures as grids of experiments, with its own numbers and its claims."""

from straggler.studies.asu import ASU
from straggler.studies.epfl import EPFL
from straggler.studies.gap_aware import GAP_AWARE
from straggler.studies.study import Study

__all__ = ["ASU", "EPFL", "GAP_AWARE", "STUDIES", "Study"]

STUDIES: dict[str, Study] = {study.name: study for study in (EPFL, ASU, GAP_AWARE)}
