"""STUDIES: a source's tables and figures as grids of experiments, with its own numbers and its claims."""

from straggler.studies.epfl import EPFL
from straggler.studies.study import Study

__all__ = ["EPFL", "STUDIES", "Study"]

STUDIES: dict[str, Study] = {study.name: study for study in (EPFL,)}
